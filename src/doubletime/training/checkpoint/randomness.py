"""The random generators of this rank: their state, and putting it back."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from doubletime.training.axes import Axes

_SEEDS_APART = 1_000_003


def capture() -> dict[str, Any]:
    """The state of every generator that a training may draw from: torch's, Python's and numpy's."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Let every generator go on as it would have where `capture` was called."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])


def go_on(
    saved: Sequence[Mapping[str, Any]], mesh: str, axes: Axes, step: int, seed: int = 0
) -> None:
    """Let the generators go on where a checkpoint was made.

    Args:
        saved: what this rank had saved, under "random".
        mesh: that the ranks formed which saved: on another one they are seeded anew, differently but
            where they are to draw alike.
        axes: of the mesh here.
        step: after which it was made, so that no draw comes twice.
        seed: of the run.
    """
    if mesh == str(axes.mesh):
        restore(saved[0]["random"])
    else:
        torch.manual_seed(seed + _SEEDS_APART * step + axes.seed)
