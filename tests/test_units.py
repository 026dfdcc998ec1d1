"""Sizes, times and rates: what is read and shown, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.errors import UnitError
from doubletime.units import (
    format_nbytes,
    format_rate,
    format_seconds,
    parse_nbytes,
    parse_sizes,
    plural,
)


@given(st.integers(0, 1 << 50))
def test_a_plain_number_is_bytes(nbytes):
    assert parse_nbytes(str(nbytes)) == nbytes


@given(
    st.integers(0, 9999),
    st.sampled_from([("", 0), ("K", 10), ("M", 20), ("G", 30), ("T", 40)]),
    st.sampled_from(["", "B", "iB"]),
    st.booleans(),
    st.sampled_from(["", " "]),
)
def test_prefixes_are_powers_of_1024(number, prefix, ending, lower, space):
    letter, power = prefix
    text = f"{number}{space}{letter}{ending if letter or ending == 'B' else ''}"
    assert parse_nbytes(text.lower() if lower else text) == number << power


@given(st.integers(1, 1 << 44))
def test_what_is_shown_reads_back_within_its_four_digits(nbytes):
    assert abs(parse_nbytes(format_nbytes(nbytes)) - nbytes) <= 1 + nbytes * 5e-4


@given(st.integers(0, 30), st.integers(0, 12))
def test_a_range_is_every_power_of_two_within_it(first, count):
    expected = [1 << power for power in range(first, first + count + 1)]
    assert parse_sizes(f"{expected[0]}:{expected[-1]}") == expected


def test_lists_and_ranges_mix():
    assert parse_sizes("4,64K:256K,1M") == [4, 1 << 16, 1 << 17, 1 << 18, 1 << 20]


@pytest.mark.parametrize("text", ["", "K", "-1", "1e6", "4 apples", "1KK", "0x10", "1,5", "NaN"])
def test_what_is_no_size_is_refused_with_a_remedy(text):
    with pytest.raises(UnitError, match="is not a size") as caught:
        parse_nbytes(text)
    assert repr(text) in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["2K:1K", "0", "0:4", "1K:", ":1K", "1,,2"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(UnitError):
        parse_sizes(text)


def test_a_message_of_no_bytes_is_refused():
    with pytest.raises(UnitError, match=r"'0:4': a message of no bytes"):
        parse_sizes("0:4")


@pytest.mark.parametrize(
    ("time_s", "shown"),
    [
        (0.0, "0 µs"),
        (3.2e-6, "3.2 µs"),
        (0.0032, "3.2 ms"),
        (0.5, "500 ms"),
        (1.0, "1 s"),
        (99.94, "99.9 s"),
        (125, "2 min 5 s"),
        (119.7, "2 min 0 s"),
        (7260, "2 h 1 min"),
    ],
)
def test_times_are_shown_with_the_prefix_that_fits(time_s, shown):
    assert format_seconds(time_s) == shown


@pytest.mark.parametrize(
    ("bytes_per_s", "shown"),
    [(0, "0 B/s"), (999, "999 B/s"), (1e3, "1 kB/s"), (1.25e6, "1.25 MB/s"), (12.5e9, "12.5 GB/s")],
)
def test_rates_are_decimal_as_those_of_nccl(bytes_per_s, shown):
    assert format_rate(bytes_per_s) == shown


@given(st.floats(1e-9, 1e15), st.sampled_from([format_seconds, format_rate]))
def test_nothing_is_shown_in_exponents(value, show):
    assert "e+" not in show(value)


def test_counts_are_words_in_the_singular_and_plural():
    assert (plural(1, "rank"), plural(2000, "rank")) == ("1 rank", "2,000 ranks")
