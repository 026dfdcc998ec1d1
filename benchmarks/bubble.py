"""How long the stages of a pipeline wait for each other, against each schedule's formula: 2 ranks."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

import record
import torch
from torch import nn

from doubletime.mpi import library
from doubletime.planning import machine
from doubletime.training import session
from doubletime.training.pipeline.pipeline import Pipeline
from doubletime.training.pipeline.schedules import SCHEDULES
from doubletime.units import format_seconds

RANKS = 2
WIDTH, LAYERS = 512, 8  # alike, so that stages weigh the same
SAMPLES_PER_MICRO_BATCH = 128
MICRO_BATCHES = (2, 4, 8)
WARM_UP, STEPS, ROUNDS = 2, 4, 7
TARGET = 0.15  # of the formula's bubble
PLAIN = ("gpipe", "1f1b")  # whose formula assumes nothing of how long backward takes


def _model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


def _loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def work() -> record.Report | None:
    """Every schedule by turns, each with several numbers of microbatches."""
    joined = session.init("mpi")
    here = machine.describe(library.describe())
    pipelines = {}
    batches = {}
    for count in MICRO_BATCHES:
        inputs, targets = torch.randn(2, SAMPLES_PER_MICRO_BATCH * count, WIDTH)
        batches[count] = (inputs, targets)
        for name in SCHEDULES:
            pipelines[name, count] = Pipeline(
                _model(), _loss, batches[count], schedule=name, micro_batches=count
            )
    measured: dict[tuple[str, int], list[dict[str, float]]] = {key: [] for key in pipelines}
    for (_, count), pipeline in pipelines.items():
        for _ in range(WARM_UP):
            pipeline.step(batches[count])
        pipeline.bubble()
    for _ in range(ROUNDS):
        for (name, count), pipeline in pipelines.items():
            for _ in range(STEPS):
                pipeline.step(batches[count])
                pipeline.module.zero_grad()
            step_s = pipeline.stopwatch.total_s / STEPS
            bubble = pipeline.bubble()
            measured[name, count].append({"share": bubble.share, "step_s": step_s})
    expected = {key: pipeline.bubble().expected for key, pipeline in pipelines.items()}
    session.leave()
    if joined.rank != 0:
        return None
    rows = [_row(*key, found, expected[key]) for key, found in measured.items()]
    return record.Report(
        title=f"The bubble of a pipeline of {RANKS} ranks: {LAYERS} layers of {WIDTH} x {WIDTH}, "
        f"{SAMPLES_PER_MICRO_BATCH} samples a microbatch",
        headings=["schedule", "microbatches", "step", "bubble", "by formula", "ratio"],
        rows=rows,
        machine=asdict(here),
        caption=here.show(),
        figures=[
            {"schedule": name, "micro_batches": count, "rounds": found}
            for (name, count), found in measured.items()
        ],
    )


def _row(name: str, count: int, found: list[dict[str, Any]], expected: float) -> record.Row:
    share = statistics.median(each["share"] for each in found)
    step_s = statistics.median(each["step_s"] for each in found)
    ratio = share / expected if expected else None
    is_judged = name in PLAIN and ratio is not None
    return record.Row(
        name,
        [
            str(count),
            format_seconds(step_s),
            f"{share:.1%}",
            f"{expected:.1%}",
            "" if ratio is None else f"{ratio:.2f}",
        ],
        target=f"within {TARGET:.0%} of the formula" if is_judged else "",
        is_met=abs(ratio - 1) <= TARGET if is_judged and ratio is not None else None,
    )


if __name__ == "__main__":
    record.main(RANKS, work)
