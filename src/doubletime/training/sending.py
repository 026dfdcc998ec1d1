"""What ranks send each other of their gradients, and how often: compression, algorithm, local steps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypedDict

from doubletime.collectives.catalogue import AUTO, find
from doubletime.collectives.choice import NATIVE
from doubletime.errors import TrainingError
from doubletime.training.compression import spec
from doubletime.training.local_steps import OUTER, LocalSteps
from doubletime.training.switches import Switches


class SendingOptions(TypedDict, total=False):
    """How ranks send, as arguments; see `Sending`."""

    compress: str | None
    algorithm: str | None
    local_steps: int | None
    local_after: int | None
    outer: str | None
    outer_lr: float | None
    outer_momentum: float | None


@dataclass(frozen=True)
class Sending:
    """How ranks send; by default gradients as they are, by the backend's own all_reduce, at each step.

    Attributes:
        compress: `fp16`, `bf16`, `int8`, `powersgd:RANK` or `topk:SHARE`.
        algorithm: a reduction algorithm, as for `doubletime.all_reduce`.
        local_steps: average parameters after so many steps, in place of gradients at each.
        local_after: let so many steps be synchronous before.
        outer: what happens where ranks meet: "average", or "diloco" for an outer step.
        outer_lr, outer_momentum: of that outer step, in place of the published ones.

    Raises:
        TrainingError: if they are out of range, or do not go together.
        ScheduleError: if there is no such algorithm.
    """

    compress: str | None = None
    algorithm: str | None = None
    local_steps: int | None = None
    local_after: int | None = None
    outer: str | None = None
    outer_lr: float | None = None
    outer_momentum: float | None = None

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.compress is not None:
            spec.parse(self.compress)
        if self.algorithm not in (None, AUTO, NATIVE):
            find(str(self.algorithm))
        if self.outer is not None and self.outer not in OUTER:
            raise TrainingError(f"outer is {self.outer!r}", f"one of {', '.join(OUTER)}")
        if self.local_steps is None:
            for name in ("local_after", "outer", "outer_lr", "outer_momentum"):
                if getattr(self, name) is not None:
                    raise TrainingError(
                        f"{name} is given, but ranks average gradients at each step",
                        "add --local-steps, such as --local-steps 16",
                    )
        elif self.compress is not None and not self.local_after:
            raise TrainingError(
                f"with local steps from the start, compression {self.compress!r} has nothing to compress",
                "leave out --compress, or begin with synchronous steps: --local-after 100",
            )
        _ = self.local

    @classmethod
    def of(cls, options: SendingOptions) -> Sending:
        """What was given, the rest by default.

        Raises:
            TypeError: if there is no such option.
            TrainingError: as the class.
        """
        return cls(**options)

    def check(self, switches: Switches) -> None:
        """Whether it goes together with what else the run adds to its task.

        Raises:
            TrainingError: if not.
        """
        if self.given() and switches.reproducible:
            raise TrainingError(
                f"{', '.join(self.given())}: reproducible training sums gradients in an order of its own",
                "leave out --reproducible, or the other",
            )
        if self.local_steps is not None:
            for name, asked in (("on_nan", switches.skips), ("check_every", switches.check_every)):
                if asked:
                    raise TrainingError(
                        f"{name} needs ranks that make the same steps, local_steps lets them go apart",
                        f"leave out --{name.replace('_', '-')} or --local-steps",
                    )
        keeps = self.compress is not None and spec.parse(self.compress).keeps
        if keeps and switches.precision == "fp16":
            raise TrainingError(
                f"{self.compress} keeps gradients for later steps, whose scale fp16 may change",
                "--precision bf16, or --compress fp16 or bf16",
            )

    @property
    def local(self) -> LocalSteps | None:
        """How ranks go apart, if they do."""
        if self.local_steps is None:
            return None
        lr, momentum = OUTER[self.outer or "average"]
        return LocalSteps(
            self.local_steps,
            self.local_after or 0,
            lr if self.outer_lr is None else self.outer_lr,
            momentum if self.outer_momentum is None else self.outer_momentum,
        )

    def given(self) -> dict[str, object]:
        """What was given, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        """In words: `topk:0.01 by ring`, `every 16 steps`."""
        words = []
        if self.compress:
            words.append(self.compress)
        if self.algorithm:
            words.append(f"by {self.algorithm}")
        if (local := self.local) is not None:
            words.append(f"every {local.every} steps")
            words += [f"after {local.after}"] if local.after else []
            words += [] if local.is_mean else [f"outer lr {local.outer_lr:g}"]
        return " ".join(words)
