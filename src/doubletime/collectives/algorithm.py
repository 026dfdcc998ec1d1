"""An algorithm: for each collective it defines, one rank's rounds as a pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from doubletime.collectives.formula import Terms
from doubletime.collectives.line import Line, lay
from doubletime.collectives.phase import Phase
from doubletime.collectives.schedule import (
    BLOCKED,
    Collective,
    Problem,
    Round,
    Schedule,
)
from doubletime.collectives.topology import Topology
from doubletime.errors import ScheduleError

# The rounds of the rank at one position of a line, and the length of the whole.
Build = Callable[[Line, int], Phase]
# What a problem costs with a message of so many bytes, one entry for each level of links.
Formula = Callable[[Problem, float], tuple[Terms, ...]]
# How many chunks fit a collective over so many ranks in so many segments; per rank if BLOCKED.
Chunks = Callable[[Collective, Topology, int, int], int]


@dataclass(frozen=True)
class Algorithm:
    """A way to carry out collectives.

    Attributes:
        name: as published, and as people ask for it.
        source: the paper.
        collectives: what it defines.
        formula: what the paper says it costs.
        chunks: the number of chunks that it needs, from
            `(collective, topology, segments, overlap)`; any other number is correct too.
        rounds_formula: how many rounds its all_reduce takes, as published: p ranks, S segments;
            `(+2)` says how many more where p is no power of two.
        nbytes_formula: what the rank sends then which sends most, of a message of n; `(+n)` as above.
        is_pipelined: whether it makes use of segments.
    """

    name: str
    source: str
    collectives: Mapping[Collective, Build]
    formula: Formula
    chunks: Chunks
    rounds_formula: str
    nbytes_formula: str
    is_pipelined: bool = False

    def problem(
        self,
        collective: Collective,
        topology: Topology,
        *,
        root: int = 0,
        segments: int = 1,
        overlap: int = 1,
    ) -> Problem:
        """The problem with the number of chunks that fits this algorithm.

        Raises:
            ScheduleError: if the algorithm does not define the collective, or a value is absurd.
        """
        self._build(collective)
        if segments < 1 or overlap < 1:
            raise ScheduleError(f"segments={segments}, overlap={overlap}", "each is at least 1")
        chunks = self.chunks(collective, topology, segments, overlap)
        if collective in BLOCKED:
            chunks *= topology.ranks
        return Problem(collective, topology, chunks, root, segments, overlap)

    def rounds(self, problem: Problem, rank: int) -> tuple[Round, ...]:
        """One rank's rounds, built without those of the others.

        Raises:
            ScheduleError: if the algorithm does not define the collective.
        """
        build = self._build(problem.collective)
        line = lay(problem)
        return build(line, line.ranks.index(rank)).rounds

    def schedule(self, problem: Problem) -> Schedule:
        """All ranks' rounds.

        Raises:
            ScheduleError: if the algorithm does not define the collective.
        """
        build = self._build(problem.collective)
        line = lay(problem)
        rounds: dict[int, tuple[Round, ...]] = {
            rank: build(line, position).rounds for position, rank in enumerate(line.ranks)
        }
        return Schedule(self.name, problem, tuple(rounds[rank] for rank in range(problem.ranks)))

    def _build(self, collective: Collective) -> Build:
        build = self.collectives.get(collective)
        if build is None:
            raise ScheduleError(
                f"the algorithm {self.name} does not define {collective}",
                f"it defines {', '.join(self.collectives)}",
            )
        return build
