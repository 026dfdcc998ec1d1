"""The training loop: synchronous SGD over all ranks; emits events, prints nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from doubletime.errors import TaskError, TrainingError
from doubletime.training import session
from doubletime.training.data import Batches, ShardedSampler, length_of, loader
from doubletime.training.parallelize import parallelize, share_buffers, sum_over_ranks
from doubletime.training.task import Data, Task
from doubletime.training.waiting import WaitingClock

_EVALUATION_BATCH = 1000  # samples per rank and batch: large enough to be quick, small in memory


@dataclass(frozen=True)
class Notice:
    """Something that people must know before they read the figures."""

    text: str


@dataclass(frozen=True)
class RunStarted:
    """A run begins.

    Attributes:
        session: what the ranks found and chose, in one line.
        samples: of the training data; `steps` global batches per epoch.
        parameters: numbers to train.
    """

    task: str
    session: str
    world_size: int
    threads: int
    samples: int
    test_samples: int
    global_batch: int
    epochs: int
    steps: int
    parameters: int
    seed: int
    noun: str


@dataclass(frozen=True)
class StepDone:
    """One step was made.

    Attributes:
        epoch: from 1.
        step: within the epoch, from 1.
        loss: the mean over this rank's share of the global batch.
        samples: of the global batch.
    """

    epoch: int
    step: int
    loss: float
    samples: int


@dataclass(frozen=True)
class EpochDone:
    """One pass over the training data, and over the test data.

    Attributes:
        loss: mean over all training samples, as they were met.
        metrics: over all test samples, each counted once; empty without test data.
        samples_per_s: of all ranks together, evaluation left out.
        waiting_share: of the training time, how much was spent waiting for communication, mean
            over the ranks; None where it cannot be measured (on a GPU).
        train_s, test_s: seconds of both passes.
    """

    epoch: int
    loss: float
    metrics: Mapping[str, float]
    samples_per_s: float
    waiting_share: float | None
    train_s: float
    test_s: float


@dataclass(frozen=True)
class RunDone:
    """A run is complete: its last epoch's loss and metrics, and figures over all epochs."""

    task: str
    world_size: int
    threads: int
    noun: str
    epochs: int
    loss: float
    metrics: Mapping[str, float]
    samples_per_s: float
    waiting_share: float | None
    train_s: float
    total_s: float


Event = Notice | RunStarted | StepDone | EpochDone | RunDone
Observer = Callable[[Event], None]


@dataclass(frozen=True)
class Recipe:
    """The numbers of a run: a task's own where they are not given.

    Attributes:
        epochs, global_batch, seed: as in Task.
        limit: use only the first so many training samples; None for all.
    """

    epochs: int
    global_batch: int
    seed: int
    limit: int | None = None

    @classmethod
    def of(
        cls,
        task: Task,
        *,
        epochs: int | None = None,
        global_batch: int | None = None,
        seed: int | None = None,
        limit: int | None = None,
    ) -> Recipe:
        """The task's numbers, with those given in their place.

        Raises:
            TrainingError: if one is out of range.
        """
        recipe = cls(
            task.epochs if epochs is None else epochs,
            task.global_batch if global_batch is None else global_batch,
            task.seed if seed is None else seed,
            limit,
        )
        for name, value, least in (
            ("epochs", recipe.epochs, 1),
            ("global_batch", recipe.global_batch, 1),
            ("seed", recipe.seed, 0),
            ("limit", 1 if limit is None else limit, 1),
        ):
            if not isinstance(value, int):
                raise TrainingError(f"{name} is {value!r}, no whole number", f"{name} = {least}")
            if value < least:
                raise TrainingError(f"{name} is {value}", f"give {name} {least} or more")
        return recipe


def run(task: Task, recipe: Recipe, observe: Observer) -> RunDone:
    """Train the task on all ranks of the session; every rank must call it alike.

    Args:
        task: what to train; its `prepare` has been called.
        recipe: the numbers.
        observe: receives every event, on every rank.

    Raises:
        TrainingError: if a loss is not finite; it names step and rank.
        DataError, TaskError: if the data cannot be divided among the ranks.
    """
    started_s = time.perf_counter()
    joined = session.current()
    trainer = _Trainer(task, recipe, joined)
    observe(trainer.describe())
    epochs = []
    for epoch in range(1, recipe.epochs + 1):
        epochs.append(trainer.epoch(epoch, observe))
        observe(epochs[-1])
    last = epochs[-1]
    train_s = sum(done.train_s for done in epochs)
    shares = [done.waiting_share for done in epochs if done.waiting_share is not None]
    result = RunDone(
        task.name,
        joined.world_size,
        joined.threads,
        task.noun,
        recipe.epochs,
        last.loss,
        last.metrics,
        trainer.samples * recipe.epochs / train_s,
        sum(shares) / len(shares) if shares else None,
        train_s,
        time.perf_counter() - started_s,
    )
    observe(result)
    return result


class _Trainer:
    """One rank's model, data and optimizer."""

    def __init__(self, task: Task, recipe: Recipe, joined: session.Session) -> None:
        self.task, self.recipe, self.joined = task, recipe, joined
        self.batches = loader(
            _first_samples(task.train_data(), recipe.limit),
            recipe.global_batch,
            seed=recipe.seed,
            num_workers=task.num_workers,
        )
        self.samples = self.batches.sampler.length
        self.test_data = task.test_data()
        torch.manual_seed(recipe.seed)
        self.bare_model = _trainable(task.model(), task)
        self.model = parallelize(self.bare_model)
        torch.manual_seed(recipe.seed + joined.rank)  # ranks must not drop out the same units
        self.optimizer = task.optimizer(self.bare_model.parameters())
        steps = recipe.epochs * len(self.batches)
        self.lr_schedule = task.lr_schedule(self.optimizer, steps)
        self.clock = WaitingClock()
        if isinstance(self.model, DistributedDataParallel):
            self.clock.watch(self.model)

    def describe(self) -> RunStarted:
        """What this run is."""
        return RunStarted(
            self.task.name,
            self.joined.describe(),
            self.joined.world_size,
            self.joined.threads,
            self.samples,
            0 if self.test_data is None else length_of(self.test_data),
            self.recipe.global_batch,
            self.recipe.epochs,
            len(self.batches),
            sum(p.numel() for p in self.bare_model.parameters() if p.requires_grad),
            self.recipe.seed,
            self.task.noun,
        )

    def epoch(self, epoch: int, observe: Observer) -> EpochDone:
        """Every training sample once, then every test sample once."""
        self.model.train()
        loss_sum, waited_before_s = 0.0, self.clock.waited_s
        sum_over_ranks([0.0])  # all ranks start together, so that all measure the same epoch
        started_s = time.perf_counter()
        for step, batch in enumerate(self.batches, 1):
            loss = self._step(epoch, step, batch)
            if self.batches.count:
                loss_sum += loss * self.batches.count
            observe(StepDone(epoch, step, loss, self.batches.global_count))
        if self.joined.device.type == "cuda":
            torch.cuda.synchronize(self.joined.device)
        train_s = time.perf_counter() - started_s
        waited_s = self.clock.waited_s - waited_before_s
        summed = sum_over_ranks([loss_sum, waited_s, train_s])
        metrics = evaluate(self.task, self.bare_model, self.test_data)
        test_s = time.perf_counter() - started_s - train_s
        return EpochDone(
            epoch,
            summed[0] / self.samples,
            metrics,
            self.samples / (summed[2] / self.joined.world_size),
            summed[1] / summed[2] if self.joined.device.type == "cpu" else None,
            train_s,
            test_s,
        )

    def _step(self, epoch: int, step: int, batch: Any) -> float:
        """One step; returns this rank's mean loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.task.loss(self.model, to_device(batch, self.joined.device))
        value = float(loss.detach())
        if self.batches.count and not math.isfinite(value):
            raise TrainingError(
                f"the loss is {value} at step {step} of epoch {epoch}, on rank {self.joined.rank}",
                "lower the learning rate, or look for bad values in the data",
            )
        with self.clock.step():
            (loss if self.batches.weight == 1 else loss * self.batches.weight).backward()
        self.optimizer.step()
        if self.lr_schedule is not None:
            self.lr_schedule.step()
        return value


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, data: Data | None) -> dict[str, float]:
    """The task's metrics over the data, every sample counted once on one rank.

    Args:
        task: whose `metrics`.
        model: this rank's copy, not wrapped; put into evaluation mode.
        data: as `Task.test_data` returns it.

    Returns:
        Each metric's mean over all samples; empty without data.
    """
    if data is None or length_of(data) == 0:
        return {}
    joined = session.current()
    share_buffers(model)
    model.eval()
    sampler = ShardedSampler(
        length_of(data),
        _EVALUATION_BATCH * joined.world_size,
        rank=joined.rank,
        world_size=joined.world_size,
        shuffle=False,
    )
    batches = Batches(data, sampler)
    totals: dict[str, float] = {}
    for batch in batches:
        # A filler is evaluated too, for the metrics' names, and counts nothing.
        for name, value in task.metrics(model, to_device(batch, joined.device)).items():
            total = float(value) * batches.count if batches.count else 0.0
            totals[name] = totals.get(name, 0.0) + total
    names = sorted(totals)
    summed = sum_over_ranks([totals[name] for name in names])
    return {name: value / sampler.length for name, value in zip(names, summed, strict=True)}


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in it (also in tuples, lists and dicts) on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple | list):
        moved = [to_device(part, device) for part in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    if isinstance(batch, dict):
        return {key: to_device(part, device) for key, part in batch.items()}
    return batch


def _first_samples(data: Data, limit: int | None) -> Data:
    """The first `limit` samples, in memory if the data is."""
    if limit is None or limit >= length_of(data):
        return data
    if isinstance(data, tuple):
        return tuple(tensor[:limit] for tensor in data)
    return torch.utils.data.Subset(data, range(limit))


def _trainable(model: object, task: Task) -> nn.Module:
    """What the task's model() gave, if it is one that can be trained.

    Raises:
        TaskError: if it is no module, or has no parameters that want a gradient.
    """
    if not isinstance(model, nn.Module):
        raise TaskError(
            f"model() of {task.name} returned a {type(model).__name__}, no torch.nn.Module",
            "return the model from model()",
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TaskError(
            f"the model of {task.name} has no parameters to train",
            "give it layers with parameters, with requires_grad",
        )
    return model
