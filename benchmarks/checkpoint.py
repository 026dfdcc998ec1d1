"""How long training stands still for a checkpoint: a 10 M-parameter MLP with momentum, 2 ranks."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import record
import torch
from ddp_step import BATCH, RANKS, mlp
from torch import nn

from doubletime.mpi import library
from doubletime.planning import machine
from doubletime.training import loop, session
from doubletime.training.checkpoint.exchange import on_rank_0
from doubletime.training.events import CheckpointSaved, Event, StepDone
from doubletime.training.keeping import Keeping
from doubletime.training.recipe import Recipe
from doubletime.training.task import Task
from doubletime.units import format_seconds

EVERY = 50  # steps
STEPS = 600
TARGET = 0.05  # of a step


class Pictures(Task):
    """The MLP of `ddp_step.py`, on numbers drawn at random."""

    global_batch = RANKS * BATCH
    seed = 0

    def model(self) -> nn.Module:
        """10 M parameters."""
        return mlp()

    def train_data(self) -> tuple[torch.Tensor, ...]:
        """As many as there are steps."""
        generator = torch.Generator().manual_seed(0)
        samples = STEPS * self.global_batch
        labels = torch.randint(10, (samples,), generator=generator)
        return torch.randn(samples, 784, generator=generator), labels


def work() -> record.Report | None:
    """Train one epoch, and look at the steps with and without a checkpoint."""
    joined = session.init("mpi")
    here = machine.describe(library.describe())
    ends: list[float] = []
    saved: list[CheckpointSaved] = []

    def observe(event: Event) -> None:
        if isinstance(event, StepDone):
            ends.append(time.perf_counter())
        elif isinstance(event, CheckpointSaved):
            saved.append(event)

    with tempfile.TemporaryDirectory() as name:
        folder = on_rank_0(lambda: Path(name))
        task = Pictures()
        loop.run(task, Recipe.of(task), observe, Keeping(folder, EVERY))
        session.leave()
    if joined.rank != 0:
        return None
    steps = [after - before for before, after in itertools.pairwise(ends)]
    # steps[i] ends with step i + 2: the first one after a checkpoint shares the cores with its copy.
    begins = range(EVERY, STEPS - EVERY, EVERY)
    quiet = statistics.median(
        step_s for number, step_s in enumerate(steps, 2) if number % EVERY > EVERY // 2
    )
    pauses = [each.pause_s for each in saved[1:]]  # the first one is planned
    pause_s = statistics.median(pauses)
    around = [sum(steps[number - 2 : number + 23]) - 25 * quiet for number in begins[1:]]
    written = statistics.median(each.total_s for each in saved[1:])
    rows = [
        record.Row("a step", [format_seconds(quiet), "1.00"]),
        record.Row(
            "training stands still",
            [format_seconds(pause_s), f"{pause_s / quiet:.3f}"],
            target=f"at most {TARGET} of a step",
            is_met=pause_s <= TARGET * quiet,
        ),
        record.Row(
            "the steps until it is written take longer, in all",
            [
                format_seconds(max(0.0, statistics.median(around))),
                f"{statistics.median(around) / quiet:.2f}",
            ],
        ),
        record.Row(
            "until it is whole and on the disk", [format_seconds(written), f"{written / quiet:.1f}"]
        ),
    ]
    return record.Report(
        title=f"A checkpoint of {saved[-1].nbytes / 1e6:.0f} MB every {EVERY} steps: MLP of 10 M parameters, "
        f"SGD with momentum, batch {BATCH} per rank, {RANKS} ranks over mpi",
        headings=["what", "time (median)", "of a step"],
        rows=rows,
        machine=asdict(here),
        caption=here.show(),
        figures={"steps_s": steps, "saved": [asdict(each) for each in saved]},
    )


if __name__ == "__main__":
    record.main(RANKS, work)
