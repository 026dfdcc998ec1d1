"""What runs beside communication: loader workers, the profiler."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info


class Squares(Dataset[tuple[int, int, bool]]):
    """The number, its square, and whether the process that made them has loaded an MPI library."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[int, int, bool]:
        assert get_worker_info() is not None
        return index, index**2, "mpi4py.MPI" in sys.modules


def _load(rank: int, world_size: int, start: str) -> bool:
    data = Squares()
    sampler: DistributedSampler[tuple[int, int, bool]] = DistributedSampler(data, shuffle=False)
    loader = DataLoader(
        data,
        batch_size=4,
        sampler=sampler,
        num_workers=2 if start == "fork" else 1,  # a spawned one imports torch anew, on few cores
        persistent_workers=start == "spawn",
        multiprocessing_context=start,
    )
    loaded = False
    for _ in range(2):
        total = torch.zeros(1, dtype=torch.int64)
        for number, square, has_mpi in loader:
            assert torch.equal(number**2, square)
            total += square.sum()
            loaded |= bool(has_mpi.any())
            dist.all_reduce(torch.ones(1))  # while workers come and go
        dist.all_reduce(total)
        assert total.item() == sum(i**2 for i in range(len(data)))
    return loaded


def forked_loader_workers(rank: int, world_size: int) -> None:
    _load(rank, world_size, "fork")


def spawned_loader_workers(rank: int, world_size: int) -> None:
    assert not _load(rank, world_size, "spawn"), "a worker has loaded MPI"


def profiled_operations(rank: int, world_size: int) -> None:
    """Each appears as the built-in backends' do, with its parameters."""
    tensor = torch.ones(6 * world_size)
    outputs = [torch.zeros_like(tensor) for _ in range(world_size)]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.broadcast(tensor, 0)
        dist.all_gather(outputs, tensor)
        dist.barrier()
        if rank == 0:
            dist.send(tensor, 1)
        elif rank == 1:
            dist.recv(tensor, 0)
    events = seen.events()
    assert events is not None
    counts: dict[str, int] = {}
    for event in events:
        counts[event.name] = counts.get(event.name, 0) + 1
    ours = sorted(name for name in counts if name.startswith("mpi:"))
    assert counts.get("mpi:all_reduce") == 2, ours
    for name in ("mpi:broadcast", "mpi:all_gather", "mpi:barrier"):
        assert counts.get(name), f"no {name} among {ours}"
    if rank < 2:
        assert counts.get("mpi:recv" if rank else "mpi:send"), ours
    # record_param_comms cannot come from Python: torch 2.13 crashes on an event of that name without
    # the thread-local facts that only its C++ macro sets. Its facts go with the event itself.
    facts = [event.kwinputs for event in events if event.name == "mpi:all_reduce"]
    assert all(fact.get("Collective name") == "all_reduce" for fact in facts), facts
    assert all(fact.get("Group size") == world_size for fact in facts), facts
    shapes = [event.input_shapes for event in events if event.name == "mpi:all_reduce"]
    assert all([6 * world_size] in shape for shape in shapes), shapes


def gloo_beside_it(rank: int, world_size: int) -> None:
    """Groups of another backend, as some libraries make them; one that not all ranks are in."""
    for _ in range(2):
        group = dist.new_group(backend="gloo")
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total, group=group)
        assert total.item() == world_size * (world_size + 1) / 2
        dist.destroy_process_group(group)
    first_two = dist.new_group([0, 1], backend="gloo")
    if rank < 2:
        assert dist.get_backend(first_two) == "gloo"
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total, group=first_two)
        assert total.item() == 3
        dist.destroy_process_group(first_two)


CHECKS = (
    forked_loader_workers,
    spawned_loader_workers,
    profiled_operations,
    gloo_beside_it,
)
