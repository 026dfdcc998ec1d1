"""Groups: subsets, meshes, barriers, objects within them, and the end and new beginning of all."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from checks.job import TIMEOUT


def a_subset_works_alone(rank: int, world_size: int) -> None:
    members = list(range(1, world_size))
    group = dist.new_group(members)
    if rank == 0:
        assert group == dist.GroupMember.NON_GROUP_MEMBER
        return
    assert dist.get_rank(group) == rank - 1
    assert dist.get_world_size(group) == world_size - 1
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == sum(members)
    dist.broadcast(tensor.fill_(float(rank)), src=members[-1], group=group)
    assert tensor.item() == members[-1]
    objects = [None] * len(members)
    dist.all_gather_object(objects, f"rank {rank}", group=group)
    assert objects == [f"rank {member}" for member in members]
    dist.destroy_process_group(group)


def groups_of_one(rank: int, world_size: int) -> None:
    groups = [dist.new_group([member]) for member in range(world_size)]
    tensor = torch.tensor([3.0])
    dist.all_reduce(tensor, group=groups[rank])
    dist.broadcast(tensor, rank, group=groups[rank])
    dist.barrier(groups[rank])
    assert tensor.item() == 3
    dist.destroy_process_group(groups[rank])


def subgroups_of_equal_size(rank: int, world_size: int) -> None:
    size = 2 if world_size % 2 == 0 else world_size
    mine, groups = dist.new_subgroups(group_size=size)
    assert len(groups) == world_size // size
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mine)
    first = rank // size * size
    assert tensor.item() == sum(range(first, first + size))
    dist.destroy_process_group(mine)


def subgroups_by_enumeration(rank: int, world_size: int) -> None:
    mine, _ = dist.new_subgroups_by_enumeration([[0], list(range(1, world_size))])
    tensor = torch.tensor([1.0])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == (1 if rank == 0 else world_size - 1)
    dist.destroy_process_group(mine)


def a_mesh_splits_the_world(rank: int, world_size: int) -> None:
    shape = (2, world_size // 2) if world_size % 2 == 0 else (1, world_size)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    rows = torch.arange(world_size).view(shape)
    i, j = divmod(rank, shape[1])
    for name, members in (("dp", rows[:, j]), ("tp", rows[i])):
        tensor = torch.tensor([rank])
        dist.all_reduce(tensor, group=mesh[name].get_group())
        assert tensor.item() == members.sum().item()
    flat = mesh._flatten("all")
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=flat.get_group())
    assert tensor.item() == world_size


def groups_may_be_made_and_ended_often(rank: int, world_size: int) -> None:
    """More often than MPI has communicators to lose (MPICH: about 2,000)."""
    for i in range(60):
        group = dist.new_group(list(range(world_size)))
        tensor = torch.tensor([i])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == i * world_size
        dist.destroy_process_group(group)


def a_barrier_waits_for_all(rank: int, world_size: int) -> None:
    dist.barrier()
    started = time.monotonic()
    if rank == world_size - 1:
        time.sleep(0.3)
    dist.barrier()
    assert time.monotonic() - started >= 0.29


def a_monitored_barrier_waits_for_all(rank: int, world_size: int) -> None:
    dist.monitored_barrier()
    started = time.monotonic()
    if rank == world_size - 1:
        time.sleep(0.3)
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    assert rank or time.monotonic() - started >= 0.29  # rank 0 is the one that must have seen all


def a_monitored_barrier_names_who_is_missing(rank: int, world_size: int) -> None:
    group = dist.new_group(list(range(world_size)))
    absent = world_size - 1
    if rank != absent:
        with pytest.raises(RuntimeError, match=r"(?i)monitored_?barrier") as caught:
            dist.monitored_barrier(group, timeout=timedelta(seconds=1), wait_all_ranks=True)
        assert rank or str(absent) in str(caught.value)
    dist.barrier()


def objects_go_everywhere(rank: int, world_size: int) -> None:
    """Of any kind and of lengths that differ from rank to rank."""
    mine = {"rank": rank, "weights": torch.arange(rank * 1000), "text": "x" * rank}

    def same(found: Any, source: int) -> bool:
        return (
            found["rank"] == source
            and torch.equal(found["weights"], torch.arange(source * 1000))
            and found["text"] == "x" * source
        )

    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, mine)
    assert all(same(found, source) for source, found in enumerate(gathered))
    root = world_size - 1
    at_root: list[Any] | None = [None] * world_size if rank == root else None
    dist.gather_object(mine, at_root, dst=root)
    assert at_root is None or all(same(found, source) for source, found in enumerate(at_root))
    for source in range(world_size):
        told = [mine, "second"] if rank == source else [None, None]
        dist.broadcast_object_list(told, src=source)
        assert same(told[0], source)
        assert told[1] == "second"
    received: list[Any] = [None]
    parts = [("part", r, "y" * r * 100) for r in range(world_size)] if rank == root else None
    dist.scatter_object_list(received, parts, src=root)
    assert received[0] == ("part", rank, "y" * rank * 100)


def the_process_says_what_it_is(rank: int, world_size: int) -> None:
    assert dist.is_mpi_available()
    assert dist.is_initialized()
    assert dist.get_backend() == "mpi"
    assert dist.get_rank() == rank
    assert dist.get_world_size() == world_size
    assert dist.get_process_group_ranks(dist.group.WORLD) == list(range(world_size))


def an_end_and_a_new_beginning(rank: int, world_size: int) -> None:
    """Destroy all with groups and work around, then begin again in the same process; twice."""
    for _ in range(2):
        dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1000), async_op=True)
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("mpi", timeout=TIMEOUT)
        assert dist.get_rank() == rank
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == world_size


CHECKS = (
    the_process_says_what_it_is,
    a_subset_works_alone,
    groups_of_one,
    subgroups_of_equal_size,
    subgroups_by_enumeration,
    a_mesh_splits_the_world,
    groups_may_be_made_and_ended_often,
    a_barrier_waits_for_all,
    a_monitored_barrier_waits_for_all,
    objects_go_everywhere,
    an_end_and_a_new_beginning,
    a_monitored_barrier_names_who_is_missing,
)
