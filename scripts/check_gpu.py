"""Check the mpi backend on CUDA tensors, on a machine with a GPU.

    doubletime run -n 2 scripts/check_gpu.py

Ranks share a GPU where there are fewer GPUs than ranks. Prints one line a check; fails loudly.
"""

import sys

import torch
import torch.distributed as dist


def collectives(device: torch.device, rank: int, world_size: int) -> None:
    """Every kind of operation on CUDA tensors, small and large, behind pending work on the stream."""
    for size in (3, 1 << 20):
        tensor = torch.full((size,), float(rank + 1), device=device)
        for _ in range(50):  # still running when the collective is called
            tensor = tensor * 1.0
        dist.all_reduce(tensor)
        follow = tensor * 2  # must see the outcome without a synchronisation by hand
        assert (follow == world_size * (world_size + 1)).all()
        work = dist.broadcast(tensor, 0, async_op=True)
        work.wait()
        parts = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(parts, torch.full_like(tensor, rank))
        assert all((part == index).all() for index, part in enumerate(parts))
        half = torch.full((size,), 0.5, device=device, dtype=torch.bfloat16)
        dist.all_reduce(half)
        assert (half == 0.5 * world_size).all()
    message = torch.full((4,), float(rank), device=device)
    if rank == 0:
        dist.send(message, 1)
    elif rank == 1:
        dist.recv(message, 0)
        assert (message == 0).all()


def main() -> int:
    """Run the checks on this rank."""
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was checked", file=sys.stderr)
        return 2
    dist.init_process_group("mpi")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    collectives(device, rank, world_size)
    if rank == 0:
        print("mpi on CUDA tensors: right")
    dist.destroy_process_group()
    if torch.cuda.device_count() >= world_size:
        dist.init_process_group("cpu:mpi,cuda:nccl")
        for where in (device, torch.device("cpu")):
            tensor = torch.full((5,), float(rank + 1), device=where)
            dist.all_reduce(tensor)
            assert (tensor == world_size * (world_size + 1) / 2).all()
        if rank == 0:
            print("cpu:mpi,cuda:nccl: right")
        dist.destroy_process_group()
    elif rank == 0:
        print("cpu:mpi,cuda:nccl: not checked, NCCL wants one GPU for each rank")
    return 0


if __name__ == "__main__":
    sys.exit(main())
