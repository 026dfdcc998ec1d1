"""The norm of a gradient that many ranks may hold in parts, and the gradient cut to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from doubletime.training import session


def clip(
    parameters: Iterable[nn.Parameter], norm: float, *, group: dist.ProcessGroup | None = None
) -> float:
    """Scale the gradients down so that their norm, over all parameters together, is at most `norm`.

    To be called on every rank after `backward()`, when gradients are averaged. Right where gradients lie in
    shards on many ranks (DTensors of FSDP or tensor parallel), too.

    Args:
        parameters: this rank's; those without a gradient are left out.
        norm: the largest.
        group: whose ranks hold other parameters of the same model, as stages of a pipeline do.

    Returns:
        The norm before, the same on all ranks; if it is not finite, nothing has changed.
    """
    gradients = gradients_of(parameters)
    total = total_norm(gradients, group)
    if math.isfinite(total) and total > norm:
        multiply(gradients, norm / total)
    return total


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Those that are there."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def multiply(gradients: Sequence[Tensor], factor: float) -> None:
    """Multiply them in place."""
    locals_ = [each.to_local() if isinstance(each, DTensor) else each for each in gradients]
    if locals_:
        torch._foreach_mul_(locals_, factor)


@torch.no_grad()
def total_norm(gradients: Sequence[Tensor], group: dist.ProcessGroup | None = None) -> float:
    """The Euclidean norm over all elements of all of them.

    What is sharded is summed over the ranks that have the shards, each shard once; one message for all
    tensors that are sharded alike.

    Args:
        gradients: plain tensors, alike on all ranks, or DTensors.
        group: whose ranks hold other tensors.
    """
    parts: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
    device = gradients[0].device if gradients else session.current().device
    for gradient in gradients:
        part, groups = _part(gradient)
        parts.setdefault(groups, []).append(part)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for groups, tensors in parts.items():
        norms = torch.stack([each.double() for each in torch._foreach_norm(tensors)])
        square = norms.square().sum()
        for sharers in groups:
            dist.all_reduce(square, group=sharers)
        total += square
    if group is not None and dist.get_world_size(group) > 1:
        dist.all_reduce(total, group=group)
    return math.sqrt(float(total))


def _part(gradient: Tensor) -> tuple[Tensor, tuple[dist.ProcessGroup, ...]]:
    """What of it lies here, and over which groups its shards are spread."""
    if not isinstance(gradient, DTensor):
        return gradient, ()
    if any(isinstance(each, Partial) for each in gradient.placements):
        whole = [Replicate() if isinstance(p, Partial) else p for p in gradient.placements]
        gradient = gradient.redistribute(placements=whole)
    groups = tuple(
        gradient.device_mesh.get_group(axis)
        for axis, placement in enumerate(gradient.placements)
        if not isinstance(placement, Replicate)
    )
    return gradient.to_local(), groups
