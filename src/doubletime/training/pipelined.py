"""The gradients of a step whose model lies in stages on several ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from doubletime.errors import TrainingError
from doubletime.training import session
from doubletime.training.backward import Trouble
from doubletime.training.data import Batches
from doubletime.training.gradients import average, refuse_missing
from doubletime.training.pipeline.pipeline import Pipeline
from doubletime.training.precision import LossScale, forward_in
from doubletime.training.switches import Switches


class PipelinedBackward:
    """Computes gradients by a pipeline, and averages them over pipelines side by side.

    Args:
        pipeline: with this rank's stages.
        batches: from which the batches come.
        switches: precision, and whether a loss that is not finite stops the run.
        scale: of losses; may change between steps.
        group: of the ranks with the same stages and other samples; None for all.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        batches: Batches,
        switches: Switches,
        scale: LossScale,
        group: dist.ProcessGroup | None,
    ) -> None:
        self._pipeline, self._batches = pipeline, batches
        self._switches, self._scale, self._group = switches, scale, group
        self._joined = session.current()
        self._parameters = {
            name: each for name, each in pipeline.module.named_parameters() if each.requires_grad
        }
        self.trouble: Trouble | None = None

    def compute(self, batch: Any, epoch: int, step: int) -> float:
        """See `Backward.compute`; all ranks along pp are given the same batch."""
        batches, self.trouble = self._batches, None
        with forward_in(self._switches.precision, self._joined.device):
            value = self._pipeline.step(batch, batches.weight * self._scale.scale)
        refuse_missing([name for name, each in self._parameters.items() if each.grad is None])
        if batches.count and not math.isfinite(value):
            self._note(value, epoch, step)
        average(list(self._parameters.values()), self._group)
        return value

    def _note(self, value: float, epoch: int, step: int) -> None:
        """Have all ranks learn of a loss that is not finite.

        Raises:
            TrainingError: if the run shall stop.
        """
        trouble = Trouble(value, self._joined.rank, tuple(self._batches.indices), ())
        if not self._switches.skips:
            raise TrainingError(
                f"the loss is {value} at step {step} of epoch {epoch}, {trouble.describe()}",
                "lower the learning rate, --warmup or --clip-norm 1, or --on-nan skip",
            )
        if self._pipeline.has_output:  # one rank of the pipeline tells
            self.trouble = trouble
        with torch.no_grad():
            for parameter in self._parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(math.nan)
