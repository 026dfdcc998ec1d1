"""One step of synchronous SGD: the mean gradient over the global batch, then the update, or neither."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from doubletime.errors import TrainingError
from doubletime.training import session
from doubletime.training.alike import check_alike
from doubletime.training.backward import Gradients, Trouble
from doubletime.training.clipping import gradients_of, multiply, total_norm
from doubletime.training.events import Notice, Observer
from doubletime.training.learning_rate import Rate
from doubletime.training.precision import LossScale
from doubletime.training.switches import Switches

_NAMED = 3


class Step:
    """Makes steps, as a run's switches say.

    Args:
        model: that is trained, not wrapped.
        optimizer, lr_schedule: as the task made them.
        rate: what learning rates are multiplied with.
        backward: computes gradients.
        scale: of losses, shared with `backward`.
        switches: clipping, skipping, checks.
        replicas: the ranks that hold the same numbers of the model; None for all.
        stages: the ranks that hold other layers of it; None if there are none.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        lr_schedule: torch.optim.lr_scheduler.LRScheduler | None,
        rate: Rate,
        backward: Gradients,
        scale: LossScale,
        switches: Switches,
        *,
        replicas: dist.ProcessGroup | None = None,
        stages: dist.ProcessGroup | None = None,
    ) -> None:
        self._model, self._optimizer, self._lr_schedule = model, optimizer, lr_schedule
        self._rate, self._backward, self._scale = rate, backward, scale
        self._switches, self._replicas, self._stages = switches, replicas, stages
        self._skipped = 0

    @property
    def state(self) -> dict[str, float]:
        """What a run needs to go on as if it had not stopped; the same on all ranks."""
        if self._scale.is_fixed and not self._skipped:
            return {}
        return {
            "scale": self._scale.scale,
            "scale_steps": self._scale.steps,
            "skipped": self._skipped,
        }

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a state."""
        if state and not self._scale.is_fixed:
            self._scale.scale = state["scale"]
            self._scale.steps = int(state["scale_steps"])
        self._skipped = int(state.get("skipped", 0))

    def make(
        self,
        batch: Any,
        epoch: int,
        step: int,
        done: int,
        observe: Observer,
        before_update: Callable[[], None],
    ) -> float | None:
        """Make one; collective.

        Args:
            batch: this rank's share, on its device.
            epoch: from 1, to name it.
            step: of the epoch, likewise.
            done: how many steps the run has made before, over all epochs.
            observe: hears of a step that is skipped.
            before_update: is called once gradients are there, before parameters change.

        Returns:
            This rank's mean loss; None if the step is skipped.

        Raises:
            TrainingError: if a loss or a gradient is not finite and the run may not skip the step, or if
                ranks have come to hold different parameters.
        """
        buffers = self._buffers() if self._switches.skips else []
        self._optimizer.zero_grad(set_to_none=True)
        loss: float | None = self._backward.compute(batch, epoch, step)
        is_good = self._prepare_gradients()
        before_update()
        if is_good:
            with self._rate.applied(done):
                self._optimizer.step()
        else:
            loss = None
            self._skip(f"step {step} of epoch {epoch}", observe)
            for buffer, value in buffers:
                buffer.copy_(value)
        if self._lr_schedule is not None:
            self._lr_schedule.step()
        if self._switches.check_every and (done + 1) % self._switches.check_every == 0:
            check_alike(self._model, f"after step {step} of epoch {epoch}", self._replicas)
        return loss

    def _buffers(self) -> list[tuple[Tensor, Tensor]]:
        return [(buffer, buffer.clone()) for buffer in self._model.buffers()]

    def _prepare_gradients(self) -> bool:
        """Take the scale off, and clip; returns whether they are finite."""
        clip_norm = self._switches.clip_norm
        if clip_norm is None and self._scale.is_fixed and not self._switches.skips:
            return True  # nobody asks
        gradients = gradients_of(self._model.parameters())
        norm = total_norm(gradients, self._stages) / self._scale.scale
        if not math.isfinite(norm):
            return False
        factor = 1 / self._scale.scale
        if clip_norm is not None and norm > clip_norm:
            factor *= clip_norm / norm
        if factor != 1:
            multiply(gradients, factor)
        if not self._scale.is_fixed:
            self._scale.grow()
        return True

    def _skip(self, where: str, observe: Observer) -> None:
        """Say why there is no update; collective.

        Raises:
            TrainingError: if there must be one.
        """
        troubles = _of_all_ranks(self._backward.trouble)
        scale, allowed = self._scale, self._switches.skips
        if not troubles and not scale.is_fixed and not scale.is_least:
            before = scale.scale
            scale.shrink()
            observe(
                Notice(
                    f"{where} is skipped: gradients overflow at scale {before:g}, the next is "
                    f"{scale.scale:g}"
                )
            )
            return
        if troubles:
            why = f"the loss is {troubles[0].loss} {troubles[0].describe()}"
        else:
            why = f"the gradient is not finite{self._spoilt_parameters()}"
        remedy = (
            "lower the learning rate, --warmup or --clip-norm, or look for bad values in the data"
        )
        if not allowed:
            raise TrainingError(f"at {where} {why}", f"{remedy}; or --on-nan skip")
        self._skipped += 1
        if self._skipped > allowed:
            raise TrainingError(
                f"{self._skipped} steps were to be skipped, and {allowed} may be; at {where} {why}",
                f"{remedy}; or --on-nan skip:{10 * allowed}",
            )
        observe(
            Notice(f"{where} is skipped: {why} ({self._skipped} of at most {allowed} that may be)")
        )

    def _spoilt_parameters(self) -> str:
        """In which parameters it is not, of those that are here."""
        names = [
            name
            for name, parameter in self._model.named_parameters()
            if parameter.grad is not None and not math.isfinite(total_norm([parameter.grad]))
        ]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f" in {', '.join(names[:_NAMED])}{more}" if names else ""


def _of_all_ranks(trouble: Trouble | None) -> list[Trouble]:
    everyone: list[Trouble | None] = [trouble] * session.current().world_size
    if len(everyone) > 1:
        dist.all_gather_object(everyone, trouble)
    return [each for each in everyone if each is not None]
