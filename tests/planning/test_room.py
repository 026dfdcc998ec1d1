"""Is there memory for what is to be measured?"""

from hypothesis import given
from hypothesis import strategies as st

from doubletime.planning.room import shortage

MEGA = 1 << 20


@given(st.integers(1, 64), st.integers(1, 1 << 40))
def test_ranks_of_a_host_share_its_memory(ranks, nbytes):
    enough = 6 * ranks * nbytes
    assert shortage([("a", enough)] * ranks, nbytes) is None
    assert "host a" in shortage([("a", enough - 1)] * ranks, nbytes)


def test_the_host_that_lacks_it_is_named():
    told = shortage([("a", 100 * MEGA), ("b", 90 * MEGA), ("b", 90 * MEGA)], 8 * MEGA)
    assert told == "messages of 8 MiB take 96 MiB on host b, where 90 MiB are free"
