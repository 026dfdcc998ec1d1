"""What a run may add to its task: larger batches, less memory, another precision, more checks."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, fields
from typing import TypedDict

from doubletime.errors import TrainingError

_CHOICES = {
    "scale_lr": ("none", "linear", "sqrt"),
    "optimizer": ("lars", "lamb"),
    "precision": ("fp32", "bf16", "fp16"),
    "schedule": ("gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"),
}
_OPTIONAL = ("optimizer", "schedule")
_SKIPS = 10  # steps that a run may skip where no number is given


class SwitchOptions(TypedDict, total=False):
    """The switches as arguments; see `Switches`."""

    lr: float | None
    scale_lr: str
    warmup: float | str
    optimizer: str | None
    accumulate: int
    clip_norm: float | None
    precision: str
    checkpoint_activations: bool
    compile: bool
    on_nan: str
    sync_batchnorm: bool
    check_every: int
    reproducible: bool
    schedule: str | None
    microbatches: int


@dataclass(frozen=True)
class Switches:
    """What a run adds to its task; by default nothing.

    Attributes:
        lr: the learning rate, in place of the one that the task gives its optimizer; a schedule of the
            task is scaled alike.
        scale_lr: "linear" multiplies the rate by the global batch over the task's own, "sqrt" by the
            square root of that, "none" leaves it.
        warmup: how long the rate rises to its full value: so many epochs, or steps as in "200steps".
        optimizer: "lars" or "lamb" in place of the task's; needs `lr`.
        accumulate: how many parts each rank's share of a batch is computed in, one after the other.
        clip_norm: the largest norm that the gradient over all parameters may have.
        precision: of the forward pass: "fp32" as the model is, "bf16" or "fp16".
        checkpoint_activations: compute activations again for the backward pass, to save memory.
        compile: the model, by torch.compile.
        on_nan: "stop" at a loss or gradient that is not finite, or "skip" the step; "skip:20" up to so
            many steps, else 10.
        sync_batchnorm: let BatchNorm take its mean and variance over the global batch.
        check_every: after so many steps, compare the parameters of all ranks; 0 never.
        reproducible: the same bits on 1, 2, 4 and 8 ranks.
        schedule: of a pipeline: "gpipe", "1f1b", "interleaved", "zero_bubble" or "zbv"; None for 1f1b.
        microbatches: into how many parts a pipeline divides a batch; 0 for four a stage.

    Raises:
        TrainingError: if one is out of range.
    """

    lr: float | None = None
    scale_lr: str = "none"
    warmup: float | str = 0
    optimizer: str | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    precision: str = "fp32"
    checkpoint_activations: bool = False
    compile: bool = False
    on_nan: str = "stop"
    sync_batchnorm: bool = False
    check_every: int = 0
    reproducible: bool = False
    schedule: str | None = None
    microbatches: int = 0

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices and not (name in _OPTIONAL and value is None):
                raise TrainingError(f"{name} is {value!r}", f"one of {', '.join(choices)}")
        for name, least in (("accumulate", 1), ("check_every", 0), ("microbatches", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise TrainingError(f"{name} is {value!r}", f"give {name} {least} or more")
        for name in ("lr", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not _is_positive(value):
                raise TrainingError(f"{name} is {value!r}", f"give {name} a number above 0")
        if self.optimizer is not None and self.lr is None:
            raise TrainingError(
                f"{self.optimizer} needs a learning rate of its own: the task's is meant for its optimizer",
                "add --lr: about 2 to 10 for lars, 0.001 to 0.01 for lamb",
            )
        self.warmup_steps(1)
        _ = self.skips

    @classmethod
    def of(cls, options: SwitchOptions) -> Switches:
        """The switches that were given, the others at rest.

        Raises:
            TrainingError: if there is no such switch, or one is out of range.
        """
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                guess = f"did you mean {near[0]}? " if near else ""
                raise TrainingError(f"there is no switch {name!r}", f"{guess}{', '.join(known)}")
        return cls(**options)

    def warmup_steps(self, steps_per_epoch: int) -> int:
        """How many steps the learning rate rises.

        Raises:
            TrainingError: if `warmup` is no such number.
        """
        text = str(self.warmup).strip()
        try:
            number = text.removesuffix("steps").strip()
            steps = int(number) if text.endswith("steps") else float(text) * steps_per_epoch
        except ValueError:
            steps = -1
        if not math.isfinite(steps) or steps < 0:
            raise TrainingError(
                f"warmup is {self.warmup!r}",
                "give epochs such as 5 or 0.5, or steps such as 200steps",
            )
        return round(steps)

    @property
    def skips(self) -> int:
        """How many steps may be skipped, 0 to stop at the first that is not finite.

        Raises:
            TrainingError: if `on_nan` is neither "stop" nor "skip" nor "skip:N".
        """
        word, separator, number = str(self.on_nan).partition(":")
        if self.on_nan == "stop":
            return 0
        if word == "skip" and not separator:
            return _SKIPS
        if word == "skip" and number.isascii() and number.isdigit() and int(number):
            return int(number)
        raise TrainingError(
            f"on_nan is {self.on_nan!r}", "stop, skip, or skip:20 for at most 20 steps"
        )

    def turned(self) -> dict[str, object]:
        """Those that are not at rest, by name."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if str(getattr(self, each.name)) != str(each.default)  # "0" is at rest as 0 is
        }


def _is_positive(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )
