"""How often ranks that step by themselves meet, and what they make of it: numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from doubletime.errors import TrainingError

OUTER = {"average": (1.0, 0.0), "diloco": (0.7, 0.9)}  # rate and momentum, as published


@dataclass(frozen=True)
class LocalSteps:
    """How ranks go apart, and meet.

    Attributes:
        every: so many steps from one meeting to the next.
        after: so many steps of the run are synchronous before.
        outer_lr: of the outer step; 1 without momentum is the plain mean.
        outer_momentum: of the outer step, Nesterov's.

    Raises:
        TrainingError: if one is out of range.
    """

    every: int
    after: int = 0
    outer_lr: float = 1.0
    outer_momentum: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        for name, value, least in (("local_steps", self.every, 1), ("local_after", self.after, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise TrainingError(f"{name} is {value!r}", f"give {name} {least} or more")
        if not (math.isfinite(self.outer_lr) and self.outer_lr > 0):
            raise TrainingError(
                f"outer_lr is {self.outer_lr!r}", "give outer_lr a number above 0, such as 0.7"
            )
        if not 0 <= self.outer_momentum < 1:
            raise TrainingError(
                f"outer_momentum is {self.outer_momentum!r}",
                "give outer_momentum at least 0 and less than 1, such as 0.9",
            )

    @property
    def is_mean(self) -> bool:
        """Whether parameters become the plain mean of the ranks'."""
        return self.outer_lr == 1 and self.outer_momentum == 0
