"""The pipeline schedules: who has which stages, and how large the bubble must be."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.distributed.pipelining import schedules as torch_schedules

from doubletime.errors import PipelineError


@dataclass(frozen=True)
class PipelineSchedule:
    """In which order each rank computes its stages' microbatches.

    Attributes:
        name: as published.
        stages_per_rank: 2 where a rank computes two parts of the model.
        returns: whether the second half of the stages goes back from the last rank to the first.
        engine: PyTorch's class.
        accepts: whether it can be used for so many ranks and microbatches.
        otherwise: PyTorch's class where it does not accept them.
        bubble: the share of time that a rank must wait, for ranks and microbatches, where all stages
            take equally long and backward twice as long as forward.
        source: where it was published.
    """

    name: str
    stages_per_rank: int
    returns: bool
    engine: Any
    accepts: Callable[[int, int], bool]
    otherwise: Any
    bubble: Callable[[int, int], float]
    source: str

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are computed later than those of activations.

        PyTorch then detaches what a stage has made, in place, between both.
        """
        return self.name in ("zero_bubble", "zbv")

    def stages_of(self, rank: int, ranks: int) -> list[int]:
        """The stages of one rank, ascending."""
        if self.returns:
            return [rank, 2 * ranks - 1 - rank]
        return [rank + turn * ranks for turn in range(self.stages_per_rank)]

    def rank_of(self, stage: int, ranks: int) -> int:
        """The rank that has a stage."""
        if self.returns and stage >= ranks:
            return 2 * ranks - 1 - stage
        return stage % ranks

    def engine_for(self, ranks: int, micro_batches: int) -> Any:
        """PyTorch's class for so many microbatches."""
        return self.engine if self.accepts(ranks, micro_batches) else self.otherwise


def _one_round_each(ranks: int, micro_batches: int) -> bool:
    return micro_batches % max(1, micro_batches // ranks) == 0


def _always(ranks: int, micro_batches: int) -> bool:
    del ranks, micro_batches
    return True


def _fill_and_drain(ranks: int, micro_batches: int) -> float:
    return (ranks - 1) / (micro_batches + ranks - 1)


SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        PipelineSchedule(
            "gpipe",
            1,
            False,
            torch_schedules.ScheduleGPipe,
            _always,
            torch_schedules.ScheduleGPipe,
            _fill_and_drain,
            "Huang et al., arXiv:1811.06965 (2018)",
        ),
        PipelineSchedule(
            "1f1b",
            1,
            False,
            torch_schedules.Schedule1F1B,
            lambda ranks, micro_batches: micro_batches >= ranks,
            torch_schedules.ScheduleGPipe,
            _fill_and_drain,
            "Narayanan et al., arXiv:1806.03377 (2018)",
        ),
        PipelineSchedule(
            "interleaved",
            2,
            False,
            torch_schedules.ScheduleInterleaved1F1B,
            _one_round_each,
            torch_schedules.ScheduleLoopedBFS,
            lambda ranks, micro_batches: (ranks - 1) / (2 * micro_batches + ranks - 1),
            "Narayanan et al., arXiv:2104.04473 (2021)",
        ),
        PipelineSchedule(
            "zero_bubble",
            1,
            False,
            torch_schedules.ScheduleInterleavedZeroBubble,
            _one_round_each,
            torch_schedules.ScheduleLoopedBFS,
            lambda ranks, micro_batches: (ranks - 1) / (3 * micro_batches + ranks - 1),
            "Qi et al., arXiv:2401.10241 (2023), ZB-H1",
        ),
        PipelineSchedule(
            "zbv",
            2,
            True,
            torch_schedules.ScheduleZBVZeroBubble,
            _always,
            torch_schedules.ScheduleZBVZeroBubble,
            lambda ranks, micro_batches: (
                0.0 if micro_batches >= 2 * ranks else (ranks - 1) / (6 * micro_batches + ranks - 1)
            ),
            "Qi et al., arXiv:2401.10241 (2023), section 6",
        ),
    )
}
DEFAULT = "1f1b"


def named(name: str) -> PipelineSchedule:
    """The schedule of this name.

    Raises:
        PipelineError: if there is none.
    """
    if name not in SCHEDULES:
        near = difflib.get_close_matches(name, SCHEDULES, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise PipelineError(
            f"there is no pipeline schedule {name!r}", f"{guess}choose among {', '.join(SCHEDULES)}"
        )
    return SCHEDULES[name]
