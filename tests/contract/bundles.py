"""Many tensors in one call, and collectives as functions, with gradients too."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable


def coalesced_all_reduces(rank: int, world_size: int) -> None:
    for asynchronous in (False, True):
        tensors = [torch.full((size,), float(rank + size)) for size in (1, 7, 0, 400_001)]
        with dist._coalescing_manager(async_ops=asynchronous) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if asynchronous:
            manager.wait()
        for tensor in tensors:
            assert (tensor == sum(range(world_size)) + world_size * len(tensor)).all()


def coalesced_all_gathers(rank: int, world_size: int) -> None:
    outputs = [torch.zeros(world_size * size) for size in (1, 7, 100_003)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output in outputs:
            mine = torch.full((len(output) // world_size,), float(rank))
            dist.all_gather_into_tensor(output, mine)
    manager.wait()
    for output in outputs:
        for r, chunk in enumerate(output.chunk(world_size)):
            assert (chunk == r).all()


def coalesced_reduce_scatters(rank: int, world_size: int) -> None:
    outputs = [torch.zeros(size) for size in (1, 7, 100_003)]
    with dist._coalescing_manager() as _:
        for output in outputs:
            whole = torch.cat([torch.full((len(output),), float(r)) for r in range(world_size)])
            dist.reduce_scatter_tensor(output, whole)
    for output in outputs:
        assert (output == rank * world_size).all()


def coalesced_on_a_device(rank: int, world_size: int) -> None:
    """The older way, in which each call reaches the group between a start and an end."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    tensors = [torch.full((5,), float(rank)) for _ in range(3)]
    received = torch.zeros(3)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.isend(torch.full((3,), float(rank)), right)
        dist.irecv(received, left)
    manager.wait()
    assert (received == left).all()
    for tensor in tensors:
        dist.all_reduce(tensor)
        assert (tensor == sum(range(world_size))).all()


def functions_on_tensors(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    mine = torch.full((world_size, 2), float(rank))
    total = float(sum(range(world_size)))
    summed = functional.all_reduce(mine, "sum", group)
    assert (summed == total).all()
    assert (mine == rank).all()  # the input is left alone
    assert (functional.all_reduce(mine, "avg", group) == total / world_size).all()
    gathered = functional.all_gather_tensor(mine, gather_dim=0, group=group)
    assert gathered[:, 0].tolist() == [float(r) for r in range(world_size) for _ in mine]
    gathered = functional.all_gather_tensor(mine, gather_dim=1, group=group)
    assert gathered[0].tolist() == [float(r) for r in range(world_size) for _ in range(2)]
    scattered = functional.reduce_scatter_tensor(mine, "sum", scatter_dim=0, group=group)
    assert scattered.tolist() == [[total, total]]
    exchanged = functional.all_to_all_single(mine, None, None, group)
    assert exchanged[:, 0].tolist() == list(range(world_size))
    assert (functional.broadcast(mine, world_size - 1, group) == world_size - 1).all()
    for tensor in functional.all_reduce_coalesced([mine, mine * 2], "max", group):
        assert tensor.max() in (world_size - 1, 2 * (world_size - 1))


def functions_with_uneven_splits(rank: int, world_size: int) -> None:
    sent = torch.cat([torch.full((r + 1,), float(rank)) for r in range(world_size)])
    received = functional.all_to_all_single(
        sent, [rank + 1] * world_size, [r + 1 for r in range(world_size)], dist.group.WORLD
    )
    assert received.tolist() == [float(r) for r in range(world_size) for _ in range(rank + 1)]


def functions_with_gradients(rank: int, world_size: int) -> None:
    weight = torch.full((3,), float(rank + 1), requires_grad=True)
    total = differentiable.all_reduce(weight * 2)
    (total * (rank + 1)).sum().backward()
    # d/dw of every rank's loss, summed: 2 · Σ (r + 1)
    expected = 2 * sum(range(1, world_size + 1))
    assert weight.grad is not None
    assert weight.grad.tolist() == [expected] * 3
    weight.grad = None
    parts = differentiable.all_gather(weight)
    sum((part * (r + 1)).sum() for r, part in enumerate(parts)).backward()
    assert weight.grad.tolist() == [(rank + 1) * world_size] * 3


CHECKS = (
    coalesced_all_reduces,
    coalesced_all_gathers,
    coalesced_reduce_scatters,
    coalesced_on_a_device,
    functions_on_tensors,
    functions_with_uneven_splits,
    functions_with_gradients,
)
