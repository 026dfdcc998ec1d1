"""Every algorithm is right, for every rank count: proved on all ranks, with no processes at all."""

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubletime.collectives.catalogue import ALGORITHMS, FLAT, find
from doubletime.collectives.proof import prove
from doubletime.collectives.schedule import BLOCKED, ROOTED, Problem
from doubletime.collectives.topology import Topology


def hosts(ranks, draw):
    """Ranks on a third as many hosts, in no order, not the same number on each."""
    return Topology.of([draw.randrange(1 + ranks // 3) for _ in range(ranks)])


def variants(name, ranks):
    """Problems of all collectives that an algorithm defines, of other hosts, roots and segments."""
    algorithm, draw = ALGORITHMS[name], random.Random(ranks)
    # A schedule of some has about p² messages a segment: many ranks get fewer variants each, and
    # past 32 take turns with the collectives other than all_reduce.
    collectives = ["all_reduce", *(each for each in algorithm.collectives if each != "all_reduce")]
    if ranks > 32 and len(collectives) > 1:
        collectives = ["all_reduce", collectives[1 + ranks % (len(collectives) - 1)]]
    for collective, variant in product(collectives, range(3 if ranks <= 12 else 1)):
        topologies = [hosts(ranks, draw), Topology.flat(ranks), Topology.one_host(ranks)]
        segments = draw.choice([1, 2, 3]) if ranks <= 32 else 1 + ranks % 2
        yield algorithm.problem(
            collective,
            topologies[(ranks + variant) % 3],
            root=draw.randrange(ranks) if collective in ROOTED else 0,
            segments=1 if collective in BLOCKED else segments,
            overlap=draw.choice([1, 2]) if segments == 1 or ranks <= 32 else 1,
        )


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("first", range(1, 65, 16))
def test_every_rank_ends_with_each_contribution_once(first, name):
    for ranks in range(first, first + 16):
        for problem in variants(name, ranks):
            prove(ALGORITHMS[name].schedule(problem))


@st.composite
def problems(draw, most=24):
    """Odd combinations: chunks that fit nothing, fewer than ranks, more segments than chunks."""
    name = draw(st.sampled_from(sorted(ALGORITHMS)))
    if name == "two_level":
        flat = st.sampled_from(sorted(FLAT))
        name = f"two_level:{draw(flat)}+{draw(flat)}"
    algorithm = find(name)
    collectives = sorted(algorithm.collectives)
    if not collectives:
        name, algorithm, collectives = "ring", find("ring"), ["all_reduce"]
    collective = draw(st.sampled_from(collectives))
    names = draw(st.lists(st.integers(0, 6), min_size=1, max_size=most))
    topology = Topology.of(names)
    chunks = draw(st.integers(1, 40))
    if collective in BLOCKED:
        chunks = topology.ranks * draw(st.integers(1, 3))
    root = draw(st.integers(0, topology.ranks - 1)) if collective in ROOTED else 0
    segments, overlap = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    return algorithm, Problem(collective, topology, chunks, root, segments, overlap)


@settings(max_examples=300, deadline=None)
@given(problems())
def test_any_chunks_roots_segments_and_hosts_are_right(asked):
    algorithm, problem = asked
    prove(algorithm.schedule(problem))


@settings(max_examples=100, deadline=None)
@given(problems(most=12), st.data())
def test_one_rank_s_view_is_its_part_of_the_whole(asked, data):
    algorithm, problem = asked
    rank = data.draw(st.integers(0, problem.ranks - 1))
    assert algorithm.rounds(problem, rank) == algorithm.schedule(problem).rounds[rank]


@pytest.mark.parametrize("inside", FLAT)
@pytest.mark.parametrize("between", FLAT)
def test_two_levels_go_together_in_every_combination(inside, between):
    algorithm = find(f"two_level:{inside}+{between}")
    assert "all_reduce" in algorithm.collectives
    for topology in (Topology.even(3, 4), Topology.of("aabcaabcc"), Topology.of("abcabc")):
        for collective in algorithm.collectives:
            problem = algorithm.problem(collective, topology, segments=2, overlap=2)
            prove(algorithm.schedule(problem))


# Rounds of rank 0 of 4,096: what the formulas say, built without the other 4,095 ranks' rounds.
@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("linear", 2 * 4095),
        ("binomial_tree", 24),
        ("recursive_doubling", 12),
        ("halving_doubling", 24),
        ("ring", 2 * 4095),
        ("pipelined_ring", 2 * 4095 * 2),
        ("two_level:ring+ring", 2 * 7 + 2 * 511),
        ("two_level:ring+halving_doubling", 2 * 7 + 18),
    ],
)
def test_one_of_4096_ranks_is_built_alone(name, rounds):
    algorithm = find(name)
    problem = algorithm.problem("all_reduce", Topology.even(512, 8), segments=2)
    assert len(algorithm.rounds(problem, 0)) == rounds


def test_a_rank_of_4096_in_the_double_tree_does_a_handful_of_messages_a_segment():
    algorithm = find("double_binary_tree")
    problem = algorithm.problem("all_reduce", Topology.flat(4096), segments=4)
    for rank in (0, 1, 2047, 2048, 4095):
        rounds = algorithm.rounds(problem, rank)
        # Four segments in each of two trees, up and down; two children at most in one of them.
        assert sum(len(each.sends) for each in rounds) <= 4 * 4
        assert sum(len(each.receives) for each in rounds) <= 4 * 4


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 120))
def test_the_double_tree_uses_each_way_once_a_round(ranks):
    algorithm = find("double_binary_tree")
    for collective in ("reduce", "broadcast"):
        problem = algorithm.problem(collective, Topology.flat(ranks), segments=3)
        for rank in range(ranks):
            for each in algorithm.rounds(problem, rank):
                assert len(each.sends) <= 1
                assert len(each.receives) <= 1


@pytest.mark.parametrize("names", ["abcdabcd", "aabbccdd", "abcddcba", "aaabbcad"])
def test_a_flat_ring_leaves_each_host_once_whatever_the_rank_order(names):
    problem = ALGORITHMS["ring"].problem("all_reduce", Topology.of(names))
    rounds = ALGORITHMS["ring"].schedule(problem).rounds
    leaving = [
        rank
        for rank, mine in enumerate(rounds)
        if any(names[send.peer] != names[rank] for each in mine for send in each.sends)
    ]
    assert len(leaving) == len(set(names))


@pytest.mark.parametrize("names", ["aabbcc", "abcabc", "aaabbc", "abbbcc"])
def test_two_levels_send_the_least_between_hosts(names):
    topology, elements = Topology.of(names), 3600
    problem = ALGORITHMS["two_level"].problem("all_reduce", topology)
    bounds = problem.bounds(elements)
    rounds = ALGORITHMS["two_level"].schedule(problem).rounds
    for host in set(names):
        out = sum(
            bounds[end] - bounds[first]
            for rank, mine in enumerate(rounds)
            if names[rank] == host
            for each in mine
            for send in each.sends
            if names[send.peer] != host
            for first, end in send.chunks
        )
        assert out == 2 * 2 / 3 * elements
