"""Half types add up no worse than gloo's, and what is not a number stays so."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist


def _gloo(rank: int, world_size: int) -> dist.ProcessGroupGloo:
    """A gloo group beside the default one; it meets through a file."""
    told: list[str | None] = [tempfile.mktemp() if rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    assert told[0] is not None
    group = dist.ProcessGroupGloo(dist.FileStore(told[0], world_size), rank, world_size)
    group.barrier().wait()
    if rank == 0:
        Path(told[0]).unlink()
    return group


def half_types_add_up_no_worse_than_gloo(rank: int, world_size: int) -> None:
    gloo = _gloo(rank, world_size)
    for dtype in (torch.float16, torch.bfloat16):
        for size in (1000, 1_000_001):
            parts = [
                torch.randn(size, generator=torch.Generator().manual_seed(r)).to(dtype)
                for r in range(world_size)
            ]
            exact = torch.stack([part.double() for part in parts]).sum(0)
            ours, theirs = parts[rank].clone(), parts[rank].clone()
            dist.all_reduce(ours)
            gloo.allreduce([theirs]).wait()
            error = (ours.double() - exact).abs()
            reference = (theirs.double() - exact).abs()
            assert error.mean() <= reference.mean(), f"{dtype}: {error.mean()} > {reference.mean()}"
            assert error.max() <= reference.max(), f"{dtype}: {error.max()} > {reference.max()}"


def what_is_not_a_number_stays_so(rank: int, world_size: int) -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for size in (4, 400_001):
            tensor = torch.ones(size, dtype=dtype)
            if rank == world_size - 1:
                tensor[1], tensor[2] = float("nan"), float("inf")
            dist.all_reduce(tensor)
            assert tensor[0] == world_size
            assert tensor[1].isnan()
            assert tensor[2].isinf()
            assert (tensor[3:] == world_size).all()


def what_refuses_writes_gets_its_mean(rank: int, world_size: int) -> None:
    mean = sum(range(world_size)) / world_size
    for size in (4, 400_001):
        for dtype in (torch.float32, torch.float16):
            parameter = torch.nn.Parameter(torch.full((size,), float(rank), dtype=dtype))
            with torch.inference_mode():
                inference = torch.full((size,), float(rank), dtype=dtype)
            for tensor in (parameter, inference):
                dist.all_reduce(tensor, dist.ReduceOp.AVG)
                assert (tensor == mean).all()


CHECKS = (
    half_types_add_up_no_worse_than_gloo,
    what_is_not_a_number_stays_so,
    what_refuses_writes_gets_its_mean,
)
