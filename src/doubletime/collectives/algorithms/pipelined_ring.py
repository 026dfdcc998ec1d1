"""Pipelined ring: a ring in segments, so that one is reduced while the next is on its way."""

from __future__ import annotations

from collections.abc import Iterator

from doubletime.collectives.algorithm import Algorithm
from doubletime.collectives.algorithms import ring
from doubletime.collectives.formula import Terms
from doubletime.collectives.line import Line
from doubletime.collectives.phase import (
    Phase,
    Step,
    copy_from,
    phase,
    reduce_from,
    send_to,
)
from doubletime.collectives.schedule import BLOCKED, Collective, Problem
from doubletime.collectives.topology import Topology

SOURCE = ring.SOURCE


def reduce(line: Line, position: int) -> Phase:
    """Along the chain p−1 → … → 1 → 0: p−2+S rounds, n bytes sent by each rank but the root."""
    (segments,) = line.blocks_apart([line.span])
    last = line.size - 1

    def steps() -> Iterator[Step]:
        for number, segment in enumerate(segments):
            if position < last:
                at = last - 1 - position + number
                yield at, reduce_from(line, position, position + 1, segment)
            if position:
                yield last - position + number, send_to(line, position - 1, segment)

    return phase(steps(), last - 1 + len(segments) if last else 0)


def broadcast(line: Line, position: int) -> Phase:
    """Along the chain 0 → 1 → … → p−1: p−2+S rounds, n bytes sent by each rank but the last."""
    (segments,) = line.blocks_apart([line.span])
    last = line.size - 1

    def steps() -> Iterator[Step]:
        for number, segment in enumerate(segments):
            if position:
                yield position - 1 + number, copy_from(line, position - 1, segment)
            if position < last:
                yield position + number, send_to(line, position + 1, segment)

    return phase(steps(), last - 1 + len(segments) if last else 0)


def formula(problem: Problem, nbytes: float) -> tuple[Terms, ...]:
    """As `ring`, in S segments; the chain: (p−2+S)(α + n/S·β), to reduce n/S·γ a round more."""
    if problem.collective in ("all_reduce", *BLOCKED):
        return ring.formula(problem, nbytes)
    rounds = problem.ranks - 2 + problem.segments if problem.ranks > 1 else 0
    sent = rounds * nbytes / problem.segments
    return (Terms(rounds, sent, sent if problem.collective == "reduce" else 0.0),)


def _chunks(collective: Collective, topology: Topology, segments: int, _overlap: int) -> int:
    return segments * (topology.ranks if collective == "all_reduce" else 1)


PIPELINED_RING = Algorithm(
    "pipelined_ring",
    SOURCE,
    {
        "all_reduce": ring.all_reduce,
        "reduce": reduce,
        "broadcast": broadcast,
        "reduce_scatter": ring.reduce_scatter,
        "all_gather": ring.all_gather,
    },
    formula,
    _chunks,
    "2(p−1)·S",
    "2(p−1)/p·n",
    is_pipelined=True,
)
