"""Fit a straight line α + n·β to times of messages of several sizes n, with 95 % confidence intervals.

The line goes through the medians of each size, which a few disturbed repeats do not move, and makes
relative errors small: a microsecond counts as much at 10 µs as a millisecond at 10 ms. Intervals are
those of the percentile bootstrap (Efron & Tibshirani, An Introduction to the Bootstrap, 1993, ch. 13)
over the repeats of each size: they tell what noise leaves open. How far times are from any straight
line is told by the residual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from doubletime.collectives.profile import Estimate

_Array = np.ndarray[Any, np.dtype[np.float64]]

_RESAMPLES = 1000
_SEED = 1  # the same samples give the same intervals
_LOW, _HIGH = 0.025, 0.975


@dataclass(frozen=True)
class Fit:
    """A line α + n·β.

    Attributes:
        alpha_s: at n = 0, in seconds; not below 0.
        beta_s_per_byte: its slope; not below 0.
        residual: root of the mean square of the relative errors at the sizes.
    """

    alpha_s: Estimate
    beta_s_per_byte: Estimate
    residual: float


def fit(samples: Mapping[int, Sequence[float]]) -> Fit:
    """The line through the medians.

    Args:
        samples: times in seconds, more than 0, by size in bytes; at least two sizes, each at least
            one time.
    """
    sizes = np.array(sorted(samples), dtype=np.float64)
    rng = np.random.default_rng(_SEED)
    resampled = np.stack([_resampled(rng, samples[int(size)]) for size in sizes], axis=1)
    found = np.array([[typical(samples[int(size)]) for size in sizes]])
    alphas, betas = _lines(sizes, resampled)
    (alpha,), (beta,) = _lines(sizes, found)
    errors = (alpha + beta * sizes) / found[0] - 1
    return Fit(
        _estimate(float(alpha), alphas),
        _estimate(float(beta), betas),
        float(np.sqrt(np.mean(errors**2))),
    )


def typical(samples: Sequence[float]) -> float:
    """The median of at least one time."""
    return float(np.median(samples))


def estimate(samples: Sequence[float]) -> Estimate:
    """The same with its interval."""
    rng = np.random.default_rng(_SEED)
    return _estimate(typical(samples), _resampled(rng, samples))


def _estimate(value: float, resampled: _Array) -> Estimate:
    low, high = np.quantile(resampled, (_LOW, _HIGH))
    return Estimate(value, min(value, float(low)), max(value, float(high)))


def _resampled(rng: np.random.Generator, samples: Sequence[float]) -> _Array:
    values = np.asarray(samples, dtype=np.float64)
    drawn = rng.choice(values, (_RESAMPLES, len(values)))
    return np.asarray(np.median(drawn, axis=1))


def _lines(sizes: _Array, times: _Array) -> tuple[_Array, _Array]:
    """α and β of each row of times, by weighted least squares with neither below 0."""
    unit = sizes.max()
    n, weights = sizes / unit, times**-2
    s0, s1, s2 = weights.sum(1), (weights * n).sum(1), (weights * n * n).sum(1)
    t0, t1 = (1 / times).sum(1), (n / times).sum(1)
    scale = s0 * s2 - s1 * s1
    alpha, beta = (s2 * t0 - s1 * t1) / scale, (s0 * t1 - s1 * t0) / scale
    beta = np.where(alpha < 0, t1 / s2, beta)
    alpha = np.maximum(alpha, 0.0)
    alpha = np.where(beta < 0, t0 / s0, alpha)
    beta = np.maximum(beta, 0.0)
    return alpha, beta / unit
