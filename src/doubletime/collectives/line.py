"""The ranks as an algorithm sees them: a line of positions, each with a rank, a host and a block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from doubletime.collectives.chunks import Ranges, count, join, split
from doubletime.collectives.schedule import BLOCKED, ROOTED, Problem


@dataclass(frozen=True)
class Line:
    """Who takes part, in the order in which neighbours are near each other.

    An algorithm is written for positions 0 … p−1. It may be given all ranks or, as a level of
    `two_level`, the ranks of one host, or one rank of each host; all of a message or a slice of it.

    Attributes:
        ranks: the rank at each position; a rooted collective's root stands at position 0.
        hosts: the host at each position.
        blocks: the chunks that each position owns: what it is to hold reduced after
            reduce_scatter, and what it gives to all_gather. Together they are the message.
        segments, overlap: as in `Problem`.
    """

    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    blocks: tuple[Ranges, ...]
    segments: int = 1
    overlap: int = 1

    @property
    def size(self) -> int:
        """How many positions there are."""
        return len(self.ranks)

    @cached_property
    def span(self) -> Ranges:
        """The whole message: all blocks together."""
        return join(self.blocks)

    def blocks_apart(self, sets: Iterable[Ranges]) -> list[tuple[Ranges, ...]]:
        """Each set in as many segments as are asked for, or as chunks allow: at least one."""
        sets = list(sets)
        parts = max(1, min(self.segments, max(map(count, sets), default=1)))
        return [split(each, parts) for each in sets]

    def cut(self, span: Ranges) -> Line:
        """The same positions with a message of these chunks, shared out evenly."""
        return Line(self.ranks, self.hosts, split(span, self.size), self.segments, self.overlap)

    def pick(self, positions: Iterable[int], blocks: Iterable[Ranges]) -> Line:
        """Some of the positions, in the order given, as a line of their own with own blocks."""
        chosen = tuple(positions)
        return Line(
            tuple(self.ranks[position] for position in chosen),
            tuple(self.hosts[position] for position in chosen),
            tuple(blocks),
            self.segments,
        )


def lay(problem: Problem) -> Line:
    """All ranks of a problem in host order, the root first where there is one."""
    topology = problem.topology
    ranks = topology.order(problem.root if problem.collective in ROOTED else None)
    if problem.collective in BLOCKED:
        blocks = tuple(problem.block(rank) for rank in ranks)
    else:
        blocks = split(((0, problem.chunks),), problem.ranks)
    hosts = tuple(topology.hosts[rank] for rank in ranks)
    return Line(ranks, hosts, blocks, problem.segments, problem.overlap)
