"""Styles that torch lacks: convolutions by channels, layers between two divided ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ParallelStyle

from doubletime.training.tensor_parallel.exchange import dropout, enter, gather, total


class ChannelOutputs(ParallelStyle):
    """A convolution of which each rank computes its share of the output channels.

    Args:
        gathered: whether every rank then gets all channels.
    """

    def __init__(self, gathered: bool = False) -> None:
        self.gathered = gathered

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        distribute(module, device_mesh, {"weight": Shard(0), "bias": Shard(0)})
        module.register_forward_pre_hook(lambda _, inputs: (enter(inputs[0], device_mesh),))
        _Parts(module)
        if self.gathered:
            dim = channel_dim(module)
            module.register_forward_hook(lambda _, __, part: gather(part, device_mesh, dim))
        return module


class ChannelInputs(ParallelStyle):
    """A convolution of which each rank takes its share of the input channels; they are summed."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        distribute(module, device_mesh, {"weight": Shard(1)})
        # The bias is added once, to the sum: so each rank's gradient of it is the whole one.
        _Parts(module, without="bias")
        shape = (-1, *(1 for _ in range(-1 - channel_dim(module))))

        def finish(layer: nn.Module, _: Any, part: Tensor) -> Tensor:
            whole, bias = total(part, device_mesh), layer._parameters["bias"]
            return whole if bias is None else whole + bias.view(shape)

        module.register_forward_hook(finish)
        return module


class Features(ParallelStyle):
    """A layer that treats each feature, or each group of channels, by itself.

    Each rank has the parameters and the running statistics of the features that come to it.

    Args:
        groups: the attribute that says how many groups of channels it keeps apart, if it has one.
    """

    def __init__(self, groups: str | None = None) -> None:
        self.groups = groups

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        placements: dict[str, Placement] = {
            # One number for all features gets its gradient from all of them.
            name: Shard(0) if tensor.numel() > 1 else Replicate()
            for name, tensor in tensors.items()
            if tensor.ndim
        }
        distribute(module, device_mesh, placements)
        if self.groups is not None:
            setattr(module, self.groups, getattr(module, self.groups) // device_mesh.size())
        _Parts(module)
        return module


class FeatureDropout(ParallelStyle):
    """A dropout between two divided layers.

    Args:
        dim: the dimension that ranks divide.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.forward = functools.partial(dropout, layer=module, mesh=device_mesh, dim=self.dim)
        return module


def channel_dim(layer: nn.Module) -> int:
    """The dimension of a convolution's channels, from the end: there may be no batch."""
    spatial: tuple[int, ...] = layer.kernel_size  # type: ignore[assignment]
    return -1 - len(spatial)


def distribute(module: nn.Module, mesh: DeviceMesh, placements: Mapping[str, Placement]) -> None:
    """Have the module's own parameters and buffers of these names lie on the mesh.

    Their values are those of the mesh's first rank.
    """
    for name, placement in placements.items():
        tensor = getattr(module, name)
        if tensor is None:
            continue
        spread = distribute_tensor(tensor.detach(), mesh, [placement])
        if isinstance(tensor, nn.Parameter):
            wants_grad = tensor.requires_grad
            module.register_parameter(name, nn.Parameter(spread, requires_grad=wants_grad))
        else:
            module._buffers[name] = spread  # register_buffer would make it persistent


class _Parts:
    """Lets a layer's own forward find this rank's parts where it looks for its tensors.

    Args:
        module: whose.
        without: the name of a parameter that its forward shall not find at all.
    """

    def __init__(self, module: nn.Module, without: str | None = None) -> None:
        self.without = without
        self.hidden: dict[str, Any] = {}
        module.register_forward_pre_hook(self.show)
        module.register_forward_hook(self.restore, always_call=True)

    def show(self, module: nn.Module, _: Any) -> None:
        """Put the parts into place, before forward."""
        parameters: dict[str, Any] = module._parameters
        for name, parameter in parameters.items():
            if name == self.without:
                self._put(parameters, name, None)
            elif isinstance(parameter, DTensor):
                # What all ranks have alike is used for each rank's features: its gradients add up.
                summed = [Partial()] if parameter.placements[0].is_replicate() else None
                part = parameter.to_local(grad_placements=summed)
                self._put(parameters, name, part)
        with torch.no_grad():  # so that to_local gives the buffer itself, to be written to
            for name, buffer in module._buffers.items():
                if isinstance(buffer, DTensor):
                    self._put(module._buffers, name, buffer.to_local())

    def _put(self, tensors: dict[str, Any], name: str, part: Tensor | None) -> None:
        self.hidden[name] = tensors[name]
        tensors[name] = part

    def restore(self, module: nn.Module, *_: Any) -> None:
        """Put the tensors back, after forward, be it one that failed."""
        for tensors in (module._parameters, module._buffers):
            for name in tensors.keys() & self.hidden.keys():
                tensors[name] = self.hidden.pop(name)
