"""Lines fitted to times whose α and β are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from doubletime.planning.fit import estimate, fit

SIZES = (8, 1 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20)
latencies = floats(1e-6, 1e-2)
slopes = floats(1e-11, 1e-7)


def times(alpha, beta, *, noise=0.0, repeats=15, seed=0, disturbed=0):
    """Repeats per size, each longer by an exponential share; `disturbed` of them very much so."""
    rng = np.random.default_rng(seed)
    found = {}
    for size in SIZES:
        values = (alpha + beta * size) * (1 + noise * rng.standard_normal(repeats))
        values[:disturbed] *= 20
        found[size] = list(values)
    return found


@given(alpha=latencies, beta=slopes)
def test_exact_times_give_the_exact_line(alpha, beta):
    line = fit(times(alpha, beta))
    assert line.beta_s_per_byte.value == pytest.approx(beta, rel=1e-6)
    # Where bytes take 10,000 times as long as the rest, rounding is all that is left of α.
    assert line.alpha_s.value == pytest.approx(alpha, rel=1e-6, abs=1e-9 * beta * max(SIZES))
    assert line.residual < 1e-6


@settings(max_examples=50)
@given(alpha=latencies, beta=slopes, seed=integers(0, 2**32), disturbed=integers(0, 5))
def test_noise_and_disturbed_repeats_move_the_line_little(alpha, beta, seed, disturbed):
    line = fit(times(alpha, beta, noise=0.02, seed=seed, disturbed=disturbed))
    whole = alpha + beta * max(SIZES)
    for size in SIZES:
        fitted = line.alpha_s.value + line.beta_s_per_byte.value * size
        assert fitted == pytest.approx(
            alpha + beta * size, rel=0.06, abs=0.05 * whole * size / 2**20
        )
    assert line.residual < 0.2 or alpha < 0.01 * whole or beta * 2**20 < 0.1 * alpha


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    held = np.zeros(2)
    for seed in range(200):
        line = fit(times(50e-6, 8e-9, noise=0.1, repeats=25, seed=seed))
        for which, found, truth in ((0, line.alpha_s, 50e-6), (1, line.beta_s_per_byte, 8e-9)):
            assert found.low <= found.value <= found.high
            held[which] += found.low <= truth <= found.high
    assert (held / 200 > 0.88).all()


def test_the_same_samples_give_the_same_line():
    samples = times(50e-6, 8e-9, noise=0.1)
    assert fit(samples) == fit(samples)


def test_what_no_line_fits_shows_in_the_residual():
    samples = times(50e-6, 8e-9)
    samples[512 << 10] = [value * 2 for value in samples[512 << 10]]
    assert fit(samples).residual > 0.1


@given(slope=floats(-1e-7, -1e-12))
def test_neither_latency_nor_slope_is_negative(slope):
    falling = fit({8: [1e-3], 1 << 20: [1e-3 * (1 + slope)]})
    assert falling.beta_s_per_byte.value == 0
    steep = fit({1 << 10: [1e-6], 1 << 20: [1.0]})
    assert steep.alpha_s.value >= 0


def test_an_estimate_of_one_size_is_its_median():
    found = estimate([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.value == 3.0
    assert found.low < 3.0 < found.high
