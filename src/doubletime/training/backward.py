"""Forward and backward passes of one step: this rank's part of the mean gradient over the global batch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from doubletime.errors import TrainingError
from doubletime.training import session
from doubletime.training.data import Batches
from doubletime.training.gradients import refuse_missing
from doubletime.training.precision import LossScale, forward_in
from doubletime.training.splitting import evenly, split
from doubletime.training.switches import Switches
from doubletime.training.sync_batchnorm import samples_ignored
from doubletime.training.waiting import WaitingClock

_NAMED = 8


@dataclass(frozen=True)
class Trouble:
    """A loss that is not finite.

    Attributes:
        loss: itself.
        rank: that had it.
        samples: that it is the mean of, as the training data numbers them.
        spoilt: those among them whose own numbers are not finite.
    """

    loss: float
    rank: int
    samples: tuple[int, ...]
    spoilt: tuple[int, ...]

    def describe(self) -> str:
        """In a clause: where, and of which samples."""
        said = f"on rank {self.rank}, over sample{'s' * (len(self.samples) > 1)} {_listed(self.samples)}"
        if self.spoilt:
            said += f"; {_listed(self.spoilt)} hold{'s' * (len(self.spoilt) == 1)} NaN or infinity"
        return said


class Gradients(Protocol):
    """What computes the gradients of a step: `Backward`, and what stands in its place.

    Attributes:
        trouble: the loss of the last step that was not finite; None if all were.
    """

    trouble: Trouble | None

    def compute(self, batch: Any, epoch: int, step: int) -> float:
        """Set gradients, and return this rank's mean loss; see `Backward.compute`."""
        ...


class Backward:
    """Computes gradients: the loss of each part of a batch, forward and backward.

    Args:
        loss_of: the task's: the mean loss of a batch, given a model.
        model: as `parallelize` returned it.
        batches: from which the batches come.
        switches: parts, precision, and whether a loss that is not finite stops the run.
        scale: of losses; may change between steps.
        clock: that measures how long gradients are waited for.
    """

    def __init__(
        self,
        loss_of: Callable[[nn.Module, Any], Tensor],
        model: nn.Module,
        batches: Batches,
        switches: Switches,
        scale: LossScale,
        clock: WaitingClock,
    ) -> None:
        self._loss_of, self._model, self._batches = loss_of, model, batches
        self._switches, self._scale, self._clock = switches, scale, clock
        self._joined = session.current()
        self.trouble: Trouble | None = None
        self._awaited: list[tuple[str, nn.Parameter]] = []
        self._reached: set[Tensor] = set()
        if isinstance(model, DistributedDataParallel):
            self._awaited = [
                (name, each) for name, each in model.module.named_parameters() if each.requires_grad
            ]
        for _, parameter in self._awaited:
            parameter.register_post_accumulate_grad_hook(self._reached.add)

    def compute(self, batch: Any, epoch: int, step: int) -> float:
        """Add to each parameter's gradient what this batch contributes; collective.

        Args:
            batch: this rank's share, on its device.
            epoch: from 1, to name it.
            step: of the epoch, likewise.

        Returns:
            This rank's mean loss. Where it is not finite and the run goes on, gradients are NaN on all
            ranks, and `trouble` says why.

        Raises:
            TrainingError: if the loss is not finite and the run shall stop, or if it does not depend on
                a parameter whose gradient the other ranks wait for.
        """
        batches, self.trouble = self._batches, None
        sizes = self._sizes()
        parts = [batch] if len(sizes) == 1 else _parts(batch, sizes, batches.count)
        total, first = 0.0, 0
        for number, (part, size) in enumerate(zip(parts, sizes, strict=True), 1):
            is_last = number == len(sizes)
            self._reached.clear()
            with _averaging(self._model, is_on=is_last):
                ignored = contextlib.nullcontext() if size else samples_ignored()
                with ignored, forward_in(self._switches.precision, self._joined.device):
                    loss = self._loss_of(self._model, part)
                value = float(loss.detach())
                if size and not math.isfinite(value):
                    self._note(value, part, batches.indices[first : first + size], epoch, step)
                    loss = loss * math.nan  # so that all ranks learn of it, whatever it was
                weight = size * batches.sampler.world_size / batches.global_count
                factor = weight * self._scale.scale
                with self._clock.step() if is_last else contextlib.nullcontext():
                    (loss if factor == 1 else loss * factor).backward()
            total += value * size if size else 0.0
            first += size
        # An earlier part's gradient is there, but nothing was sent: the last part's is waited for.
        refuse_missing([name for name, each in self._awaited if each not in self._reached])
        return total / batches.count if batches.count else value

    def _sizes(self) -> list[int]:
        """Samples of each part: as many parts on each rank, the last of some maybe without a sample."""
        batches = self._batches
        largest_share = -(-batches.global_count // batches.sampler.world_size)
        return evenly(batches.count, min(self._switches.accumulate, largest_share))

    def _note(self, value: float, part: Any, indices: list[int], epoch: int, step: int) -> None:
        spoilt = [indices[row] for row in _spoilt_rows(part, len(indices))]
        trouble = Trouble(value, self._joined.rank, tuple(indices), tuple(spoilt))
        if not self._switches.skips:
            raise TrainingError(
                f"the loss is {value} at step {step} of epoch {epoch}, {trouble.describe()}",
                "mend the data, or --on-nan skip"
                if spoilt
                else "lower the learning rate, --warmup or --clip-norm 1, or --on-nan skip",
            )
        self.trouble = self.trouble or trouble


def _parts(batch: Any, sizes: list[int], count: int) -> list[Any]:
    """The batch's parts; one that has no sample borrows the first, to be computed and not counted."""
    filled = [size for size in sizes if size]
    if not filled:
        return [batch] * len(sizes)
    parts = split(batch, filled)
    empty = len(sizes) - len(filled)
    return parts + split(batch, [1, count - 1])[:1] * empty if empty else parts


def _averaging(model: nn.Module, *, is_on: bool) -> AbstractContextManager[Any]:
    """Whether the backward passes within average gradients over the ranks, or keep them for later."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_on)
    elif isinstance(model, DistributedDataParallel) and not is_on:
        return model.no_sync()
    return contextlib.nullcontext()


def _spoilt_rows(part: Any, rows: int) -> list[int]:
    """The samples that hold a number which is not finite, where the batch shows them row by row."""
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, tuple | list):
        return sorted({row for each in part for row in _spoilt_rows(each, rows)})
    if not isinstance(part, Tensor) or not part.is_floating_point() or len(part) != rows:
        return []
    is_spoilt = ~torch.isfinite(part.detach()).reshape(rows, -1).all(dim=1)
    return [int(row) for row in is_spoilt.nonzero()]


def _listed(numbers: tuple[int, ...]) -> str:
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return ", ".join(map(str, numbers[:_NAMED])) + more
