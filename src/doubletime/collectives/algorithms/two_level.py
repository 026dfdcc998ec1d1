"""Two levels: inside each host by one algorithm, between hosts by another, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial, reduce

from doubletime.collectives.algorithm import Algorithm, Build
from doubletime.collectives.chunks import Ranges, count, join, split
from doubletime.collectives.formula import Level, Terms
from doubletime.collectives.line import Line
from doubletime.collectives.phase import NOTHING, Phase
from doubletime.collectives.schedule import BLOCKED, Collective, Problem
from doubletime.collectives.topology import Topology

SOURCE = (
    "the two-level form of Thakur, Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19 "
    "(2005) 49-66, with every rank of a host carrying a slice between hosts"
)


def two_level(name: str, inside: Algorithm, between: Algorithm) -> Algorithm:
    """Compose two algorithms; a collective is defined where both levels define what it takes.

    all_reduce takes from `inside` reduce_scatter and all_gather (all_reduce in the first one's
    place will do), and every rank carries its slice of the message between hosts; where `inside`
    has no all_gather, it takes reduce and broadcast, and the hosts' leaders carry it all.
    """
    near, far = inside.collectives, between.collectives
    found: dict[Collective, Build] = {}
    scatter = near.get("reduce_scatter") or near.get("all_reduce")
    if "all_reduce" in far and scatter and "all_gather" in near:
        found["all_reduce"] = partial(
            _all_reduce_by_slices, scatter, far["all_reduce"], near["all_gather"]
        )
    elif "all_reduce" in far and {"reduce", "broadcast"} <= near.keys():
        found["all_reduce"] = partial(
            _all_reduce_by_leaders, near["reduce"], far["all_reduce"], near["broadcast"]
        )
    if "reduce" in near and "reduce" in far:
        found["reduce"] = partial(_reduce, near["reduce"], far["reduce"])
    if "broadcast" in near and "broadcast" in far:
        found["broadcast"] = partial(_broadcast, near["broadcast"], far["broadcast"])
    if scatter and "reduce_scatter" in far:
        found["reduce_scatter"] = partial(_reduce_scatter, scatter, far["reduce_scatter"])
    if "all_gather" in near and "all_gather" in far:
        found["all_gather"] = partial(_all_gather, near["all_gather"], far["all_gather"])
    return Algorithm(
        name,
        f"{SOURCE}; inside: {inside.source}; between: {between.source}",
        found,
        partial(_formula, inside, between),
        partial(_chunks, inside, between),
        "those of both levels",
        "those of both levels",
        inside.is_pipelined or between.is_pipelined,
    )


def _all_reduce_by_slices(
    scatter: Build, across: Build, gather: Build, line: Line, position: int
) -> Phase:
    """Reduce-scatter inside, all-reduce each slice between hosts, all-gather inside.

    A host sends 2(h−1)/h·n bytes (with a ring between hosts), the least there is.
    """

    def levels(part: Ranges) -> list[Phase]:
        places = _places(line)
        slices = split(part, max(map(len, places)))
        return [
            _inside(scatter, line, position, _slice_owners(places, slices)),
            _between(across, line, position, [split(each, len(places)) for each in slices]),
            _inside(gather, line, position, _slice_owners(places, slices)),
        ]

    return _parts_in_a_row(levels, line)


def _reduce_scatter(scatter: Build, across: Build, line: Line, position: int) -> Phase:
    """Inside hosts, then between; a slice is the blocks of the n-th ranks of all hosts."""
    shares = _blocks_of_slices(line)
    owners = _slice_owners(_places(line), [join(blocks) for blocks in shares])
    within = _inside(scatter, line, position, owners)
    return within.then(_between(across, line, position, shares))


def _all_gather(gather: Build, across: Build, line: Line, position: int) -> Phase:
    """Between hosts, then inside; slices as for `_reduce_scatter`."""
    shares = _blocks_of_slices(line)
    owners = _slice_owners(_places(line), [join(blocks) for blocks in shares])
    afar = _between(across, line, position, shares)
    return afar.then(_inside(gather, line, position, owners))


def _all_reduce_by_leaders(
    collect: Build, across: Build, spread: Build, line: Line, position: int
) -> Phase:
    """Reduce to each host's leader, all-reduce between leaders, broadcast inside."""

    def levels(part: Ranges) -> list[Phase]:
        return [
            _inside(collect, line, position, _evenly(line, part)),
            _leaders(across, line, position, part),
            _inside(spread, line, position, _evenly(line, part)),
        ]

    return _parts_in_a_row(levels, line)


def _reduce(collect: Build, across: Build, line: Line, position: int) -> Phase:
    """To each host's leader, then to the root, which leads its host."""

    def levels(part: Ranges) -> list[Phase]:
        return [
            _inside(collect, line, position, _evenly(line, part)),
            _leaders(across, line, position, part),
        ]

    return _parts_in_a_row(levels, line)


def _broadcast(spread: Build, across: Build, line: Line, position: int) -> Phase:
    """From the root, which leads its host, to each host's leader, then inside."""

    def levels(part: Ranges) -> list[Phase]:
        return [
            _leaders(across, line, position, part),
            _inside(spread, line, position, _evenly(line, part)),
        ]

    return _parts_in_a_row(levels, line)


def _parts_in_a_row(levels: Callable[[Ranges], list[Phase]], line: Line) -> Phase:
    """Each of `line.overlap` parts of the message through all levels, one behind the other.

    A part starts as many rounds after the one before it as the longest level takes, so that no
    level has two parts at once, and one level works while another does.
    """
    parts = [levels(part) for part in split(line.span, line.overlap)]
    delay = max(phase.length for phases in parts for phase in phases)
    whole = NOTHING
    for number, phases in enumerate(parts):
        whole = whole.beside(reduce(Phase.then, phases), number * delay)
    return whole


def _places(line: Line) -> tuple[tuple[int, ...], ...]:
    """The positions on each host, hosts in the order in which the line meets them."""
    found: dict[int, list[int]] = {}
    for position, host in enumerate(line.hosts):
        found.setdefault(host, []).append(position)
    return tuple(tuple(positions) for positions in found.values())


def _slice_owners(
    places: Iterable[Sequence[int]], slices: Sequence[Ranges]
) -> list[tuple[Sequence[int], list[Ranges]]]:
    """Each host's positions, with the slices that each looks after.

    There are as many slices as the largest host has ranks; on a smaller one, some look after more.
    """
    return [
        (positions, [join(slices[local :: len(positions)]) for local in range(len(positions))])
        for positions in places
    ]


def _evenly(line: Line, part: Ranges) -> list[tuple[Sequence[int], list[Ranges]]]:
    """Each host's positions, for a collective that concerns a part of the message as a whole."""
    return [(positions, list(split(part, len(positions)))) for positions in _places(line)]


def _blocks_of_slices(line: Line) -> list[list[Ranges]]:
    """For each n the block of the n-th rank of each host: empty where it has fewer."""
    places = _places(line)
    return [
        [line.blocks[positions[local]] if local < len(positions) else () for positions in places]
        for local in range(max(map(len, places)))
    ]


# Positions and the blocks that they own, once for each way to share a message out: groups that
# share it alike take as many rounds.
_Groups = dict[tuple[int, ...], tuple[Sequence[int], Sequence[Ranges]]]


def _sizes(blocks: Sequence[Ranges]) -> tuple[int, ...]:
    return tuple(map(count, blocks))


def _longest(build: Build, line: Line, groups: _Groups) -> int:
    """How many rounds the group takes that takes most."""
    return max((build(line.pick(*group), 0).length for group in groups.values()), default=0)


def _inside(
    build: Build,
    line: Line,
    position: int,
    hosts: Iterable[tuple[Sequence[int], list[Ranges]]],
) -> Phase:
    """This position's rounds inside its host; as long as the host that takes longest."""
    mine = NOTHING
    others: _Groups = {}
    for positions, blocks in hosts:
        if position in positions:
            mine = build(line.pick(positions, blocks), positions.index(position))
        else:
            others.setdefault(_sizes(blocks), (positions, blocks))
    return Phase(mine.rounds, max(mine.length, _longest(build, line, others)))


def _between(build: Build, line: Line, position: int, shares: Iterable[Sequence[Ranges]]) -> Phase:
    """This position's rounds with its peers on other hosts, all slices at once.

    Args:
        build: what to do between hosts.
        line: all positions.
        position: this one.
        shares: for each slice, the block of it that each host's carrier owns.
    """
    places = _places(line)
    whole = NOTHING
    others: _Groups = {}
    for number, blocks in enumerate(shares):
        carriers = [positions[number % len(positions)] for positions in places]
        if position in carriers:
            group = line.pick(carriers, blocks)
            whole = whole.beside(build(group, carriers.index(position)))
        else:
            others.setdefault(_sizes(blocks), (carriers, blocks))
    return Phase(whole.rounds, max(whole.length, _longest(build, line, others)))


def _leaders(build: Build, line: Line, position: int, part: Ranges) -> Phase:
    """This position's rounds between the first ranks of the hosts."""
    leaders = [positions[0] for positions in _places(line)]
    group = line.pick(leaders, split(part, len(leaders)))
    if position in leaders:
        return build(group, leaders.index(position))
    return Phase((), build(group, 0).length)


def _formula(
    inside: Algorithm, between: Algorithm, problem: Problem, nbytes: float
) -> tuple[Terms, ...]:
    """What the two levels cost one after the other, for hosts with as many ranks each.

    Between hosts, the ranks of one host share its link: the bytes of all of them count there.
    """
    local = max(map(len, problem.topology.members))
    by_slices = "all_gather" in inside.collectives and problem.collective not in (
        "reduce",
        "broadcast",
    )
    lanes = local if by_slices else 1

    def level(algorithm: Algorithm, which: Level, collective: Collective, share: float) -> Terms:
        ranks = local if which == "inside" else problem.topology.host_count
        topology = Topology.flat(ranks)
        asked = Problem(
            collective, topology, ranks if collective in BLOCKED else 1, segments=problem.segments
        )
        (terms,) = algorithm.formula(asked, share)
        shared = lanes if which == "between" else 1
        return replace(
            terms,
            nbytes=terms.nbytes * shared,
            level=which,
            # Ranks that take turns on a link hide each other's latency.
            is_exact=terms.is_exact and shared == 1 and problem.overlap == 1,
        )

    first: Collective = problem.collective
    last: Collective | None = None
    if problem.collective == "all_reduce":
        first, last = ("reduce_scatter", "all_gather") if by_slices else ("reduce", "broadcast")
    if first == "reduce_scatter" and first not in inside.collectives:
        first = "all_reduce"
    terms = [
        level(inside, "inside", first, nbytes),
        level(between, "between", problem.collective, nbytes / lanes),
    ]
    if last is not None:
        terms.append(level(inside, "inside", last, nbytes))
    return tuple(terms)


def _chunks(
    inside: Algorithm,
    between: Algorithm,
    collective: Collective,
    topology: Topology,
    segments: int,
    overlap: int,
) -> int:
    """Enough for both levels to cut evenly."""
    if collective in BLOCKED:
        return segments if inside.is_pipelined or between.is_pipelined else 1
    local = max(map(len, topology.members))
    far = between.chunks(collective, Topology.flat(topology.host_count), segments, 1)
    if collective == "all_reduce" and "all_gather" in inside.collectives:
        return overlap * local * far
    near = max(
        inside.chunks(part, Topology.flat(local), segments, 1)
        for part in ("reduce", "broadcast")
        if part in inside.collectives
    )
    return overlap * max(near, far)
