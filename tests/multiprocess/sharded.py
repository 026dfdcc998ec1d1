"""Models, tensors, optimizers and checkpoints spread over ranks."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from multiprocess.reference import (
    assert_same,
    global_batch,
    loss_of,
    model,
    train_alone,
    train_in_step,
)

adam = partial(torch.optim.Adam, lr=0.01)


def _sharded(world_size: int, seed: int = 0) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("fsdp",))
    net = model(seed)
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def fully_sharded(rank: int, world_size: int) -> None:
    net = _sharded(world_size)
    train_in_step(net, rank, adam)
    assert_same(net, train_alone(world_size, adam))
    weight = net[0].weight
    assert isinstance(weight, DTensor)
    assert weight.to_local().numel() < weight.numel()


def hybrid_sharded(rank: int, world_size: int) -> None:
    """Sharded on the inner axis, replicated on the outer one."""
    shape = (2, world_size // 2) if world_size % 2 == 0 else (world_size, 1)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "fsdp"))
    net = fully_shard(model(), mesh=mesh)
    train_in_step(net, rank, adam)
    assert_same(net, train_alone(world_size, adam))


def tensors_on_a_mesh(rank: int, world_size: int) -> None:
    """Every way from one layout to another, with sizes that do not divide.

    No rank's part is empty: DTensor's own max() refuses that.
    """
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(5)
    left, right = torch.randn(7, 11).double(), torch.randn(11, 9).double()
    for layout in ([Shard(0)], [Shard(1)], [Replicate()]):
        spread = distribute_tensor(left, mesh, layout)
        for other in ([Shard(0)], [Shard(1)], [Replicate()]):
            torch.testing.assert_close(spread.redistribute(mesh, other).full_tensor(), left)
        product = spread @ distribute_tensor(right, mesh, [Shard(0)])  # partial sums in between
        torch.testing.assert_close(product.full_tensor(), left @ right)
        torch.testing.assert_close(spread.sum().full_tensor(), left.sum())
        assert spread.max().full_tensor() == left.max()


def tensor_parallel_layers(rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",))
    width = 4 * world_size
    net = parallelize_module(
        model(width=width), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    alone = model(width=width)
    inputs, targets = global_batch(0, 2)
    loss, expected = loss_of(net, inputs, targets), loss_of(alone, inputs, targets)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True):
        assert ours.grad is not None
        grad = ours.grad.full_tensor() if isinstance(ours.grad, DTensor) else ours.grad
        torch.testing.assert_close(grad, theirs.grad)


def optimizer_state_shared_out(rank: int, world_size: int) -> None:
    net = DistributedDataParallel(model())
    stepper = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    train_in_step(net, rank, lambda _: stepper)
    assert_same(net, train_alone(world_size, adam))
    stepper.consolidate_state_dict(to=0)
    if rank == 0:
        assert len(stepper.state_dict()["state"]) == len(list(net.parameters()))


def checkpoints(rank: int, world_size: int) -> None:
    """Saved by all ranks, loaded into another model, and read whole by one process."""
    told: list[str | None] = [tempfile.mkdtemp(prefix="checkpoint-") if rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    assert told[0] is not None
    with tempfile.TemporaryDirectory() as own:
        folder = Path(told[0])
        net = _sharded(world_size)
        train_in_step(net, rank, adam, steps=2)
        checkpoint.save({"model": net.state_dict(), "step": 2}, checkpoint_id=folder)
        other = _sharded(world_size, seed=9)
        state = {"model": other.state_dict(), "step": 0}
        checkpoint.load(state, checkpoint_id=folder)
        other.load_state_dict(state["model"])
        assert state["step"] == 2
        expected = train_alone(world_size, adam, steps=2)
        assert_same(other, expected)
        whole = Path(own, "whole.pt")
        dcp_to_torch_save(folder, whole)
        loaded = torch.load(whole, weights_only=True)["model"]
        for name, parameter in expected.named_parameters():
            torch.testing.assert_close(loaded[name], parameter.detach(), rtol=1e-9, atol=1e-11)
    dist.barrier()
    if rank == 0:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


CHECKS = (
    fully_sharded,
    hybrid_sharded,
    tensors_on_a_mesh,
    tensor_parallel_layers,
    optimizer_state_shared_out,
    checkpoints,
)
