"""The precision of forward passes, and the scale that keeps gradients of 16 bits from vanishing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

_FIRST_SCALE = 2.0**16
_GROWS_AFTER = 2000  # steps without an overflow; these numbers are torch.amp.GradScaler's
_LEAST_SCALE = 2.0**-14
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def forward_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Around a forward pass: parameters stay as they are, operations that gain run in 16 bits.

    Args:
        precision: "fp32" leaves all as it is, "bf16" or "fp16".
        device: where.
    """
    if precision not in _DTYPES:
        return nullcontext()
    return torch.autocast(device.type, _DTYPES[precision])


@dataclass
class LossScale:
    """By what a loss is multiplied, so that small gradients do not become 0 in fp16.

    It is halved at each overflow, whose step is skipped, and doubled after 2,000 steps without one
    (Micikevicius et al. 2018, arXiv:1710.03740). Decided on the norm over all ranks' gradients, so ranks
    agree also where each holds shards; torch's GradScaler would look at its own alone.

    Attributes:
        scale: at present.
        steps: since it last changed.
    """

    scale: float = 1.0
    steps: int = 0

    @classmethod
    def of(cls, precision: str) -> LossScale:
        """That with which a run begins: 1 unless gradients may vanish."""
        return cls(_FIRST_SCALE if precision == "fp16" else 1.0)

    @property
    def is_fixed(self) -> bool:
        """Whether nothing is scaled."""
        return self.scale == 1.0

    @property
    def is_least(self) -> bool:
        """Whether it cannot be made smaller: then gradients are not finite for another reason."""
        return self.scale <= _LEAST_SCALE

    def grow(self) -> None:
        """A step went well."""
        self.steps += 1
        if self.steps >= _GROWS_AFTER:
            self.scale, self.steps = self.scale * 2, 0

    def shrink(self) -> None:
        """Gradients overflowed."""
        self.scale, self.steps = self.scale / 2, 0
