"""Fully sharded data parallelism: each rank keeps a part of every parameter, by torch's `fully_shard`."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

_SMALLEST = 1 << 12  # numbers: less is gathered with the whole model's rest, in one message
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Divide the model's parameters among the ranks of a mesh, in place.

    A layer's parameters are gathered when it computes and given up afterwards, so that a rank holds one
    layer's whole parameters at a time, beside its part of all.

    Args:
        model: the same on all ranks.
        mesh: one dim, along which parameters are divided; or two, whose first one's ranks hold the same.

    Returns:
        The model; its parameters are DTensors from now on.
    """
    for unit in units(model):
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def units(model: nn.Module) -> list[nn.Module]:
    """The layers that are gathered each by itself: inner ones first. Pure.

    They are what containers hold, and the model's own children. What is small, and whatever shares a
    parameter with another layer, is gathered with the rest of the model, for the whole step.
    """
    users: dict[int, set[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), set()).add(name)
    shared = {parameter for parameter, names in users.items() if len(names) > 1}

    def is_apart(layer: nn.Module) -> bool:
        count = sum(parameter.numel() for parameter in layer.parameters())
        return count >= _SMALLEST and not any(id(p) in shared for p in layer.parameters())

    return [layer for layer in _layers(model) if is_apart(layer)]


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, _CONTAINERS):
            yield from _layers(child)
        else:
            yield child
