"""What is chosen for one collective of one size: the algorithm, and into what it cuts messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from doubletime.collectives.catalogue import find
from doubletime.collectives.schedule import Collective, Problem
from doubletime.collectives.topology import Topology
from doubletime.errors import ScheduleError

if TYPE_CHECKING:
    from doubletime.collectives.execution import Course

NATIVE = "native"
DEFAULT_SEGMENT_NBYTES = 512 << 10
_MOST_SEGMENTS = 128
# Four parts hide three quarters of what happens inside hosts; parts below 1 MiB cost more than they hide.
_MOST_OVERLAP, _OVERLAP_NBYTES = 4, 1 << 20


@dataclass(frozen=True)
class Choice:
    """How a collective is carried out.

    Attributes:
        algorithm: a name of the catalogue, or `native`: the backend's own way.
        segment_nbytes: size of a segment in bytes, for algorithms that pipeline.
        overlap: how many parts `two_level` takes through its levels one behind the other; 0 for as
            many as fit the size.
    """

    algorithm: str
    segment_nbytes: int = DEFAULT_SEGMENT_NBYTES
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.algorithm != NATIVE:
            find(self.algorithm)
        if self.segment_nbytes < 1:
            raise ScheduleError(
                f"segments of {self.segment_nbytes} bytes", "a segment has at least 1 byte"
            )

    def __str__(self) -> str:
        return self.algorithm


def problem(
    choice: Choice, collective: Collective, topology: Topology, root: int, nbytes: int
) -> Problem:
    """The problem for a message of this size: its chunks and segments.

    Raises:
        ScheduleError: if the algorithm does not define the collective.
    """
    algorithm = find(choice.algorithm)
    overlap = choice.overlap or max(1, min(_MOST_OVERLAP, nbytes // _OVERLAP_NBYTES))
    whole = algorithm.problem(collective, topology, root=root, overlap=overlap)
    if not algorithm.is_pipelined:
        return whole
    segments = -(-nbytes // whole.chunks // choice.segment_nbytes)
    return algorithm.problem(
        collective,
        topology,
        root=root,
        overlap=overlap,
        segments=max(1, min(_MOST_SEGMENTS, segments)),
    )


@lru_cache(maxsize=256)
def course(
    choice: Choice,
    collective: Collective,
    topology: Topology,
    root: int,
    rank: int,
    elements: int,
    itemsize: int,
) -> Course:
    """One rank's rounds for a tensor of so many elements; kept, since training repeats its calls."""
    from doubletime.collectives.execution import (
        Course,
    )  # with torch, which commands' options need not

    asked = problem(choice, collective, topology, root, elements * itemsize)
    rounds = find(choice.algorithm).rounds(asked, rank)
    return Course.of(rounds, asked.bounds(elements))
