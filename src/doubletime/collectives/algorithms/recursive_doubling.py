"""Recursive doubling: exchange everything with partners at distance 1, 2, 4 and so on."""

from __future__ import annotations

from collections.abc import Iterator

from doubletime.collectives.algorithm import Algorithm
from doubletime.collectives.algorithms import halving_doubling
from doubletime.collectives.algorithms.folding import Fold
from doubletime.collectives.formula import Terms, lg_down
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


def all_reduce(line: Line, position: int) -> Phase:
    """⌊lg p⌋ rounds, n bytes sent by each rank in each; two rounds more if p is no power of two.

    Both partners put the lower position's value on the left, so they compute the same expression:
    after each round all ranks of a block of 2, 4, 8, … hold the same bits.
    """
    fold = Fold(line.size)
    folded = 1 if fold.surplus else 0
    length = fold.levels + 2 * folded

    def steps() -> Iterator[Step]:
        number = fold.number(position)
        if number is None:
            yield 0, send_to(line, position - 1, line.span)
            yield length - 1, copy_from(line, position - 1, line.span)
            return
        guest = fold.guest(number)
        if guest is not None:
            yield 0, reduce_from(line, position, guest, line.span)
        for level in range(fold.levels):
            partner = fold.position(number ^ 1 << level)
            yield folded + level, send_to(line, partner, line.span)
            yield folded + level, reduce_from(line, position, partner, line.span)
        if guest is not None:
            yield length - 1, send_to(line, guest, line.span)

    return phase(steps(), length)


def formula(problem: Problem, nbytes: float) -> tuple[Terms, ...]:
    """⌊lg p⌋(α + nβ + nγ); no power of two: (⌊lg p⌋ + 1)(α + nβ + nγ) + α + nβ."""
    if problem.collective == "all_gather":
        return halving_doubling.formula(problem, nbytes)
    rounds = lg_down(problem.ranks)
    terms = Terms(rounds, rounds * nbytes, rounds * nbytes)
    if problem.ranks != 1 << rounds:
        terms = terms + Terms(2, 2 * nbytes, nbytes)
    return (terms,)


RECURSIVE_DOUBLING = Algorithm(
    "recursive_doubling",
    SOURCE,
    {"all_reduce": all_reduce, "all_gather": halving_doubling.all_gather},
    formula,
    lambda _collective, _topology, _segments, _overlap: 1,
    "⌊lg p⌋ (+2)",
    "⌊lg p⌋·n (+n)",
)
