"""Is the machine idle enough to measure on?"""

from hypothesis import given
from hypothesis import strategies as st

from doubletime.planning.load import busy_share, warning


def test_share_is_of_all_cores():
    assert 0 <= busy_share(0.05) <= 1


@given(st.floats(0, 0.0999))
def test_idle_machine_needs_no_word(share):
    assert warning(share) is None


@given(st.floats(0.1, 1))
def test_busy_machine_is_told_with_its_share(share):
    assert f"{share:.0%}" in warning(share)
