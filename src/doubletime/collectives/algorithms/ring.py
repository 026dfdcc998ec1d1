"""Ring: each rank talks to its two neighbours only, and all links carry the same at all times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from doubletime.collectives.algorithm import Algorithm
from doubletime.collectives.formula import Terms
from doubletime.collectives.line import Line
from doubletime.collectives.phase import Phase, Step, phase, send_to
from doubletime.collectives.schedule import Collective, Combine, Problem, Receive
from doubletime.collectives.topology import Topology

SOURCE = "Patarasuk & Yuan, J. Parallel Distrib. Comput. 69 (2009) 117-124"


def reduce_scatter(line: Line, position: int) -> Phase:
    """p−1 rounds, (p−1)/p·n bytes sent: block b starts at position b+1 and is summed on its way.

    With segments, each round becomes one round per segment of the block.
    """
    return _circle(line, position, position - 1, Combine.RECEIVED_LEFT)


def all_gather(line: Line, position: int) -> Phase:
    """p−1 rounds, (p−1)/p·n bytes sent: each position passes on what it received last."""
    return _circle(line, position, position, Combine.COPY)


def all_reduce(line: Line, position: int) -> Phase:
    """Reduce-scatter, then all-gather: 2(p−1) rounds, 2(p−1)/p·n bytes sent by each rank."""
    even = line.cut(line.span)
    return reduce_scatter(even, position).then(all_gather(even, position))


def _circle(line: Line, position: int, first: int, combine: Combine) -> Phase:
    """In step k send block `first` − k to the next position, receive the one before it."""
    size = line.size
    blocks = line.blocks_apart(line.blocks)
    segments = len(blocks[0])
    after, before = (position + 1) % size, (position - 1) % size

    def steps() -> Iterator[Step]:
        for step in range(size - 1):
            out, into = blocks[(first - step) % size], blocks[(first - step - 1) % size]
            for segment in range(segments):
                at = step * segments + segment
                yield at, send_to(line, after, out[segment])
                yield at, Receive(line.ranks[before], into[segment], combine)

    return phase(steps(), (size - 1) * segments)


def formula(problem: Problem, nbytes: float) -> tuple[Terms, ...]:
    """2(p−1)α + 2(p−1)/p·nβ + (p−1)/p·nγ; one half of it for reduce_scatter and all_gather.

    In S segments 2(p−1)·S·α, for ranks that go through their rounds in step.
    """
    rounds = (problem.ranks - 1) * problem.segments
    part = (problem.ranks - 1) / problem.ranks * nbytes
    terms = {"reduce_scatter": Terms(rounds, part, part), "all_gather": Terms(rounds, part)}
    terms["all_reduce"] = terms["reduce_scatter"] + terms["all_gather"]
    return (terms[problem.collective],)


def _whole(line: Line) -> Line:
    return replace(line, segments=1)


def _chunks(collective: Collective, topology: Topology, _segments: int, _overlap: int) -> int:
    return topology.ranks if collective == "all_reduce" else 1


RING = Algorithm(
    "ring",
    SOURCE,
    {
        "all_reduce": lambda line, position: all_reduce(_whole(line), position),
        "reduce_scatter": lambda line, position: reduce_scatter(_whole(line), position),
        "all_gather": lambda line, position: all_gather(_whole(line), position),
    },
    lambda problem, nbytes: formula(replace(problem, segments=1), nbytes),
    _chunks,
    "2(p−1)",
    "2(p−1)/p·n",
)
