"""Sets of chunks against Python's own sets."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from doubletime.collectives import chunks

SETS = st.sets(st.integers(0, 40))


def ranges(numbers):
    return chunks.join(((number, number + 1),) for number in numbers)


@given(SETS)
def test_join_keeps_members_in_maximal_ranges(numbers):
    joined = ranges(numbers)
    assert list(chunks.members(joined)) == sorted(numbers)
    assert chunks.count(joined) == len(numbers)
    assert all(end < first for (_, end), (first, _) in pairwise(joined))


@given(SETS, st.integers(1, 9))
def test_split_cuts_as_torch_does(numbers, parts):
    cut = chunks.split(ranges(numbers), parts)
    expected = torch.tensor_split(torch.tensor(sorted(numbers), dtype=torch.int64), parts)
    assert [list(chunks.members(part)) for part in cut] == [part.tolist() for part in expected]
    assert chunks.join(cut) == ranges(numbers)


@given(st.integers(0, 50), st.integers(1, 9))
def test_offsets_are_those_of_tensor_split(length, parts):
    lengths = [len(part) for part in torch.tensor_split(torch.zeros(length), parts)]
    assert [chunks.offset(length, parts, index) for index in range(parts + 1)] == [
        sum(lengths[:index]) for index in range(parts + 1)
    ]


@given(SETS, SETS)
def test_overlap_finds_a_common_member(one, other):
    found = chunks.overlap(ranges(one), ranges(other))
    assert found in one & other if one & other else found is None
