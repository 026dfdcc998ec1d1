"""Binomial tree: half of those that still hold something give it away in each round."""

from __future__ import annotations

from collections.abc import Iterator

from doubletime.collectives.algorithm import Algorithm
from doubletime.collectives.formula import Terms, lg_up
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
    """To position 0 in ⌈lg p⌉ rounds; each other rank sends n bytes, once.

    Near positions meet first, so that each host's sum is complete before it leaves the host.
    """

    def steps() -> Iterator[Step]:
        for level in range(lg_up(line.size)):
            distance = 1 << level
            if position & distance:
                yield level, send_to(line, position - distance, line.span)
                return
            if position + distance < line.size:
                yield level, reduce_from(line, position, position + distance, line.span)

    return phase(steps(), lg_up(line.size))


def broadcast(line: Line, position: int) -> Phase:
    """From position 0 in ⌈lg p⌉ rounds, the way of `reduce` backwards; the root sends ⌈lg p⌉·n."""

    def steps() -> Iterator[Step]:
        last = lg_up(line.size) - 1
        for level in range(last + 1):
            distance = 1 << level
            if position & distance:
                yield last - level, copy_from(line, position - distance, line.span)
                return
            if position + distance < line.size:
                yield last - level, send_to(line, position + distance, line.span)

    return phase(steps(), lg_up(line.size))


def all_reduce(line: Line, position: int) -> Phase:
    """Reduce to position 0, then broadcast: 2⌈lg p⌉ rounds, the root sends ⌈lg p⌉·n bytes."""
    return reduce(line, position).then(broadcast(line, position))


def formula(problem: Problem, nbytes: float) -> tuple[Terms, ...]:
    """⌈lg p⌉(α + nβ + nγ) to reduce, ⌈lg p⌉(α + nβ) to broadcast."""
    rounds = lg_up(problem.ranks)
    terms = {
        "reduce": Terms(rounds, rounds * nbytes, rounds * nbytes),
        "broadcast": Terms(rounds, rounds * nbytes),
    }
    terms["all_reduce"] = terms["reduce"] + terms["broadcast"]
    return (terms[problem.collective],)


BINOMIAL_TREE = Algorithm(
    "binomial_tree",
    SOURCE,
    {"all_reduce": all_reduce, "reduce": reduce, "broadcast": broadcast},
    formula,
    lambda _collective, _topology, _segments, _overlap: 1,
    "2⌈lg p⌉",
    "⌈lg p⌉·n",
)
