"""One DDP step of a 10 M-parameter MLP under mpi, under gloo, and without any synchronization."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial

import record
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from doubletime.mpi import library
from doubletime.planning import machine, peers
from doubletime.planning.question import GLOO, MPI
from doubletime.planning.timing import Spread, spread
from doubletime.planning.turns import Work, by_turns

RANKS = 2
BATCH = 64  # per rank
SECONDS = 8.0  # on each kind of step
TARGET = 0.65  # of gloo's step
NO_SYNC = "no sync"


def mlp() -> nn.Module:
    """10.0 M parameters: 784 to 10 through three layers of 2,048."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(784, 2048), nn.ReLU(),
        nn.Linear(2048, 2048), nn.ReLU(),
        nn.Linear(2048, 2048), nn.ReLU(),
        nn.Linear(2048, 10),
    )  # fmt: skip


def step(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    is_synced: bool,
) -> None:
    """Forward, backward with or without the gradients' all_reduce, update."""
    with nullcontext() if is_synced else model.no_sync():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def work() -> record.Report | None:
    """Time the three kinds of step by turns."""
    with peers.join((GLOO,)) as job:
        generator = torch.Generator().manual_seed(job.rank)
        inputs = torch.randn(BATCH, 784, generator=generator)
        labels = torch.randint(10, (BATCH,), generator=generator)
        steps: dict[str, Work] = {}
        for name in (MPI, GLOO, NO_SYNC):
            group = job.groups[GLOO if name == NO_SYNC else name]
            model = DistributedDataParallel(mlp(), process_group=group)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            run = partial(step, model, optimizer, inputs, labels, is_synced=name != NO_SYNC)
            steps[name] = Work(run, job.peer(GLOO if name == NO_SYNC else name).barrier)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        taken = by_turns(job.comm, list(steps.values()), SECONDS, lambda _: None)
        spreads = {name: spread(samples) for name, samples in zip(steps, taken, strict=True)}
        here = machine.describe(library.describe())
    if job.rank != 0:
        return None
    title = f"DDP step, MLP of {parameters / 1e6:.1f} M parameters, batch {BATCH} per rank, {RANKS} ranks"
    return report(title, spreads, GLOO, {MPI: TARGET}, here)


def report(
    title: str,
    spreads: Mapping[str, Spread],
    rival: str,
    targets: Mapping[str, float],
    here: machine.Machine,
) -> record.Report:
    """The kinds of step beside each other.

    Args:
        title: of the table.
        spreads: seconds of a step, by kind.
        rival: the kind that all are measured against.
        targets: the share of the rival's step that a kind may take.
        here: where it was measured.
    """
    rival_s = spreads[rival].median_s
    rows = [
        record.Row(
            name,
            [record.show(step_s), f"{step_s.median_s / rival_s:.2f}"],
            target=f"at most {targets[name]} of gloo's" if name in targets else "",
            is_met=step_s.median_s <= targets[name] * rival_s if name in targets else None,
        )
        for name, step_s in spreads.items()
    ]
    return record.Report(
        title=title,
        headings=["gradients by", "median (quartiles)", "of gloo's step"],
        rows=rows,
        machine=asdict(here),
        caption=here.show(),
        figures={name: asdict(step_s) for name, step_s in spreads.items()},
    )


if __name__ == "__main__":
    record.main(RANKS, work)
