"""Apply a plan to a model: from then on each rank holds its parts and computes with them."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from doubletime.errors import MeshError
from doubletime.training.tensor_parallel.attention import Heads
from doubletime.training.tensor_parallel.layers import CONVOLUTIONS, DROPOUTS
from doubletime.training.tensor_parallel.plan import Plan, Role, Split
from doubletime.training.tensor_parallel.styles import (
    ChannelInputs,
    ChannelOutputs,
    FeatureDropout,
    Features,
)


def apply(model: nn.Module, mesh: DeviceMesh, plan: Plan) -> None:
    """Divide a model in place; every rank of the mesh must call it alike.

    Divided parameters, and running statistics of divided features, become DTensors on the mesh.
    What stays whole stays as it is, with the values of the mesh's first rank, and remains alike on
    all: its gradients are the same on each. Ranks of the mesh must be given the same samples and
    draw the same random numbers.

    Args:
        model: on the device where it computes.
        mesh: of one dimension, with as many ranks as the plan is for.
        plan: as `derive` or `written` made it for a model of the same layers.

    Raises:
        MeshError: if the plan is for another number of ranks or of another model.
    """
    if mesh.ndim != 1 or mesh.size() != plan.size:
        raise MeshError(
            f"a plan for {plan.size} ranks cannot be applied on {mesh.size()}",
            "derive one for as many ranks as the mesh's tp axis has",
        )
    modules = dict(model.named_modules())
    if missing := [split.module for split in plan.splits if split.module not in modules]:
        raise MeshError(
            f"the plan divides {missing[0]!r}, which the model does not have",
            "derive the plan from a model of the same layers",
        )
    if plan.size == 1:
        return
    for split in plan.splits:
        style = plan.written.get(split.module) or _style(modules[split.module], split)
        layer = modules[split.module]
        parallelize_module(layer, mesh, style)
        if split.part.ndim is not None:
            expected = functools.partial(_expect_dimensions, split.part.ndim)
            layer.register_forward_pre_hook(expected, prepend=True)
    for layer in modules.values():
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False  # torch's fused layers alone could take these
    _agree(model, mesh)


def _style(layer: nn.Module, split: Split) -> ParallelStyle:
    """How torch, or we, do what the plan says."""
    is_convolution = type(layer) in CONVOLUTIONS
    match split.part.role:
        case Role.OUTPUTS:
            return ChannelOutputs() if is_convolution else ColwiseParallel()
        case Role.GATHERED if is_convolution:
            return ChannelOutputs(gathered=True)
        case Role.GATHERED:
            return ColwiseParallel(output_layouts=Replicate())
        case Role.INPUTS:
            return ChannelInputs() if is_convolution else RowwiseParallel()
        case Role.HEADS:
            return Heads()
        case _:
            return _features_style(layer, split.part.dim)


def _features_style(layer: nn.Module, dim: int) -> ParallelStyle:
    if type(layer) in DROPOUTS:
        return FeatureDropout(dim)
    if type(layer) in CONVOLUTIONS:
        return Features(groups="groups")
    if isinstance(layer, nn.GroupNorm):
        return Features(groups="num_groups")
    return Features()


def _expect_dimensions(ndim: int, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Raise where the plan takes the features for another dimension than the layer does."""
    if inputs[0].ndim != ndim:
        raise MeshError(
            f"a {type(layer).__name__} got an input of {inputs[0].ndim} dimensions, and ranks divide "
            f"its features as of one of {ndim}",
            "give the task a tensor_parallel_plan(), or leave tp out of the mesh",
        )


@torch.no_grad()
def _agree(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give every rank the first rank's values of what stays whole."""
    group = mesh.get_group()
    for tensor in (*model.parameters(), *model.buffers()):
        if not isinstance(tensor, DTensor):
            dist.broadcast(tensor, group=group, group_src=0)
