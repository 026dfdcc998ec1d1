"""Double binary tree: two trees carry half a message each; who forwards in one is a leaf in the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from doubletime.collectives.algorithm import Algorithm
from doubletime.collectives.chunks import Ranges, split
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

SOURCE = "Sanders, Speck & Träff, Parallel Computing 35 (2009) 581-594"


@dataclass(frozen=True)
class Trees:
    """Two trees over positions 1 … p−1, both hung below position 0, and when each edge is used.

    An edge is named by its lower end, so by (tree, position). The first segment goes down it in
    round `first[tree][position]`, segment s in that round + 2s. The parities of these rounds are a
    2-colouring: a position's edges to its parents differ, and so do those to the two children of
    one parent. So in each round a position receives at most one message and sends at most one.

    Attributes:
        parent: of each position in each tree; position 0 has none (−1).
        children: of each position in each tree, ascending.
        first: see above; −1 for position 0.
        depth: how many rounds it takes the first segments to be everywhere.
    """

    parent: tuple[tuple[int, ...], ...]
    children: tuple[tuple[tuple[int, ...], ...], ...]
    first: tuple[tuple[int, ...], ...]
    depth: int


@lru_cache(maxsize=64)
def trees(size: int) -> Trees:
    """The two trees over `size` positions, in O(p)."""
    inner = size - 1
    one = [-1] + [_parent(label, inner) for label in range(1, size)]
    # The second is the first mirrored or shifted by one: either turns even labels, which have
    # children in the first tree, into odd ones, which have none.
    if inner % 2:
        relabel = [0] + [label % inner + 1 for label in range(1, size)]
    else:
        relabel = [0] + [inner + 1 - label for label in range(1, size)]
    other = [-1] * size
    for label in range(1, size):
        other[relabel[label]] = relabel[one[label]]
    parents = (tuple(one), tuple(other))
    children = tuple(_children(parent) for parent in parents)
    colours = _colours(parents, children)
    first = tuple(_first_rounds(children[tree], colours[tree]) for tree in (0, 1))
    return Trees(parents, children, first, 1 + max(max(rounds) for rounds in first))


def _parent(label: int, inner: int) -> int:
    """The parent in the in-order binary tree of 1 … inner: trailing zeros tell the height."""
    bit = label & -label
    above = (label & ~bit) | bit << 1
    if above <= inner:
        return above
    return label - bit  # 0 for the root: it hangs below position 0


def _children(parent: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in parent]
    for position in range(1, len(parent)):
        found[parent[position]].append(position)
    return tuple(tuple(each) for each in found)


def _colours(
    parents: tuple[tuple[int, ...], ...], children: tuple[tuple[tuple[int, ...], ...], ...]
) -> list[list[int]]:
    """0 or 1 for each edge, so that edges which one position would use at once differ.

    Each edge has at most two that it must differ from: that of the same position in the other
    tree, and its sibling's. These two kinds alternate along any path, so cycles are even and
    walking along paths colours all.
    """
    size = len(parents[0])
    colours = [[-1] * size for _ in (0, 1)]
    top = [(0, children[0][0][0])] if size > 1 else []
    for start in [*top, *((0, position) for position in range(1, size))]:
        if colours[start[0]][start[1]] >= 0:
            continue
        colours[start[0]][start[1]] = 0
        walk = [start]
        while walk:
            tree, position = walk.pop()
            for near in _conflicts(parents, children, tree, position):
                if colours[near[0]][near[1]] < 0:
                    colours[near[0]][near[1]] = 1 - colours[tree][position]
                    walk.append(near)
    return colours


def _conflicts(
    parents: tuple[tuple[int, ...], ...],
    children: tuple[tuple[tuple[int, ...], ...], ...],
    tree: int,
    position: int,
) -> Iterator[tuple[int, int]]:
    yield 1 - tree, position
    parent = parents[tree][position]
    if parent == 0:
        yield 1 - tree, children[1 - tree][0][0]
    for sibling in children[tree][parent]:
        if sibling != position:
            yield tree, sibling


def _first_rounds(children: tuple[tuple[int, ...], ...], colours: list[int]) -> tuple[int, ...]:
    """For each edge the earliest round of its colour after that of the edge above it."""
    first = [-1] * len(children)
    walk = [0]
    while walk:
        parent = walk.pop()
        for child in children[parent]:
            at = first[parent] + 1
            first[child] = at if at % 2 == colours[child] else at + 1
            walk.append(child)
    return tuple(first)


def broadcast(line: Line, position: int) -> Phase:
    """At most 2(h+S−1) rounds with h = ⌊lg(p−1)⌋+1 and 2S segments; n bytes sent by a rank."""
    pair = trees(line.size)
    halves = _segments(line)

    def steps() -> Iterator[Step]:
        for tree, segments in enumerate(halves):
            first = pair.first[tree]
            for number, segment in enumerate(segments):
                if position:
                    parent = pair.parent[tree][position]
                    yield first[position] + 2 * number, copy_from(line, parent, segment)
                for child in pair.children[tree][position]:
                    yield first[child] + 2 * number, send_to(line, child, segment)

    return phase(steps(), _length(pair, halves))


def reduce(line: Line, position: int) -> Phase:
    """The edges of `broadcast` upwards, the last first; as many rounds and bytes."""
    pair = trees(line.size)
    halves = _segments(line)

    def steps() -> Iterator[Step]:
        for tree, segments in enumerate(halves):
            first = [pair.depth - 1 - at for at in pair.first[tree]]
            for number, segment in enumerate(segments):
                for child in pair.children[tree][position]:
                    yield first[child] + 2 * number, reduce_from(line, position, child, segment)
                if position:
                    parent = pair.parent[tree][position]
                    yield first[position] + 2 * number, send_to(line, parent, segment)

    return phase(steps(), _length(pair, halves))


def all_reduce(line: Line, position: int) -> Phase:
    """Reduce to position 0, then broadcast: at most 4(h+S−1) rounds, 2n bytes sent by a rank."""
    return reduce(line, position).then(broadcast(line, position))


def _segments(line: Line) -> list[tuple[Ranges, ...]]:
    """The segments of each tree's half of the message."""
    return line.blocks_apart(split(line.span, 2))


def _length(pair: Trees, halves: list[tuple[Ranges, ...]]) -> int:
    return pair.depth + 2 * (len(halves[0]) - 1) if pair.depth else 0


def formula(problem: Problem, nbytes: float) -> tuple[Terms, ...]:
    """At most 2(h+S−1)·(α + n/2S·β), h = ⌊lg(p−1)⌋+1, to reduce n/2S·γ a round more.

    With the best S that is nβ + 2h·α + O(√(h·α·nβ)); all_reduce takes both.
    """
    if problem.ranks == 1:
        return (Terms(0, 0.0),)
    rounds = 2 * (lg_down(problem.ranks - 1) + problem.segments)
    each = rounds * nbytes / (2 * problem.segments)
    down = Terms(rounds, each, is_exact=False)
    up = Terms(rounds, each, each, is_exact=False)
    return ({"reduce": up, "broadcast": down, "all_reduce": up + down}[problem.collective],)


def _chunks(_collective: Collective, _topology: Topology, segments: int, _overlap: int) -> int:
    return 2 * segments


DOUBLE_BINARY_TREE = Algorithm(
    "double_binary_tree",
    SOURCE,
    {"all_reduce": all_reduce, "reduce": reduce, "broadcast": broadcast},
    formula,
    _chunks,
    "≤ 4(⌊lg(p−1)⌋+S)",
    "≤ 2n",
    is_pipelined=True,
)
