"""PyTorch's stages and schedule, for microbatches of one number and shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from doubletime.errors import DoubletimeError, PipelineError
from doubletime.training.pipeline.calling import Microbatches
from doubletime.training.pipeline.schedules import PipelineSchedule
from doubletime.training.pipeline.stage import Runner, Stopwatch, TimedStage


class Engine:
    """Runs steps of one rank's stages.

    Args:
        parts: this rank's stages, by number.
        stages: how many there are on all ranks.
        boundaries: what each stage but the last makes, without content.
        schedule: in which order.
        count: of microbatches.
        group: whose ranks have the stages.
        stopwatch: that is to run while this rank computes.
    """

    def __init__(
        self,
        parts: Mapping[int, nn.Module],
        stages: int,
        boundaries: Sequence[tuple[Tensor, ...]],
        schedule: PipelineSchedule,
        count: int,
        group: dist.ProcessGroup | None,
        stopwatch: Stopwatch,
    ) -> None:
        device, last = stopwatch.device, stages - 1
        self._is_first, self._is_last = 0 in parts, last in parts
        self._numbers = torch.arange(count, device=device)
        self._micro: Microbatches | None = None
        self._share, self._weight = 1.0, 1.0
        self._losses: list[Tensor] = []
        number = torch.empty(1, dtype=torch.int64, device="meta")
        loss = torch.empty((), device="meta", requires_grad=True)
        timed = []
        for index, part in parts.items():
            runner = Runner(
                part,
                self._feed if index == 0 else None,
                self._finish if index == last else None,
                boundaries[index] if index < last else (),
                must_own=schedule.splits_backward,
            )
            stage = TimedStage(
                runner,
                index,
                stages,
                device,
                input_args=boundaries[index - 1] if index else (number,),
                output_args=boundaries[index] if index < last else (loss,),
                group=group,
            )
            stage.stopwatch, stage.runner = stopwatch, runner
            timed.append(stage)
        engine = schedule.engine_for(dist.get_world_size(group), count)
        self._schedule = engine(
            timed[0] if issubclass(engine, PipelineScheduleSingle) else timed,
            n_microbatches=count,
            loss_fn=lambda output, _: output,
            scale_grads=False,
        )

    def run(self, micro: Microbatches, share: float, weight: float) -> list[Tensor]:
        """Forward and backward of all microbatches.

        Returns:
            Each one's loss times `share`, on the rank with the last stage.
        """
        self._micro, self._share, self._weight = micro, share, weight
        self._losses = []
        arguments = (self._numbers,) if self._is_first else ()
        options: Mapping[str, Any] = {"target": self._numbers} if self._is_last else {}
        try:
            self._schedule.step(*arguments, return_outputs=False, **options)
        except RuntimeError as error:
            if isinstance(error.__cause__, DoubletimeError):
                raise error.__cause__ from error
            raise
        finally:
            self._micro = None
        return self._losses

    def _feed(self, number: int) -> tuple[Tensor, ...]:
        if self._micro is None:
            raise PipelineError("a stage was run outside a step")
        return self._micro.inputs(number)

    def _finish(self, number: int, output: Any) -> Tensor:
        if self._micro is None:
            raise PipelineError("a stage was run outside a step")
        loss: Tensor = self._micro.finish(number, output) * self._share
        self._losses.append(loss.detach())
        return loss * self._weight
