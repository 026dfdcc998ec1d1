"""Bandwidths and spreads against published figures."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.planning.timing import Timing, bus_factor, spread

# The "Summary" of NVIDIA/nccl-tests doc/PERFORMANCE.md, worked out by hand.
PUBLISHED = [
    ("all_reduce", 2, 1.0),
    ("all_reduce", 8, 1.75),
    ("all_reduce", 16, 1.875),
    ("reduce_scatter", 8, 0.875),
    ("all_gather", 4, 0.75),
    ("all_to_all", 2, 0.5),
    ("broadcast", 8, 1.0),
    ("reduce", 3, 1.0),
]


@pytest.mark.parametrize(("collective", "ranks", "factor"), PUBLISHED)
def test_bus_factor_is_that_of_nccl(collective, ranks, factor):
    assert bus_factor(collective, ranks) == factor


def test_unknown_collective_has_no_bus_factor():
    with pytest.raises(KeyError, match="scan"):
        bus_factor("scan", 2)


@given(st.integers(1, 1 << 16))
def test_all_reduce_is_reduce_scatter_then_all_gather(ranks):
    parts = bus_factor("reduce_scatter", ranks) + bus_factor("all_gather", ranks)
    assert bus_factor("all_reduce", ranks) == pytest.approx(parts)
    assert 0 <= bus_factor("all_reduce", ranks) < 2


@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=60), st.integers(1, 1 << 34))
def test_spread_orders_its_quantiles_and_bandwidths_follow_the_median(samples, nbytes):
    time = spread(samples)
    assert time.repeats == len(samples)
    assert time.best_s == min(samples)
    assert time.best_s <= time.lower_s <= time.median_s <= time.upper_s <= max(samples)
    assert time.median_s == pytest.approx(statistics.median(samples))
    timing = Timing("all_reduce", "mpi", nbytes, 4, time)
    assert timing.algbw * time.median_s == pytest.approx(nbytes)
    assert timing.busbw == pytest.approx(1.5 * timing.algbw)


def test_record_is_flat_and_names_its_units():
    timing = Timing("all_reduce", "gloo", 1000, 2, spread([0.5, 1.0, 1.5]))
    assert timing.record() == {
        "collective": "all_reduce",
        "peer": "gloo",
        "nbytes": 1000,
        "ranks": 2,
        "repeats": 3,
        "median_s": 1.0,
        "lower_s": 0.75,
        "upper_s": 1.25,
        "best_s": 0.5,
        "algbw": 1000.0,
        "busbw": 1000.0,
    }
