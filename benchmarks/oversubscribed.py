"""More ranks than cores: a small CNN under DDP and a loop of all_reduce, by mpi and by gloo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from time import perf_counter

import record
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from doubletime.mpi import library
from doubletime.planning import machine, peers
from doubletime.planning.question import GLOO, MPI
from doubletime.planning.timing import Spread, spread

RANKS = 4  # twice the cores of the machine that the target is set for
BATCH = 32  # per rank
STEPS = 5  # of training, per turn
MESSAGES = (4, 64 << 10, 1 << 20)  # bytes
CALLS = 20  # of all_reduce per message size and turn
TURNS = 14
TARGET = 1.3  # of gloo's time

CNN, LOOP = "CNN, DDP steps", "all_reduce loop"


def cnn() -> nn.Module:
    """A CNN for 28 x 28 images: 0.2 M parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def train(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, images: torch.Tensor
) -> None:
    """Some steps of training."""
    labels = torch.zeros(len(images), dtype=torch.long)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def loop(group: dist.ProcessGroup | None) -> None:
    """Some all_reduces of each size, one after another."""
    for nbytes in MESSAGES:
        tensor = torch.zeros(nbytes // 4)
        for _ in range(CALLS):
            dist.all_reduce(tensor, group=group)


def measure(works: dict[str, Callable[[], None]], group: dist.ProcessGroup | None) -> list[Spread]:
    """Time the works by turns; the slowest rank counts.

    The ranks wait for each other by gloo, which sleeps: a barrier of bare MPI would poll, and take
    cores from whoever is being timed.
    """
    samples: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(TURNS + 1):
        names = list(works)[:: 1 if turn % 2 else -1]
        for name in names:
            dist.barrier(group=group)
            start = perf_counter()
            works[name]()
            samples[name].append(perf_counter() - start)
    spreads = []
    for taken in samples.values():
        slowest = torch.tensor(taken[1:])  # the first turn warms up
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
        spreads.append(spread(slowest.numpy()))
    return spreads


def work() -> record.Report | None:
    """Time both programs by both backends."""
    with peers.join((GLOO,)) as job:
        images = torch.randn(BATCH, 1, 28, 28)
        programs: dict[str, dict[str, Callable[[], None]]] = {CNN: {}, LOOP: {}}
        for name in (MPI, GLOO):
            group = job.groups[name]
            model = DistributedDataParallel(cnn(), process_group=group)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            programs[CNN][name] = partial(train, model, optimizer, images)
            programs[LOOP][name] = partial(loop, group)
        found = {name: measure(works, job.groups[GLOO]) for name, works in programs.items()}
        here = machine.describe(library.describe())
    if job.rank != 0:
        return None
    rows = [
        record.Row(
            name,
            [*(record.show(time) for time in (mpi, gloo)), f"{mpi.median_s / gloo.median_s:.2f}"],
            target=f"at most {TARGET} of gloo's",
            is_met=mpi.median_s <= TARGET * gloo.median_s,
        )
        for name, (mpi, gloo) in found.items()
    ]
    return record.Report(
        title=f"{RANKS} ranks on {here.cores} cores: median (quartiles)",
        headings=["work", "mpi", "gloo", "mpi / gloo"],
        rows=rows,
        machine=asdict(here),
        caption=here.show(),
        figures={
            name: {MPI: asdict(mpi), GLOO: asdict(gloo)} for name, (mpi, gloo) in found.items()
        },
    )


if __name__ == "__main__":
    record.main(RANKS, work)
