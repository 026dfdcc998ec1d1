"""The training loop: synchronous SGD over all ranks; emits events, prints nothing."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from doubletime.training import preemption, reproducible, session
from doubletime.training.assembly import compile_model, model_of, optimizer_of
from doubletime.training.axes import axes_of
from doubletime.training.checkpoint.contents import Parts
from doubletime.training.data import Batches, length_of, loader
from doubletime.training.data import to_device as to_device
from doubletime.training.division import Division
from doubletime.training.evaluation import evaluate
from doubletime.training.events import CheckpointSaved as CheckpointSaved
from doubletime.training.events import EpochDone as EpochDone
from doubletime.training.events import Event as Event
from doubletime.training.events import Notice as Notice
from doubletime.training.events import Observer as Observer
from doubletime.training.events import Resumed as Resumed
from doubletime.training.events import RunDone as RunDone
from doubletime.training.events import RunStarted as RunStarted
from doubletime.training.events import StepDone as StepDone
from doubletime.training.keeping import Facts, Keeper, Keeping, Progress
from doubletime.training.learning_rate import Rate
from doubletime.training.parallelize import share_buffers, sum_over_ranks
from doubletime.training.precision import LossScale, forward_in
from doubletime.training.recipe import Recipe as Recipe
from doubletime.training.sender import Sender
from doubletime.training.step import Step
from doubletime.training.task import Data, Task
from doubletime.training.waiting import WaitingClock


def run(task: Task, recipe: Recipe, observe: Observer, keeping: Keeping | None = None) -> RunDone:
    """Train the task on all ranks of the session; every rank must call it alike.

    Args:
        task: what to train; its `prepare` has been called.
        recipe: the numbers.
        observe: receives every event, on every rank.
        keeping: where checkpoints are made, and which one to begin with; None makes none.

    Raises:
        TrainingError: if a loss is not finite; it names step, rank and samples.
        DataError, TaskError: if the data cannot be divided among the ranks.
        CheckpointError: if the checkpoint to begin with is damaged, or of something else.
        Preempted: if a rank got SIGTERM: all is saved by then, where checkpoints are made.
    """
    with reproducible.fixed_kernels() if recipe.switches.reproducible else nullcontext():
        return _run_from_here(task, recipe, observe, keeping)


def _run_from_here(
    task: Task, recipe: Recipe, observe: Observer, keeping: Keeping | None
) -> RunDone:
    started_s = time.perf_counter()
    trainer = _Trainer(task, recipe, session.current())
    observe(trainer.describe())
    for notice in trainer.division.notices:
        observe(Notice(notice))
    if keeping is None:
        return _run(trainer, observe, None, started_s)
    with preemption.noted() as told:
        keeper = Keeper(keeping, trainer.parts, trainer.facts, told, observe, trainer.sender)
        try:
            return _run(trainer, observe, keeper, started_s)
        finally:
            keeper.close()


def _run(trainer: _Trainer, observe: Observer, keeper: Keeper | None, started_s: float) -> RunDone:
    """All epochs that are still to come."""
    recipe, joined = trainer.recipe, trainer.joined
    progress = Progress()
    if keeper is not None and keeper.may_resume:
        trainer.lay_out()
        progress = keeper.resume() or progress
    trainer.step.restore(progress.step_state)
    trainer.batches.resume(progress.epoch, progress.step)
    epochs = []
    for epoch in range(progress.epoch, recipe.epochs):
        done = trainer.epoch(progress, observe, keeper)
        epochs.append(done)
        observe(done)
        progress = Progress(
            epoch + 1,
            step_state=trainer.step.state,
            loss=done.loss,
            metrics=dict(done.metrics),
        )
        if keeper is not None:
            keeper.after_epoch(progress)
    if (bubble := trainer.division.bubble()) is not None:
        observe(Notice(bubble))
    train_s = sum(done.train_s for done in epochs)
    shares = [done.waiting_share for done in epochs if done.waiting_share is not None]
    result = RunDone(
        trainer.task.name,
        joined.world_size,
        joined.threads,
        trainer.task.noun,
        recipe.epochs,
        progress.loss,
        progress.metrics,
        trainer.samples_met / train_s if train_s else 0.0,
        sum(shares) / len(shares) if shares else None,
        train_s,
        time.perf_counter() - started_s,
        trainer.sender.sent_share,
    )
    observe(result)
    return result


class _Trainer:
    """One rank's model, data and optimizer."""

    def __init__(self, task: Task, recipe: Recipe, joined: session.Session) -> None:
        self.task, self.recipe, self.joined = task, recipe, joined
        switches = recipe.switches
        self.axes = axes_of(recipe.mesh)
        if switches.reproducible:
            reproducible.check(self.axes.mesh, switches)
        self.batches = _batches(task, recipe)
        self.samples = self.batches.sampler.length
        self.test_data = task.test_data()
        torch.manual_seed(recipe.seed)
        model = model_of(task, switches, self.axes)
        self.division = Division(task, model, self.axes, recipe, self.batches)
        self.model, self.bare_model = self.division.wrapped, self.division.part
        torch.manual_seed(recipe.seed + self.axes.seed)
        if switches.compile:
            compile_model(self.bare_model, joined.device)
        self.optimizer = optimizer_of(task, self.bare_model, switches)
        steps = len(self.batches)
        rate = Rate(switches, self.optimizer, recipe.global_batch, task.global_batch, steps)
        self.lr_schedule = task.lr_schedule(self.optimizer, recipe.epochs * steps)
        self.samples_met = 0  # by this process, over all ranks
        self.clock = WaitingClock()
        self.clock.is_watching = joined.device.type == "cpu" and self.axes.mesh.is_data_parallel
        self.sender = Sender(recipe.sending, self.model, self.optimizer, self.clock)
        scale = LossScale.of(switches.precision)
        self.step = Step(
            self.bare_model,
            self.optimizer,
            self.lr_schedule,
            rate,
            self.division.backward(scale, self.clock),
            scale,
            switches,
            replicas=self.axes.replicas(is_asked=switches.check_every > 0),
            stages=self.axes.stages,
        )

    def describe(self) -> RunStarted:
        """What this run is."""
        return RunStarted(
            self.task.name,
            self._describe_ranks(),
            self.joined.world_size,
            self.joined.threads,
            self.samples,
            0 if self.test_data is None else length_of(self.test_data),
            self.recipe.global_batch,
            self.recipe.epochs,
            len(self.batches),
            self.division.parameters,
            self.recipe.seed,
            self.task.noun,
        )

    def _describe_ranks(self) -> str:
        mesh = "" if self.axes.mesh.is_data_parallel else f", mesh {self.axes.mesh}"
        sending = f", sends {self.recipe.sending}" if self.recipe.sending.given() else ""
        turned = [f"{name} {value}" for name, value in self.recipe.switches.turned().items()]
        switches = f", with {', '.join(turned)}" if turned else ""
        return f"{self.joined.describe()}{mesh}{sending}{switches}"

    @property
    def parts(self) -> Parts:
        """What a checkpoint holds of it."""
        return Parts(self.bare_model, self.optimizer, self.lr_schedule, self.axes)

    def lay_out(self) -> None:
        """Have gradients lie in their buckets as after a first step, before a state is restored.

        DistributedDataParallel orders them anew after its first backward pass. Among more than two ranks
        a gradient's place decides in which order it is summed, and so its last bits; among two, too, what
        is left out of it.
        """
        if not isinstance(self.model, DistributedDataParallel):
            return
        if self.joined.world_size <= 2 and not self.sender.keeps:
            return
        batch = to_device(self.batches.specimen(), self.joined.device)
        self.task.loss(self.model, batch).backward()
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def facts(self) -> Facts:
        """What must be the same where it goes on."""
        recipe = self.recipe
        return Facts(
            self.samples, recipe.global_batch, recipe.seed, recipe.epochs, len(self.batches)
        )

    def epoch(self, progress: Progress, observe: Observer, keeper: Keeper | None) -> EpochDone:
        """Every training sample that is still to come in this epoch, then every test sample once."""
        self.division.train()
        epoch = progress.epoch + 1
        waited_before_s = self.clock.waited_s
        samples_before = self.samples_met
        sum_over_ranks([0.0])  # all ranks start together, so that all measure the same epoch
        started_s = time.perf_counter()
        for step, batch in enumerate(self.batches, progress.step + 1):
            progress = self._step(progress, step, batch, observe, keeper)
        self.sender.meet()
        if self.joined.device.type == "cuda":
            torch.cuda.synchronize(self.joined.device)
        train_s = time.perf_counter() - started_s
        waited_s = self.clock.waited_s - waited_before_s
        summed = self.axes.sum_over_data([progress.loss_sum, waited_s, train_s])
        with forward_in(self.recipe.switches.precision, self.joined.device):
            metrics = self._evaluate()
        test_s = time.perf_counter() - started_s - train_s
        return EpochDone(
            epoch,
            summed[0] / met if (met := self.samples - progress.skipped) else math.nan,
            metrics,
            (self.samples_met - samples_before) / (summed[2] / self.axes.mesh.data_size),
            summed[1] / summed[2] if self.clock.is_watching else None,
            train_s,
            test_s,
        )

    def _evaluate(self) -> dict[str, float]:
        if self.test_data is None:
            return {}
        share_buffers(self.bare_model, self.axes)
        self.division.train(False)
        return evaluate(self.division.metrics, self.test_data, self.axes)

    def _step(
        self, progress: Progress, step: int, batch: Any, observe: Observer, keeper: Keeper | None
    ) -> Progress:
        """One step; returns how far the run is then."""
        epoch, batches = progress.epoch + 1, self.batches
        with self.sender.step():
            loss = self.step.make(
                to_device(batch, self.joined.device),
                epoch,
                step,
                progress.epoch * len(batches) + step - 1,
                observe,
                keeper.before_update if keeper is not None else _nothing,
            )
        self.samples_met += batches.global_count
        observe(StepDone(epoch, step, math.nan if loss is None else loss, batches.global_count))
        progress = replace(progress, step=step, step_state=self.step.state)
        if loss is None:
            self.sender.after_skip()
            progress = replace(progress, skipped=progress.skipped + batches.global_count)
        elif batches.count:
            progress = replace(progress, loss_sum=progress.loss_sum + loss * batches.count)
        if keeper is not None:
            keeper.after_step(progress)
        return progress


def _batches(task: Task, recipe: Recipe) -> Batches:
    """This rank's share of the training data."""
    data = _first_samples(task.train_data(), recipe.limit)
    batch, seed, workers = recipe.global_batch, recipe.seed, task.num_workers
    if recipe.switches.reproducible:
        return reproducible.loader(data, batch, seed=seed, num_workers=workers)
    return loader(data, batch, seed=seed, num_workers=workers, mesh=recipe.mesh)


def _nothing() -> None:
    """Where no checkpoint is made."""


def _first_samples(data: Data, limit: int | None) -> Data:
    """The first `limit` samples, in memory if the data is."""
    if limit is None or limit >= length_of(data):
        return data
    if isinstance(data, tuple):
        return tuple(tensor[:limit] for tensor in data)
    return torch.utils.data.Subset(data, range(limit))
