"""What is recorded of a computation, by one process or by a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

GRADIENTS, PARAMETERS, BUFFERS, LOSS = "gradients", "parameters", "buffers", "loss"
KINDS = (GRADIENTS, PARAMETERS, BUFFERS, LOSS)


@dataclass(frozen=True)
class Step:
    """One step's numbers, on the CPU.

    Attributes:
        loss: the mean over the global batch.
        gradients: of the parameters that have one, as the optimizer gets them.
        parameters, buffers: after the step.
    """

    loss: float
    gradients: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]

    def save(self, file: Path) -> None:
        """Write it."""
        torch.save(vars(self), file)

    @classmethod
    def load(cls, file: Path) -> Step:
        """Read what `save` wrote."""
        return cls(**torch.load(file))


@dataclass(frozen=True)
class Start:
    """What a rank begins with.

    Attributes:
        samples: of the training data.
        global_batch: as it came out.
        state: a digest of each parameter and buffer, as `model()` made them.
    """

    samples: int
    global_batch: int
    state: Mapping[str, bytes]


@dataclass(frozen=True)
class Before:
    """A rank's step up to its loss.

    Attributes:
        loss: the mean over this rank's share.
        count: samples of it that count.
        samples: a digest of each, in order; none where they cannot be told apart.
        replaced, kept: operations that drew random numbers; see `Draws`.
        foreign: generators besides torch's that were drawn from.
        generator: a digest of torch's generator at the first draw; None without draws.
        unreached: trainable parameters that the loss does not depend on.
    """

    loss: float
    count: int
    samples: tuple[bytes, ...]
    replaced: tuple[str, ...]
    kept: tuple[str, ...]
    foreign: tuple[str, ...]
    generator: bytes | None
    unreached: tuple[str, ...]


@dataclass(frozen=True)
class After:
    """A rank's model and optimizer after a step.

    Attributes:
        parameters, buffers: a digest of each.
        settings: the numbers of each of the optimizer's parameter groups, such as its lr, in the step.
    """

    parameters: Mapping[str, bytes]
    buffers: Mapping[str, bytes]
    settings: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class Account:
    """All that is known of one pass over some steps, by rank.

    Attributes:
        start: each rank's.
        before: of each step, that of rank 0 and of each rank with other samples, in the order of shares.
        after: of each step that was completed, each rank's.
        averaging: by parameter, the largest distance of the mean gradient from the exact mean, over
            the mean of the ranks' norms; empty for one process.
    """

    start: tuple[Start, ...]
    before: tuple[tuple[Before, ...], ...]
    after: tuple[tuple[After, ...], ...]
    averaging: Mapping[str, float]


@dataclass(frozen=True)
class Difference:
    """How far one tensor of one step is from the reference's.

    Attributes:
        step: from 1.
        kind: one of `KINDS`.
        name: the parameter's or buffer's; "" for the loss.
        distance: relative, see `distance.distances`.
    """

    step: int
    kind: str
    name: str
    distance: float


@dataclass(frozen=True)
class Shares:
    """What one process finds for the shares that the ranks would get of its first batch.

    Distances are of the weighted mean of the shares' gradients from the whole batch's, where nothing
    else is said.

    Attributes:
        losses: of each share, in training mode.
        mean_loss: the distance of their weighted mean from the whole batch's loss.
        training: in training mode.
        normalizations_fixed: with batch normalizations alone in evaluation mode.
        evaluation: with the whole model in evaluation mode.
        summed: in training mode, of the shares' plain sum.
        normalizations: the model's batch normalizations that use the batch's moments, by name and kind.
    """

    losses: tuple[float, ...]
    mean_loss: float
    training: float
    normalizations_fixed: float
    evaluation: float
    summed: float
    normalizations: tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """What one process has found; the steps lie beside it, a file for each.

    Attributes:
        account: of the pass in the task's own precision.
        precision: that one, such as "float32".
        double: whether there is a pass in float64 too.
        why_not_double: what the task said where it cannot be carried out in float64.
        rounding: the largest distance of each kind between the two passes.
        shares: None where the first batch cannot be divided by samples.
        is_repeatable: whether the training data gives the same sample when asked twice.
        dead_steps: those whose gradients are all zero.
        has_moved: whether any parameter has changed.
        still: trainable parameters whose gradient was zero in every step.
    """

    account: Account
    precision: str
    double: bool
    why_not_double: str | None
    rounding: Mapping[str, float]
    shares: Shares | None
    is_repeatable: bool
    dead_steps: tuple[int, ...]
    has_moved: bool
    still: tuple[str, ...]
