"""What a measurement says of one collective: median, spread and bandwidths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float64]]  # times of calls, in seconds

# How often each byte must move, and whether all p ranks' links share that.
_BUS_FACTORS = {
    "all_reduce": (2, True),
    "reduce_scatter": (1, True),
    "all_gather": (1, True),
    "all_to_all": (1, True),
    "broadcast": (1, False),
    "reduce": (1, False),
}


def bus_factor(collective: str, ranks: int) -> float:
    """What turns algorithm bandwidth into bus bandwidth: 2(p-1)/p for all_reduce.

    Args:
        collective: `all_reduce`, `reduce_scatter`, `all_gather`, `all_to_all`, `broadcast` or
            `reduce`.
        ranks: number of ranks p >= 1.

    Raises:
        KeyError: if the collective is none of these.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Summary".
    """
    sends, is_shared = _BUS_FACTORS[collective]
    return sends * (ranks - 1) / ranks if is_shared else float(sends)


@dataclass(frozen=True)
class Spread:
    """Times of the same work.

    Attributes:
        repeats: how often it was timed.
        median_s, lower_s, upper_s, best_s: median, quartiles and minimum, in seconds.
    """

    repeats: int
    median_s: float
    lower_s: float
    upper_s: float
    best_s: float


def spread(samples_s: Sequence[float] | Samples) -> Spread:
    """What at least one time in seconds amounts to."""
    lower, median, upper = np.quantile(samples_s, (0.25, 0.5, 0.75))
    best = float(np.min(samples_s))
    return Spread(len(samples_s), float(median), float(lower), float(upper), best)


@dataclass(frozen=True)
class Timing:
    """One collective, timed.

    Attributes:
        collective: its name, such as `all_reduce`.
        peer: who carried it out: `mpi`, `gloo` or `raw`.
        nbytes: message size in bytes, the same on every rank.
        ranks: how many took part.
        time: over the repeats, each as long as its slowest rank took.
    """

    collective: str
    peer: str
    nbytes: int
    ranks: int
    time: Spread

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in bytes per second: message size over median time."""
        return self.nbytes / self.time.median_s

    @property
    def busbw(self) -> float:
        """Bus bandwidth in bytes per second: what each rank's link carried at least."""
        return self.algbw * bus_factor(self.collective, self.ranks)

    def record(self) -> dict[str, Any]:
        """The timing as plain data for JSON, with its bandwidths."""
        what = {"collective": self.collective, "peer": self.peer, "nbytes": self.nbytes}
        bandwidths = {"algbw": self.algbw, "busbw": self.busbw}
        return {**what, "ranks": self.ranks, **asdict(self.time), **bandwidths}


@dataclass(frozen=True)
class Advance:
    """How far a run has come.

    Attributes:
        fraction: of the whole run, 0 to 1.
        nbytes: the size being timed, in bytes.
    """

    fraction: float
    nbytes: int
