"""A model on many ranks: data parallel, with exact means over the global batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from doubletime.training import session


def parallelize(model: nn.Module, **options: Any) -> nn.Module:
    """The model, its gradients averaged over all ranks from now on.

    Every rank begins with rank 0's parameters and buffers. To descend along the mean over the
    global batch when ranks hold different numbers of samples, scale the loss by
    `Batches.weight`.

    Args:
        model: this rank's copy; moved to the session's device.
        options: handed to DistributedDataParallel, such as `find_unused_parameters=True`.

    Returns:
        The model itself where there is one rank only or nothing to train.
    """
    joined = session.current()
    model = model.to(joined.device)
    if joined.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
        return model
    return DistributedDataParallel(model, **options)


def average(value: float | Tensor, count: float = 1) -> float:
    """The mean over all ranks of each rank's mean, weighted by how many samples it is of.

    Args:
        value: this rank's mean, a number or 0-dim tensor; ignored where `count` is 0.
        count: how many samples it is the mean of.

    Returns:
        The mean over all samples; nan if no rank has any.
    """
    total = float(value) * count if count else 0.0
    summed = sum_over_ranks([total, float(count)])
    return summed[0] / summed[1] if summed[1] else float("nan")


def sum_over_ranks(values: list[float]) -> list[float]:
    """Each value's sum over all ranks, in float64."""
    joined = session.current()
    if joined.world_size == 1:
        return values
    summed = torch.tensor(values, dtype=torch.float64, device=joined.device)
    dist.all_reduce(summed)
    return [float(value) for value in summed]


def share_buffers(model: nn.Module) -> None:
    """Give every rank rank 0's buffers, such as the running means of a BatchNorm.

    Each rank's have seen that rank's samples only, so ranks that evaluate a share each would
    otherwise evaluate different models.
    """
    if session.current().world_size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
