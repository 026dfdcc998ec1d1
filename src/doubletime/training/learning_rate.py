"""The learning rate of a batch that is larger than its task's: scaled, and reached gradually.

Goyal et al. 2017 (arXiv:1706.02677): k times the batch wants k times the rate, and a warm-up that begins
with the rate as it was. Adaptive optimizers rather want the square root (Krizhevsky 2014,
arXiv:1404.5997; You et al. 2020, arXiv:1904.00962).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from doubletime.errors import TrainingError
from doubletime.training.switches import Switches


def scale(rule: str, global_batch: int, own_batch: int) -> float:
    """By how much a rule multiplies the rate that is right for `own_batch`. Pure.

    Args:
        rule: "none", "linear" or "sqrt".
        global_batch: samples of a step.
        own_batch: samples of a step that the rate was chosen for.
    """
    ratio = global_batch / own_batch
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]


def warm(step: int, steps: int, target: float) -> float:
    """The factor of the rate at a step. Pure.

    It rises by equal amounts, from 1 where the rate is scaled up, else from a `steps`-th of the target.

    Args:
        step: from 0.
        steps: how many it rises; from then on it is `target`.
        target: the factor at the end, above 0.
    """
    if step >= steps:
        return target
    first = 1.0 if target > 1 else target / steps
    return first + (target - first) * step / steps


class Rate:
    """Multiplies what the task and its schedule set as learning rates, while a step is made.

    The schedule never sees the factors, so any may be used, and a checkpoint holds its own numbers.

    Args:
        switches: the rule, the warm-up, and the rate asked for.
        optimizer: as the task made it, before a schedule has changed its rates.
        global_batch: samples of a step.
        own_batch: the task's own.
        steps_per_epoch: global batches.

    Raises:
        TrainingError: if a rate is asked for and the task's own is 0, or none at all.
    """

    def __init__(
        self,
        switches: Switches,
        optimizer: torch.optim.Optimizer,
        global_batch: int,
        own_batch: int,
        steps_per_epoch: int,
    ) -> None:
        self._optimizer = optimizer
        self._constant = 1.0
        if switches.lr is not None:
            own = float(optimizer.param_groups[0].get("lr", 0.0))
            if not own > 0:
                raise TrainingError(
                    f"the task's optimizer has the learning rate {own:g}, which cannot be scaled to "
                    f"{switches.lr:g}",
                    "give the optimizer a rate above 0 in the task",
                )
            self._constant = switches.lr / own
        self._scale = scale(switches.scale_lr, global_batch, own_batch)
        self._steps = switches.warmup_steps(steps_per_epoch)

    def factor(self, step: int) -> float:
        """That of a step, from 0, counted over all epochs."""
        return self._constant * warm(step, self._steps, self._scale)

    @contextmanager
    def applied(self, step: int) -> Iterator[None]:
        """Around the optimizer's step."""
        factor = self.factor(step)
        if factor == 1:
            yield
            return
        groups = self._optimizer.param_groups
        own = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            for group, rate in zip(groups, own, strict=True):
                group["lr"] = rate
