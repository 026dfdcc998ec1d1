"""The model's time of a schedule: closed formulas, hand-made examples, shared links, running ahead."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubletime.collectives.catalogue import ALGORITHMS, FLAT, find
from doubletime.collectives.cost import evaluate, in_step
from doubletime.collectives.model import Link, Parameters, formula_s, lower_bound_s
from doubletime.collectives.schedule import sent
from doubletime.collectives.topology import Topology

NBYTES = 64 * 63 * 5 * 16  # divides evenly among 2, 3, 4, 7, 8, 16, 64 ranks and two segments
# One term of the model at a time, then all.
TERMS = {"alpha": (1, 0, 0), "beta": (0, 1, 0), "gamma": (0, 0, 1), "all": (1e-5, 1e-9, 3e-10)}


def parameters(alpha_s, beta_s, gamma_s):
    link = Link(alpha_s, beta_s)
    return Parameters(link, link, gamma_s)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 16, 20])
@pytest.mark.parametrize("name", FLAT)
def test_the_schedule_costs_what_the_published_formula_says(name, ranks, term):
    algorithm, topology = FLAT[name], Topology.flat(ranks)
    model = parameters(*TERMS[term])
    for collective in algorithm.collectives:
        for segments in (1, 2) if algorithm.is_pipelined else (1,):
            problem = algorithm.problem(collective, topology, segments=segments)
            terms = algorithm.formula(problem, NBYTES)
            published_s = formula_s(terms, topology, model)
            found_s = evaluate(algorithm.schedule(problem), NBYTES, model).time_s
            if all(each.is_exact for each in terms):
                assert found_s == pytest.approx(published_s, rel=1e-9)
            else:
                assert published_s / 3 <= found_s <= published_s * (1 + 1e-9)


# Bytes that the rank sends which sends most, over n, as the papers give them.
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("ring", lambda p: 2 * (p - 1) / p),
        ("pipelined_ring", lambda p: 2 * (p - 1) / p),
        ("halving_doubling", lambda p: 2 * (p - 1) / p),
        ("recursive_doubling", lambda p: p.bit_length() - 1),
        ("binomial_tree", lambda p: p.bit_length() - 1),
        ("linear", lambda p: p - 1),
    ],
)
def test_a_rank_sends_as_many_bytes_as_published(name, factor, ranks):
    algorithm = FLAT[name]
    problem = algorithm.problem("all_reduce", Topology.flat(ranks))
    bounds = problem.bounds(NBYTES)
    most = max(sent(rounds, bounds) for rounds in algorithm.schedule(problem).rounds)
    assert most == factor(ranks) * NBYTES


@pytest.mark.parametrize("ranks", [3, 5, 6, 17])
def test_a_double_tree_sends_each_byte_up_and_down_once(ranks):
    algorithm = FLAT["double_binary_tree"]
    problem = algorithm.problem("all_reduce", Topology.flat(ranks), segments=4)
    bounds = problem.bounds(NBYTES)
    most = max(sent(rounds, bounds) for rounds in algorithm.schedule(problem).rounds)
    # n up as a leaf and an inner rank, n down to two children in half a message.
    assert most <= 2 * NBYTES


def test_the_double_tree_nears_full_bandwidth_where_one_tree_does_not():
    model, topology = parameters(1e-6, 1e-9, 0.0), Topology.flat(32)
    one, two = FLAT["binomial_tree"], FLAT["double_binary_tree"]
    nbytes = 64 << 20
    tree_s = evaluate(one.schedule(one.problem("broadcast", topology)), nbytes, model).time_s
    problem = two.problem("broadcast", topology, segments=64)
    double_s = evaluate(two.schedule(problem), nbytes, model).time_s
    assert tree_s > 4.9 * nbytes * 1e-9
    assert double_s < 1.1 * nbytes * 1e-9


CLUSTER = Parameters(Link(1e-6, 1e-10), Link(5e-5, 8e-9), 1e-10)


@pytest.mark.parametrize(("hosts", "local"), [(2, 2), (4, 2), (3, 4), (4, 1), (1, 4)])
@pytest.mark.parametrize(
    "name", ["two_level:ring+ring", "two_level:binomial_tree+ring", "two_level"]
)
def test_two_levels_cost_at_most_the_sum_of_their_levels(name, hosts, local):
    algorithm, topology = find(name), Topology.even(hosts, local)
    problem = algorithm.problem("all_reduce", topology)
    terms = algorithm.formula(problem, NBYTES)
    found_s = evaluate(algorithm.schedule(problem), NBYTES, CLUSTER).time_s
    published_s = formula_s(terms, topology, CLUSTER)
    assert found_s <= published_s * (1 + 1e-9)
    assert found_s >= lower_bound_s("all_reduce", topology, NBYTES, CLUSTER)
    if all(each.is_exact for each in terms):
        assert found_s == pytest.approx(published_s)


def test_ranks_of_a_host_take_turns_on_its_link():
    # Pairwise exchange among 2 by 2: each rank sends two blocks to the other host, so that a host
    # sends four of n/4, one after the other.
    model = Parameters(Link(0.0, 0.0), Link(0.0, 1.0), 0.0)
    algorithm = find("linear")
    problem = algorithm.problem("all_gather", Topology.even(2, 2))
    assert evaluate(algorithm.schedule(problem), 400, model).time_s == 400
    # On hosts of their own they do not.
    problem = algorithm.problem("all_gather", Topology.flat(4))
    assert evaluate(algorithm.schedule(problem), 400, model).time_s == 300


@pytest.mark.parametrize("names", ["aabbccdd", "abcdabcd", "abdccbad"])
def test_two_levels_beat_a_flat_ring_and_reach_their_bound(names):
    topology, nbytes = Topology.of(names), 16 << 20
    bound_s = lower_bound_s("all_reduce", topology, nbytes, CLUSTER)
    assert bound_s == pytest.approx(2 * 3 / 4 * nbytes * 8e-9)
    times_s = {}
    for name in ("ring", "two_level"):
        algorithm = find(name)
        problem = algorithm.problem("all_reduce", topology)
        times_s[name] = evaluate(algorithm.schedule(problem), nbytes, CLUSTER, itemsize=4).time_s
    assert bound_s / times_s["two_level"] > 0.97
    assert bound_s / times_s["ring"] < 0.86  # 2·7/8 instead of 2·3/4


def test_parts_that_overlap_hide_the_levels_behind_each_other():
    slow_inside = Parameters(Link(1e-6, 4e-9), Link(5e-5, 8e-9), 1e-10)
    algorithm, topology = find("two_level:ring+ring"), Topology.even(4, 2)
    times_s = [
        evaluate(
            algorithm.schedule(algorithm.problem("all_reduce", topology, overlap=overlap)),
            16 << 20,
            slow_inside,
            itemsize=4,
        ).time_s
        for overlap in (1, 8)
    ]
    assert times_s[1] < 0.9 * times_s[0]


def test_rounds_in_flight_hide_latency_and_reductions():
    # 4 hosts, 10 MB, 1 Gbit/s, 10 ms each way: a plain ring waits out six latencies in vain.
    far = Parameters(Link(1e-6, 1e-10), Link(1e-2, 8e-9, overhead_s=5e-6), 1e-9)
    topology, nbytes = Topology.flat(4), 10_000_000
    algorithm = find("pipelined_ring")
    bound_s = lower_bound_s("all_reduce", topology, nbytes, far)
    schedule = algorithm.schedule(algorithm.problem("all_reduce", topology, segments=4))
    one_by_one, ahead = (
        bound_s / evaluate(schedule, nbytes, far, itemsize=4, in_flight=rounds).time_s
        for rounds in (1, 8)
    )
    assert one_by_one < 0.4
    assert ahead > 0.85


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(ALGORITHMS)),
    st.lists(st.integers(0, 3), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 5000),
)
def test_running_ahead_never_goes_below_the_bound(name, names, segments, in_flight, nbytes):
    algorithm, topology = ALGORITHMS[name], Topology.of(names)
    for collective in algorithm.collectives:
        problem = algorithm.problem(collective, topology, segments=segments)
        schedule = algorithm.schedule(problem)
        found = evaluate(schedule, nbytes, CLUSTER, itemsize=4, in_flight=in_flight)
        if nbytes % (4 * topology.ranks) == 0:  # blocks are then alike
            bound_s = lower_bound_s(collective, topology, nbytes, CLUSTER)
            assert found.time_s >= bound_s * (1 - 1e-9)
        assert found.time_s == max(found.ranks_s)
        assert len(found.ranks_s) == topology.ranks
        assert all(0 <= each.start_s <= each.end_s <= found.time_s for each in found.rounds)


def test_each_round_is_told_by_number_and_time():
    algorithm = find("ring")
    problem = algorithm.problem("all_reduce", Topology.flat(4))
    found = evaluate(algorithm.schedule(problem), 400, parameters(1.0, 0.01, 0.02))
    # A block of 100 bytes: 1 s + 1 s to send, 2 s to reduce in the first three rounds.
    assert [each.number for each in found.rounds] == list(range(6))
    assert [each.end_s for each in found.rounds] == pytest.approx([4, 8, 12, 14, 16, 18])
    assert [each.start_s for each in found.rounds] == pytest.approx([0, 4, 8, 12, 14, 16])


def test_a_message_without_elements_takes_no_time():
    algorithm = find("ring")
    schedule = algorithm.schedule(algorithm.problem("all_reduce", Topology.flat(4)))
    found = evaluate(schedule, 0, CLUSTER)
    assert (found.time_s, found.rounds) == (0.0, ())
    # One element: only its chunk travels, so that ranks wait for no one else.
    assert evaluate(schedule, 4, CLUSTER, itemsize=4).time_s == pytest.approx(
        6 * (5e-5 + 4 * 8e-9) + 3 * 4 * 1e-10
    )


@pytest.mark.parametrize(
    ("name", "ranks"), [("ring", 16), ("recursive_doubling", 16), ("halving_doubling", 16)]
)
def test_one_rank_s_view_prices_a_symmetric_schedule(name, ranks):
    algorithm, topology = find(name), Topology.flat(ranks)
    problem = algorithm.problem("all_reduce", topology)
    whole_s = evaluate(algorithm.schedule(problem), NBYTES, CLUSTER).time_s
    mine_s = in_step(algorithm.rounds(problem, 3), 3, topology, problem.bounds(NBYTES), CLUSTER)
    assert mine_s == pytest.approx(whole_s)


def test_one_rank_s_view_prices_thousands_of_ranks():
    algorithm, topology, nbytes = find("halving_doubling"), Topology.flat(4096), 64 << 20
    problem = algorithm.problem("all_reduce", topology)
    mine_s = in_step(algorithm.rounds(problem, 77), 77, topology, problem.bounds(nbytes), CLUSTER)
    published_s = formula_s(algorithm.formula(problem, nbytes), topology, CLUSTER)
    assert mine_s == pytest.approx(published_s)


def test_the_bound_is_that_of_the_host_which_has_most_to_carry():
    model = Parameters(Link(0.0, 1.0), Link(0.0, 1.0), 0.0)
    uneven = Topology.of("aaab")
    # Host a receives the blocks of b; b receives three of four, and gives its one.
    assert lower_bound_s("all_gather", uneven, 400, model) == 300
    assert lower_bound_s("reduce_scatter", uneven, 400, model) == 300
    assert lower_bound_s("all_reduce", uneven, 400, model) == 400
    assert lower_bound_s("all_reduce", Topology.one_host(4), 400, model) == 600
    assert lower_bound_s("all_gather", Topology.one_host(4), 400, model) == 300
    assert lower_bound_s("broadcast", Topology.flat(4), 400, model) == 400
    assert lower_bound_s("reduce", Topology.flat(1), 400, model) == 0
