"""A task that is watched while the training loop trains it, unchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from doubletime.training.task import Data, Task


class Watcher(Protocol):
    """Sees what goes from the task to the loop, and may put something in its place."""

    def data(self, data: Data) -> Data:
        """The training data."""

    def made(self, model: nn.Module) -> nn.Module:
        """The model as it was made."""

    def loss(self, find: Callable[[Any], Tensor], batch: Any) -> Tensor:
        """The loss of a batch, which `find` finds."""

    def prepared(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer."""


def watched(task: Task, watcher: Watcher) -> Task:
    """The same task, under the watcher's eyes; it has no test data, so that nothing is evaluated.

    Args:
        task: stays as it is, but for what both keep in objects that they share.
        watcher: what is told.
    """
    spy = copy.copy(task)
    kind = type(task)
    spy.__class__ = type(kind.__name__, (_Watched, kind), {"name": task.name})
    spy.__dict__["_watcher"] = watcher
    return spy


class _Watched(Task):
    """Stands before the task's own class in the order in which methods are looked up."""

    _watcher: Watcher

    def train_data(self) -> Data:
        return self._watcher.data(super().train_data())

    def test_data(self) -> Data | None:
        return None

    def model(self) -> nn.Module:
        model = super().model()
        return self._watcher.made(model) if isinstance(model, nn.Module) else model

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        find = super().loss
        return self._watcher.loss(lambda given: find(model, given), batch)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return self._watcher.prepared(super().optimizer(parameters))


def settings_of(optimizer: torch.optim.Optimizer) -> tuple[Mapping[str, float], ...]:
    """The numbers of each parameter group."""
    return tuple(
        {
            name: float(value)
            for name, value in group.items()
            if isinstance(value, int | float | Tensor)
        }
        for group in optimizer.param_groups
    )
