"""The test data's metrics: every sample counted once, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from doubletime.training import session
from doubletime.training.axes import Axes
from doubletime.training.data import Batches, ShardedSampler, length_of, to_device
from doubletime.training.task import Data

_BATCH = 1000  # samples per rank and batch: large enough to be quick, small in memory


@torch.no_grad()
def evaluate(
    metrics_of: Callable[[Any], Mapping[str, Tensor | float]], data: Data | None, axes: Axes
) -> dict[str, float]:
    """The metrics over the data; all ranks must call it alike.

    Args:
        metrics_of: a batch on this rank's device, each the mean over its samples.
        data: as `Task.test_data` returns it.
        axes: of the mesh that the model is divided by.

    Returns:
        Each metric's mean over all samples; empty without data.
    """
    if data is None or length_of(data) == 0:
        return {}
    device = session.current().device
    sampler = ShardedSampler(
        length_of(data),
        _BATCH * axes.mesh.data_size,
        rank=axes.data_rank,
        world_size=axes.mesh.data_size,
        shuffle=False,
    )
    batches = Batches(data, sampler)
    totals: dict[str, float] = {}
    for batch in batches:
        # A filler is evaluated too, for the metrics' names, and counts nothing.
        for name, value in metrics_of(to_device(batch, device)).items():
            total = float(value) * batches.count if batches.count else 0.0
            totals[name] = totals.get(name, 0.0) + total
    names = sorted(totals)
    summed = axes.sum_over_data([totals[name] for name in names])
    return {name: value / sampler.length for name, value in zip(names, summed, strict=True)}
