"""How busy a machine is before anything is measured on it."""

from __future__ import annotations

import psutil

_BUSY = 0.1  # a tenth of the cores: two ranks on two cores begin to feel it


def busy_share(seconds: float) -> float:
    """The share of all cores that programs use over so many seconds, 0 to 1."""
    return float(psutil.cpu_percent(interval=seconds)) / 100


def warning(share: float) -> str | None:
    """What to tell a person before measuring on a machine this busy; None where it is idle."""
    if share < _BUSY:
        return None
    return (
        f"other programs hold {share:.0%} of the cores: figures will be noisy, "
        "and unfair to a peer that sleeps while it waits (gloo)"
    )
