"""Fit a straight line α + n·β to times of messages of several sizes n, with 95 % confidence intervals.

It takes the median of each size, which a few disturbed repeats do not move. β is the slope by least
squares: what disturbs a message adds about the same time to small and large ones, so that large ones
tell the rate best. α then is what makes relative errors least: small messages tell it. Intervals are
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
    """α and β of each row of times; neither is below 0."""
    apart = sizes - sizes.mean()
    beta = np.maximum((times * apart).sum(1) / (apart * apart).sum(), 0.0)
    weights = times**-2
    alpha = (weights * (times - beta[:, None] * sizes)).sum(1) / weights.sum(1)
    return np.maximum(alpha, 0.0), beta
