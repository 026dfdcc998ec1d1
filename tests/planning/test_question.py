"""What a benchmark may be asked, and what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.errors import LaunchError, UnitError
from doubletime.planning.question import RIVALS, parse_float32_sizes, parse_rivals


@given(st.lists(st.sampled_from(RIVALS), max_size=5))
def test_rivals_are_read_once_each_in_the_given_order(names):
    assert parse_rivals(" , ".join(names)) == tuple(dict.fromkeys(names))


def test_unknown_rival_is_refused_with_the_known_ones():
    with pytest.raises(LaunchError, match="'nccl'") as refused:
        parse_rivals("gloo,nccl")
    assert "--against gloo,raw" in str(refused.value)


def test_sizes_are_bytes_by_powers_of_two():
    assert parse_float32_sizes("4:32,1K") == [4, 8, 16, 32, 1024]


@pytest.mark.parametrize("text", ["", "4:", "5", "2", "0", "64M:4", "four", "4,6"])
def test_size_that_no_float32_tensor_has_is_refused(text):
    with pytest.raises(UnitError) as refused:
        parse_float32_sizes(text)
    assert refused.value.remedy
