"""Reproducible runs compared bit by bit: one process, whose steps are kept in a folder, and ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from doubletime.errors import DataError
from doubletime.training import loop, session
from doubletime.training.events import Event, StepDone
from doubletime.training.recipe import Recipe
from doubletime.training.task import Data, Task
from doubletime.training.verify.cause import Cause
from doubletime.training.verify.comparison import compare
from doubletime.training.verify.records import Difference, Step
from doubletime.training.verify.samples import digest
from doubletime.training.verify.verdict import Verdict, first_of, largest, rows_of
from doubletime.training.verify.watched import watched


class _Enough(Exception):
    """All that was to be seen has been seen."""


def record(task: Task, recipe: Recipe, steps: int, folder: Path) -> None:
    """One process's side: carry the task out and keep each step.

    Args:
        task: what to train; its `prepare` has been called.
        recipe: the numbers, its switch `reproducible` on.
        steps: how many, or as many as there are.
        folder: where they are kept.
    """
    _carry_out(task, recipe, steps, lambda number, step: step.save(_file(folder, number)))


def against(task: Task, recipe: Recipe, steps: int, folder: Path) -> Verdict | None:
    """The ranks' side; every rank must call it alike.

    Args:
        task: as in `record`, as are the others.
        recipe: the numbers.
        steps: how many.
        folder: only rank 0 looks there.

    Returns:
        The verdict on rank 0, None on the others.

    Raises:
        DataError: if nothing was kept.
    """
    joined = session.current()
    found: list[_Compared] = []
    alive: set[str] = set()

    def take(number: int, step: Step) -> None:
        if joined.rank:
            return
        try:
            one = Step.load(_file(folder, number))
        except OSError as error:
            raise DataError(
                f"rank 0 does not find what one process has computed: {error}",
                "let the first host of the list be the same for 1 rank and for many",
            ) from error
        alive.update(name for name, gradient in step.gradients.items() if bool(gradient.any()))
        found.append(_Compared(compare(number, step, one), _bits(step) == _bits(one)))

    precision = _carry_out(task, recipe, steps, take)
    if joined.rank:
        return None
    return judge(task.name, joined.world_size, precision, found, is_alive=bool(alive))


@dataclass(frozen=True)
class _Compared:
    """A step of both sides.

    Attributes:
        differences: by tensor.
        is_same: whether all bits are.
    """

    differences: tuple[Difference, ...]
    is_same: bool


def judge(
    task: str, ranks: int, precision: str, steps: Sequence[_Compared], *, is_alive: bool
) -> Verdict:
    """Find the verdict: equal bits or none. Pure.

    Args:
        task: its name.
        ranks: how many there were.
        precision: of the task.
        steps: both sides' in turn.
        is_alive: whether any gradient was not zero.
    """
    causes = []
    if not is_alive:
        causes.append(
            Cause(
                "no gradient at all",
                "all gradients of all steps are zero: two models that stand still are equal and show nothing",
                "look why the loss does not depend on the parameters",
            )
        )
    if not all(step.is_same for step in steps):
        causes.append(
            Cause(
                "something depends on the number of ranks",
                "each shard of a batch is computed alike on any number of ranks, unless the data or the model "
                "draws from a generator of its own, looks at its rank, or keeps something from call to call",
                "draw from torch's default generator within the loss, and let a sample depend on its index only",
            )
        )
    own = [each for step in steps for each in step.differences]
    return Verdict(
        task=task,
        ranks=ranks,
        mesh=f"dp={ranks}",
        precision=precision,
        is_equal=not causes,
        distance=largest(own),
        double_distance=None,
        rounding=None,
        tolerance=0.0,
        judged_in=precision,
        rows=rows_of(own, None),
        first=first_of(tuple(each for each in own if not each.distance <= 0)),
        causes=tuple(causes),
        notes=("compared bit by bit",),
    )


def _bits(step: Step) -> tuple[object, ...]:
    tensors = (step.gradients, step.parameters, step.buffers)
    return (
        step.loss,
        *({name: digest(each) for name, each in kind.items()} for kind in tensors),
    )


def _carry_out(task: Task, recipe: Recipe, steps: int, take: Callable[[int, Step], None]) -> str:
    """Train for some steps, and have each taken; returns the type of the model's numbers."""
    watch = _Watch(steps, take)
    with suppress(_Enough):
        loop.run(watched(task, watch), recipe, watch.observe)
    return str(next(watch.model.parameters()).dtype).removeprefix("torch.")


class _Watch:
    """Sees each step of the loop."""

    def __init__(self, steps: int, take: Callable[[int, Step], None]) -> None:
        self._steps, self._take = steps, take
        self._step = 0
        self._gradients: dict[str, Tensor] = {}
        self.model: nn.Module

    def data(self, data: Data) -> Data:
        """The training data, as it is."""
        return data

    def made(self, model: nn.Module) -> nn.Module:
        """The model, as it is."""
        self.model = model
        return model

    def loss(self, find: Callable[[Any], Tensor], batch: Any) -> Tensor:
        """The loss, as it is: random draws belong to it."""
        return find(batch)

    def prepared(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer, which shows gradients."""
        optimizer.register_step_pre_hook(self._before_update)
        return optimizer

    def _before_update(self, *_: object) -> None:
        self._gradients = {
            name: parameter.grad.detach().cpu().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }

    def observe(self, event: Event) -> None:
        """Hear of the loop's events."""
        if not isinstance(event, StepDone):
            return
        self._step += 1
        self._take(
            self._step,
            Step(
                event.loss,
                self._gradients,
                _copies(self.model.named_parameters()),
                _copies(self.model.named_buffers()),
            ),
        )
        if self._step == self._steps:
            raise _Enough


def _copies(named: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in named}


def _file(folder: Path, number: int) -> Path:
    return folder / f"bits-{number}.pt"
