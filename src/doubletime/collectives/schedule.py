"""A schedule: who sends which chunks to whom in which round, as frozen data.

A message of n elements is cut into `Problem.chunks` chunks (`Problem.bounds`), and chunk i of one
rank only ever meets chunk i of another. What a rank's rounds mean, whoever carries them out:

* A rank goes through its own rounds in order. A round holds messages whose partner has them in the
  round of the same number; between one pair of ranks they match in the order in which they are
  listed, round after round, so a transport that keeps the order of a pair needs no tags.
* A round's sends read what the rank held before the round. A received chunk that is copied
  (`Combine.COPY`) may therefore be received in place: it is neither sent nor received otherwise in
  the same round. A received chunk that is reduced may be one that is sent in the same round: it
  is received into scratch memory, and reduced once that send is complete.
* Reductions of a round happen in the order in which its receives are listed. `Combine` says on
  which side of the operator the received value stands, so that all ranks compute the same
  expression and hold the same bits.
* A chunk of no elements (more chunks than elements) is no message: both sides leave it out.
* reduce, reduce_scatter: what a rank holds of chunks that are not its result is undefined after.

`doubletime.collectives.proof` proves all of that; `doubletime.collectives.dependencies` tells how
far a rank may run ahead of this order without being seen.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from doubletime.collectives.chunks import Ranges, offset
from doubletime.collectives.topology import Topology
from doubletime.errors import ScheduleError

Collective = Literal["all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
ROOTED: tuple[Collective, ...] = ("reduce", "broadcast")
BLOCKED: tuple[Collective, ...] = ("reduce_scatter", "all_gather")


class Combine(enum.Enum):
    """What becomes of a received chunk."""

    COPY = "copy"
    RECEIVED_LEFT = "received + held"
    RECEIVED_RIGHT = "held + received"


@dataclass(frozen=True, slots=True)
class Send:
    """One message to `peer`: its chunks, ascending, in one piece."""

    peer: int
    chunks: Ranges


@dataclass(frozen=True, slots=True)
class Receive:
    """One message from `peer`, and what becomes of it."""

    peer: int
    chunks: Ranges
    combine: Combine


@dataclass(frozen=True, slots=True)
class Round:
    """What one rank does in one round: at least one message.

    Attributes:
        number: the round's number, the same on all ranks; a rank skips rounds without it.
    """

    number: int
    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]


@dataclass(frozen=True)
class Problem:
    """What a schedule is asked to do.

    Attributes:
        collective: one of `COLLECTIVES`.
        topology: the ranks and their hosts.
        chunks: how many chunks the message is cut into, at least 1. For reduce_scatter and
            all_gather a multiple of the ranks: rank r's block is the r-th share of the chunks.
        root: the rank that reduces to, or broadcasts from; 0 for other collectives.
        segments: into how many pipelined parts an algorithm that pipelines cuts what it sends.
        overlap: how many parts of the message `two_level` takes through its levels one behind the
            other.
    """

    collective: Collective
    topology: Topology
    chunks: int
    root: int = 0
    segments: int = 1
    overlap: int = 1

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise ScheduleError(
                f"no collective is called {self.collective!r}", f"one of {', '.join(COLLECTIVES)}"
            )
        for name in ("chunks", "segments", "overlap"):
            if getattr(self, name) < 1:
                raise ScheduleError(f"{name}={getattr(self, name)}", f"{name} is at least 1")
        if not 0 <= self.root < self.ranks:
            raise ScheduleError(
                f"root {self.root} is none of {self.ranks} ranks", f"0 to {self.ranks - 1}"
            )
        if self.root and self.collective not in ROOTED:
            raise ScheduleError(f"{self.collective} has no root", "leave root at 0")
        if self.chunks % self.blocks:
            raise ScheduleError(
                f"{self.collective} over {self.ranks} ranks in {self.chunks} chunks",
                "take a multiple of the ranks, so that each rank's block is whole chunks",
            )

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return self.topology.ranks

    @property
    def blocks(self) -> int:
        """Into how many blocks the message is cut before the chunks: the ranks, or 1."""
        return self.ranks if self.collective in BLOCKED else 1

    def bounds(self, elements: int) -> tuple[int, ...]:
        """Where chunks begin in a flat message of `elements` elements.

        Returns:
            `chunks + 1` offsets: chunk i is [bounds[i], bounds[i + 1]). Blocks, then chunks in a
            block, are cut as `torch.tensor_split` cuts.
        """
        per_block = self.chunks // self.blocks
        found = []
        for block in range(self.blocks):
            start, stop = (offset(elements, self.blocks, at) for at in (block, block + 1))
            found += [start + offset(stop - start, per_block, at) for at in range(per_block)]
        return (*found, elements)

    def block(self, rank: int) -> Ranges:
        """The chunks that are `rank`'s own in reduce_scatter and all_gather."""
        per_block = self.chunks // self.ranks
        return ((rank * per_block, (rank + 1) * per_block),)


@dataclass(frozen=True)
class Schedule:
    """All ranks' rounds.

    Attributes:
        algorithm: its name.
        problem: what it solves.
        rounds: for each rank, the rounds in which it takes part, by ascending number.
    """

    algorithm: str
    problem: Problem
    rounds: tuple[tuple[Round, ...], ...]

    @property
    def length(self) -> int:
        """How many rounds there are, counted over all ranks."""
        return 1 + max((rounds[-1].number for rounds in self.rounds if rounds), default=-1)


def nbytes_of(chunks: Ranges, bounds: Sequence[int]) -> int:
    """How much a message of these chunks holds, in the unit of `bounds`."""
    if len(chunks) == 1:
        return bounds[chunks[0][1]] - bounds[chunks[0][0]]
    return sum(bounds[end] - bounds[first] for first, end in chunks)


def sent(rounds: Iterable[Round], bounds: Sequence[int]) -> int:
    """How much one rank sends in all its rounds, in the unit of `bounds`."""
    return sum(nbytes_of(send.chunks, bounds) for each in rounds for send in each.sends)


def scratch(rounds: Iterable[Round], bounds: Sequence[int]) -> int:
    """Scratch memory that one rank needs, a round at a time, in the unit of `bounds`.

    It is what the largest round receives to reduce; copies are received in place.
    """
    return max(
        (
            sum(
                nbytes_of(receive.chunks, bounds)
                for receive in each.receives
                if receive.combine is not Combine.COPY
            )
            for each in rounds
        ),
        default=0,
    )
