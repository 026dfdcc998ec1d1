"""Recursive halving-doubling (Rabenseifner): halve what is reduced each round, then gather it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from doubletime.collectives.algorithm import Algorithm
from doubletime.collectives.algorithms.folding import Fold
from doubletime.collectives.chunks import Ranges, join, split
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
from doubletime.collectives.schedule import Collective, Problem
from doubletime.collectives.topology import Topology

SOURCE = (
    "Rabenseifner, ICCS 2004, LNCS 3036, 1-9; "
    "Thakur, Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19 (2005) 49-66"
)


def all_reduce(line: Line, position: int) -> Phase:
    """Reduce-scatter by halving, all-gather by doubling: 2·lg p rounds, 2(p−1)/p·n bytes sent.

    No power of two: two rounds and up to 2n bytes more, by the fold.
    """
    fold = Fold(line.size)
    shares = split(line.span, fold.core)
    folded = _folded(line, fold, position, line.span)
    halved = _halve(line, fold, position, shares)
    doubled = _double(line, fold, position, shares)
    return folded.then(halved).then(doubled).then(_unfolded(line, fold, position, line.span))


def reduce_scatter(line: Line, position: int) -> Phase:
    """⌊lg p⌋ rounds, (p−1)/p·n bytes sent; no power of two: the fold's n and 1/p·n more."""
    fold = Fold(line.size)
    shares = _shares(line, fold)
    back = line.blocks[position if position % 2 else min(position + 1, line.size - 1)]
    return (
        _folded(line, fold, position, line.span)
        .then(_halve(line, fold, position, shares))
        .then(_unfolded(line, fold, position, back))
    )


def all_gather(line: Line, position: int) -> Phase:
    """⌊lg p⌋ rounds, (p−1)/p·n bytes sent; no power of two: the fold's 1/p·n and (p−1)/p·n more."""
    fold = Fold(line.size)
    guest = position if position % 2 else min(position + 1, line.size - 1)
    others = join(block for owner, block in enumerate(line.blocks) if owner != guest)
    return (
        _folded(line, fold, position, line.blocks[guest], reduces=False)
        .then(_double(line, fold, position, _shares(line, fold)))
        .then(_unfolded(line, fold, position, others))
    )


def _shares(line: Line, fold: Fold) -> tuple[Ranges, ...]:
    """What each member of the core looks after: its own block and its guest's."""
    found = []
    for number in range(fold.core):
        guest = fold.guest(number)
        blocks = [line.blocks[fold.position(number)]]
        found.append(join(blocks if guest is None else [*blocks, line.blocks[guest]]))
    return tuple(found)


def _folded(
    line: Line, fold: Fold, position: int, chunks: Ranges, *, reduces: bool = True
) -> Phase:
    """Surplus positions hand `chunks` to their neighbour."""
    number = fold.number(position)
    if number is None:
        steps: list[Step] = [(0, send_to(line, position - 1, chunks))]
    elif (guest := fold.guest(number)) is None:
        steps = []
    elif reduces:
        steps = [(0, reduce_from(line, position, guest, chunks))]
    else:
        steps = [(0, copy_from(line, guest, chunks))]
    return phase(steps, 1 if fold.surplus else 0)


def _unfolded(line: Line, fold: Fold, position: int, chunks: Ranges) -> Phase:
    """Surplus positions get `chunks` from their neighbour."""
    number = fold.number(position)
    if number is None:
        steps: list[Step] = [(0, copy_from(line, position - 1, chunks))]
    elif (guest := fold.guest(number)) is None:
        steps = []
    else:
        steps = [(0, send_to(line, guest, chunks))]
    return phase(steps, 1 if fold.surplus else 0)


def _halve(line: Line, fold: Fold, position: int, shares: Sequence[Ranges]) -> Phase:
    """Partners at distance core/2, core/4, … 1 each keep the half of the window they are in."""

    def steps(number: int) -> Iterator[Step]:
        for level in reversed(range(fold.levels)):
            partner = number ^ 1 << level
            other, at = fold.position(partner), fold.levels - 1 - level
            yield at, send_to(line, other, _window(shares, partner, level))
            yield at, reduce_from(line, position, other, _window(shares, number, level))

    number = fold.number(position)
    return phase(() if number is None else steps(number), fold.levels)


def _double(line: Line, fold: Fold, position: int, shares: Sequence[Ranges]) -> Phase:
    """Partners at distance 1, 2, … core/2 give each other all that they have."""

    def steps(number: int) -> Iterator[Step]:
        for level in range(fold.levels):
            partner = number ^ 1 << level
            other = fold.position(partner)
            yield level, send_to(line, other, _window(shares, number, level))
            yield level, copy_from(line, other, _window(shares, partner, level))

    number = fold.number(position)
    return phase(() if number is None else steps(number), fold.levels)


def _window(shares: Sequence[Ranges], number: int, level: int) -> Ranges:
    """The shares of the aligned 2^level members of the core around `number`."""
    first = number >> level << level
    return join(shares[first : first + (1 << level)])


def formula(problem: Problem, nbytes: float) -> tuple[Terms, ...]:
    """2·⌊lg p⌋α + 2(p−1)/p·nβ + (p−1)/p·nγ; one half of it for reduce_scatter and all_gather.

    No power of two, with p' = 2^⌊lg p⌋: p' for p, and 2α + 2nβ + nγ more. In reduce_scatter and
    all_gather p−p' of the core's members then look after two blocks, so that partners at distance
    d exchange up to d + min(d, p−p') blocks of n/p; the fold adds n and n/p, n/p and (p−1)/p·n.
    """
    ranks, levels = problem.ranks, lg_down(problem.ranks)
    core = 1 << levels
    surplus = ranks - core
    if problem.collective == "all_reduce":
        part = (core - 1) / core * nbytes
        terms = Terms(2 * levels, 2 * part, part)
        return (terms + Terms(2, 2 * nbytes, nbytes) if surplus else terms,)
    block = nbytes / ranks
    part = sum((1 << level) + min(1 << level, surplus) for level in range(levels)) * block
    if problem.collective == "reduce_scatter":
        terms = Terms(levels, part, part)
        return (terms + Terms(2, nbytes + block, nbytes) if surplus else terms,)
    terms = Terms(levels, part)
    return (terms + Terms(2, nbytes) if surplus else terms,)


def _chunks(collective: Collective, topology: Topology, _segments: int, _overlap: int) -> int:
    return 1 << lg_down(topology.ranks) if collective == "all_reduce" else 1


HALVING_DOUBLING = Algorithm(
    "halving_doubling",
    SOURCE,
    {"all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather},
    formula,
    _chunks,
    "2⌊lg p⌋ (+2)",
    "2(p−1)/p·n (+n)",
)
