"""What is asked of every reduction algorithm beyond the table."""

from __future__ import annotations

import torch
import torch.distributed as dist

import doubletime as dt


def half_types_add_up_no_worse_than_the_native(algorithm: str, rank: int, world_size: int) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        for size in (1000, 300_001):
            parts = [
                torch.randn(size, generator=torch.Generator().manual_seed(r)).to(dtype)
                for r in range(world_size)
            ]
            exact = torch.stack([part.double() for part in parts]).sum(0)
            ours, theirs = parts[rank].clone(), parts[rank].clone()
            dt.all_reduce(ours, algorithm=algorithm)
            dist.all_reduce(theirs)
            error, reference = ((found.double() - exact).abs() for found in (ours, theirs))
            assert error.mean() <= reference.mean(), f"{dtype}: {error.mean()} > {reference.mean()}"
            assert error.max() <= reference.max(), f"{dtype}: {error.max()} > {reference.max()}"


def what_is_not_a_number_stays_so(algorithm: str, rank: int, world_size: int) -> None:
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
        tensor = torch.ones(1001)
        if rank == world_size - 1:
            tensor[1], tensor[2] = float("nan"), float("inf")
        dt.all_reduce(tensor, op, algorithm=algorithm)
        assert tensor[1].isnan()
        assert tensor[2].isinf()
        assert (tensor[3:] == (world_size if op == dist.ReduceOp.SUM else 1)).all()


def fewer_elements_than_ranks(algorithm: str, rank: int, world_size: int) -> None:
    for count in range(world_size):
        tensor = torch.full((count,), float(rank))
        dt.all_reduce(tensor, algorithm=algorithm)
        assert (tensor == sum(range(world_size))).all()


def a_parameter_is_written_in_place(algorithm: str, rank: int, world_size: int) -> None:
    parameter = torch.nn.Parameter(torch.full((5,), float(rank)))
    dt.all_reduce(parameter.data, algorithm=algorithm)
    with torch.no_grad():
        dt.all_reduce(parameter, algorithm=algorithm)
    assert (parameter == world_size * sum(range(world_size))).all()


def a_group_of_some_ranks(algorithm: str, rank: int, world_size: int) -> None:
    """Ranks and roots are counted within the group."""
    members = list(range(1, world_size))
    group = dist.new_group(members)
    if rank == 0:
        return
    tensor = torch.tensor([float(rank)])
    dt.all_reduce(tensor, group=group, algorithm=algorithm)
    assert tensor.item() == sum(members)
    dist.destroy_process_group(group)


def between_other_collectives(algorithm: str, rank: int, world_size: int) -> None:
    """In the order of issue with the backend's own, some of them still under way."""
    for turn in range(5):
        first = torch.full((1000,), float(rank))
        work = dist.all_reduce(first, async_op=True)
        second = torch.full((1000,), float(rank + turn))
        dt.all_reduce(second, algorithm=algorithm)
        work.wait()
        total = sum(range(world_size))
        assert (first == total).all()
        assert (second == total + turn * world_size).all()


CHECKS = (
    half_types_add_up_no_worse_than_the_native,
    what_is_not_a_number_stays_so,
    fewer_elements_than_ranks,
    a_parameter_is_written_in_place,
    a_group_of_some_ranks,
    between_other_collectives,
)
