"""What a problem is, how its message is cut, and what ranks send and need."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from doubletime.collectives.catalogue import ALGORITHMS
from doubletime.collectives.schedule import BLOCKED, Problem, Round, Send, scratch, sent
from doubletime.collectives.topology import Topology
from doubletime.errors import ScheduleError


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("all_to_all", 4, 4), "all_to_all"),
        (("all_reduce", 4, 0), "chunks=0"),
        (("reduce", 4, 1, 4), "root 4"),
        (("reduce", 4, 1, -1), "root -1"),
        (("all_reduce", 4, 4, 1), "no root"),
        (("reduce_scatter", 4, 6), "6 chunks"),
        (("all_reduce", 4, 4, 0, 0), "segments=0"),
        (("all_reduce", 4, 4, 0, 1, 0), "overlap=0"),
    ],
)
def test_an_absurd_problem_is_refused_by_name(arguments, word):
    collective, ranks, *rest = arguments
    with pytest.raises(ScheduleError, match=word) as caught:
        Problem(collective, Topology.flat(ranks), *rest)
    assert caught.value.remedy


@given(st.integers(0, 100), st.integers(1, 6), st.integers(1, 5))
def test_chunks_stay_within_their_rank_s_block(elements, ranks, per_rank):
    problem = Problem("all_gather", Topology.flat(ranks), ranks * per_rank)
    bounds = problem.bounds(elements)
    blocks = torch.tensor_split(torch.arange(elements), ranks)
    for rank, block in enumerate(blocks):
        ((first, end),) = problem.block(rank)
        assert bounds[end] - bounds[first] == len(block)
    assert list(bounds) == sorted(bounds)
    assert len(bounds) == problem.chunks + 1


@given(st.integers(0, 100), st.integers(1, 20))
def test_a_message_without_blocks_is_cut_as_torch_cuts(elements, chunks):
    bounds = Problem("all_reduce", Topology.flat(3), chunks).bounds(elements)
    lengths = [stop - start for start, stop in pairwise(bounds)]
    cut = torch.tensor_split(torch.zeros(elements), chunks)
    assert lengths == [len(part) for part in cut]


# Scratch that a rank needs for n = 240 elements over 4 ranks, from what it reduces at once.
@pytest.mark.parametrize(
    ("name", "collective", "most"),
    [
        ("linear", "all_reduce", 240),
        ("binomial_tree", "all_reduce", 240),
        ("recursive_doubling", "all_reduce", 240),
        ("halving_doubling", "all_reduce", 120),
        ("ring", "all_reduce", 60),
        ("pipelined_ring", "all_reduce", 20),
        ("double_binary_tree", "all_reduce", 40),
        ("ring", "all_gather", 0),
        ("linear", "broadcast", 0),
    ],
)
def test_scratch_is_what_the_largest_round_reduces(name, collective, most):
    algorithm = ALGORITHMS[name]
    problem = algorithm.problem(collective, Topology.flat(4), segments=3)
    bounds = problem.bounds(240)
    assert max(scratch(algorithm.rounds(problem, rank), bounds) for rank in range(4)) == most


def test_what_a_rank_sends_is_counted_over_all_its_ranges():
    each = Round(0, (Send(1, ((0, 1), (2, 4))), Send(2, ((4, 5),))), ())
    assert sent([each], (0, 5, 6, 8, 9, 12)) == 5 + 3 + 3


@pytest.mark.parametrize("collective", BLOCKED)
def test_blocks_are_ranks_in_order_of_rank_whatever_the_hosts(collective):
    problem = Problem(collective, Topology.of("abab"), 8)
    assert [problem.block(rank) for rank in range(4)] == [((at, at + 2),) for at in (0, 2, 4, 6)]
