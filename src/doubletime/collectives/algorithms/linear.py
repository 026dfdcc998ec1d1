"""Linear: everyone to the root one after the other, and back; direct exchange between all."""

from __future__ import annotations

from collections.abc import Iterator

from doubletime.collectives.algorithm import Algorithm
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
from doubletime.collectives.schedule import Problem

SOURCE = "Thakur, Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19 (2005) 49-66"


def reduce(line: Line, position: int) -> Phase:
    """Position 0 receives from 1, 2, … in turn: p−1 rounds, n bytes sent by each other rank.

    The result is ((x0 + x1) + x2) + …, and the root never needs more than n bytes of scratch.
    """

    def steps() -> Iterator[Step]:
        if position:
            yield position - 1, send_to(line, 0, line.span)
            return
        for other in range(1, line.size):
            yield other - 1, reduce_from(line, 0, other, line.span)

    return phase(steps(), line.size - 1)


def broadcast(line: Line, position: int) -> Phase:
    """Position 0 sends to 1, 2, … in turn: p−1 rounds, (p−1)·n bytes sent by the root."""

    def steps() -> Iterator[Step]:
        if position:
            yield position - 1, copy_from(line, 0, line.span)
            return
        for other in range(1, line.size):
            yield other - 1, send_to(line, other, line.span)

    return phase(steps(), line.size - 1)


def all_reduce(line: Line, position: int) -> Phase:
    """Reduce to position 0, then broadcast: 2(p−1) rounds, (p−1)·n bytes sent by the root."""
    return reduce(line, position).then(broadcast(line, position))


def reduce_scatter(line: Line, position: int) -> Phase:
    """Pairwise exchange: p−1 rounds, in each one block straight to its owner; (p−1)/p·n sent."""

    def steps() -> Iterator[Step]:
        for step in range(1, line.size):
            to, source = (position + step) % line.size, (position - step) % line.size
            yield step - 1, send_to(line, to, line.blocks[to])
            yield step - 1, reduce_from(line, position, source, line.blocks[position])

    return phase(steps(), line.size - 1)


def all_gather(line: Line, position: int) -> Phase:
    """Pairwise exchange: p−1 rounds, in each the own block to another; (p−1)/p·n sent."""

    def steps() -> Iterator[Step]:
        for step in range(1, line.size):
            to, source = (position + step) % line.size, (position - step) % line.size
            yield step - 1, send_to(line, to, line.blocks[position])
            yield step - 1, copy_from(line, source, line.blocks[source])

    return phase(steps(), line.size - 1)


def formula(problem: Problem, nbytes: float) -> tuple[Terms, ...]:
    """(p−1)(α + nβ + nγ) to reduce, (p−1)(α + nβ) to broadcast; blocks: n/p instead of n."""
    others = problem.ranks - 1
    block = nbytes / problem.ranks
    terms = {
        "reduce": Terms(others, others * nbytes, others * nbytes),
        "broadcast": Terms(others, others * nbytes),
        "reduce_scatter": Terms(others, others * block, others * block),
        "all_gather": Terms(others, others * block),
    }
    terms["all_reduce"] = terms["reduce"] + terms["broadcast"]
    return (terms[problem.collective],)


LINEAR = Algorithm(
    "linear",
    SOURCE,
    {
        "all_reduce": all_reduce,
        "reduce": reduce,
        "broadcast": broadcast,
        "reduce_scatter": reduce_scatter,
        "all_gather": all_gather,
    },
    formula,
    lambda _collective, _topology, _segments, _overlap: 1,
    "2(p−1)",
    "(p−1)·n",
)
