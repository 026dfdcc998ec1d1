"""One step of a 10 M-parameter MLP: one copy on the host against DistributedDataParallel over gloo and mpi."""

from __future__ import annotations

from functools import partial

import record
import torch
import torch.distributed as dist
from ddp_step import BATCH, mlp, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import doubletime as dt
from doubletime.mpi import library
from doubletime.planning import machine
from doubletime.planning.timing import spread
from doubletime.planning.turns import Work, by_turns
from doubletime.training import host_copy, session

RANKS = 2
SECONDS = 8.0  # on each kind of step
TARGET = 0.606  # of DDP over gloo's step: 1.65 times as many samples/s
ONE_COPY, DDP_MPI, DDP_GLOO, NO_SYNC = "one copy", "DDP over mpi", "DDP over gloo", "no sync"


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor
) -> None:
    """Forward, backward, update."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


def work() -> record.Report | None:
    """Time the kinds of step by turns."""
    joined = dt.init("mpi")
    gloo = dist.new_group(backend="gloo")
    generator = torch.Generator().manual_seed(joined.rank)
    inputs = torch.randn(BATCH, 784, generator=generator)
    labels = torch.randint(10, (BATCH,), generator=generator)
    steps: dict[str, Work] = {}
    for name in (ONE_COPY, DDP_MPI, DDP_GLOO, NO_SYNC):
        model = mlp()
        if name in (DDP_MPI, DDP_GLOO):
            model = DistributedDataParallel(model, process_group=gloo if name == DDP_GLOO else None)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        if name == ONE_COPY and host_copy.share(model, optimizer) is None:
            raise RuntimeError("the ranks cannot share one copy here")
        steps[name] = Work(partial(step, model, optimizer, inputs, labels), dist.barrier)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    comm = library.load().COMM_WORLD.Dup()
    taken = by_turns(comm, list(steps.values()), SECONDS, lambda _: None)
    comm.Free()
    session.leave()
    spreads = {name: spread(samples) for name, samples in zip(steps, taken, strict=True)}
    here = machine.describe(library.describe())
    if joined.rank != 0:
        return None
    title = (
        f"a step of an MLP of {parameters / 1e6:.1f} M parameters, SGD with momentum, "
        f"batch {BATCH} per rank, {RANKS} ranks"
    )
    return report(title, spreads, DDP_GLOO, {ONE_COPY: TARGET}, here)


if __name__ == "__main__":
    record.main(RANKS, work)
