"""A model on many ranks, divided as a mesh says, with exact means over the global batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn.parallel import DistributedDataParallel

from doubletime.errors import MeshError
from doubletime.training import session
from doubletime.training.axes import Axes, axes_of
from doubletime.training.gradients import GradientAveraging
from doubletime.training.mesh import Mesh
from doubletime.training.sharding import shard
from doubletime.training.tensor_parallel.apply import apply
from doubletime.training.tensor_parallel.derive import derive
from doubletime.training.tensor_parallel.plan import Plan
from doubletime.training.tensor_parallel.written import plan_of, written


def parallelize(
    model: nn.Module,
    mesh: Mesh | str | None = None,
    *,
    tensor_parallel_plan: Plan | Mapping[str, ParallelStyle] | None = None,
    **options: Any,
) -> nn.Module:
    """The model, divided among ranks as the mesh says, its gradients averaged from now on.

    Every rank begins with rank 0's parameters and buffers. To descend along the mean over the
    global batch when ranks hold different numbers of samples, scale the loss by
    `Batches.weight`. Make the optimizer afterwards, over the parameters of what is returned.

    Args:
        model: this rank's copy; moved to the session's device.
        mesh: such as "fsdp=4" or "dp=2,tp=2"; data parallel over all ranks by default.
        tensor_parallel_plan: as `Task.tensor_parallel_plan` gives it, for a mesh with tp; derived by
            default.
        options: handed to DistributedDataParallel, such as `find_unused_parameters=True`.

    Returns:
        The model itself where there is one rank only or nothing to train, or where it is divided in
        place.

    Raises:
        MeshError: if the job's ranks, or the model, cannot take the mesh.
    """
    joined = session.current()
    axes = axes_of(mesh)
    model = model.to(joined.device)
    if joined.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
        return model
    if axes.mesh.is_data_parallel:
        return DistributedDataParallel(model, **options)
    if options:
        raise MeshError(
            f"{', '.join(sorted(options))}: options of DistributedDataParallel, which mesh "
            f'"{axes.mesh}" does not use',
            "leave them out, or take a mesh of dp alone",
        )
    if axes.mesh.pp > 1:
        raise MeshError(
            f'mesh "{axes.mesh}" cuts the model into stages, which have no forward() of their own',
            "let dt.train run it, or leave out pp",
        )
    share_state(model)
    if axes.mesh.tp > 1:
        plan = tensor_parallel_plan
        if not isinstance(plan, Plan):
            plan = plan_of(model, axes.mesh.tp, plan)
        apply(model, axes.sub_mesh("tp"), plan)
    if axes.mesh.fsdp > 1:
        return shard(model, axes.sub_mesh("dp", "fsdp"))
    if axes.mesh.dp > 1:
        GradientAveraging(model, axes.data_group)
    return model


def divide_stages(
    stages: Sequence[nn.Module],
    axes: Axes,
    styles: Mapping[str, ParallelStyle] | None = None,
) -> list[Plan | None]:
    """Divide the layers of stages among the ranks along tp, in place; collective.

    Args:
        stages: of the model, those that are computed here: what one returns, the next one gets whole.
        axes: of the mesh.
        styles: a plan by hand; None to derive one.

    Returns:
        How each was divided; None for one that has no such layer, and so stays whole.

    Raises:
        MeshError: if the plan does not fit a stage.
    """
    size, mesh = axes.mesh.tp, axes.sub_mesh("tp")
    plans: list[Plan | None] = []
    for stage in stages:
        try:
            plan = (
                derive(stage, size)
                if styles is None
                else written(stage, size, styles, is_stage=True)
            )
        except MeshError:
            if styles is not None:
                raise
            plans.append(None)
            continue
        apply(stage, mesh, plan)
        plans.append(plan)
    return plans


def share_state(model: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers; collective."""
    if session.current().world_size == 1:
        return
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), 0)


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


def share_buffers(model: nn.Module, axes: Axes | None = None) -> None:
    """Give ranks with other samples the first one's buffers, such as the running means of a BatchNorm.

    Each rank's have seen that rank's samples only, so ranks that evaluate a share each would
    otherwise evaluate different models.

    Args:
        model: this rank's.
        axes: which ranks those are; all by default.
    """
    axes = axes or axes_of()
    if axes.mesh.data_size == 1:
        return
    for buffer in model.buffers():
        own = buffer.to_local() if isinstance(buffer, DTensor) else buffer
        dist.broadcast(own, axes.data_root, group=axes.data_group)
