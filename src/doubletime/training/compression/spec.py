"""What `--compress` says: which way to make gradients smaller, and how much."""

from __future__ import annotations

from dataclasses import dataclass

from doubletime.errors import TrainingError

FP16, BF16, INT8, POWERSGD, TOPK = "fp16", "bf16", "int8", "powersgd", "topk"
_FIXED = (FP16, BF16, INT8)
_REMEDY = (
    "one of fp16, bf16, int8, powersgd:RANK (such as powersgd:2), topk:SHARE (such as topk:0.01)"
)


@dataclass(frozen=True)
class Compression:
    """How gradients are made smaller.

    Attributes:
        kind: `fp16`, `bf16`, `int8`, `powersgd` or `topk`.
        number: the rank of `powersgd`'s matrices, the share of the elements that `topk` sends; else 0.
    """

    kind: str
    number: float = 0

    @property
    def keeps(self) -> bool:
        """Whether what one step does not send is kept for the next."""
        return self.kind in (INT8, POWERSGD, TOPK)

    def __str__(self) -> str:
        return f"{self.kind}:{self.number:g}" if self.number else self.kind


def parse(text: str) -> Compression:
    """Read `fp16`, `bf16`, `int8`, `powersgd:2`, `topk:0.01`.

    Raises:
        TrainingError: if it says something else.
    """
    kind, colon, number = text.strip().partition(":")
    if kind in _FIXED:
        if colon:
            raise TrainingError(
                f"compression {text!r}: {kind} takes no number", f"--compress {kind}"
            )
        return Compression(kind)
    if kind == POWERSGD:
        if not (number.isdecimal() and int(number) >= 1):
            raise TrainingError(
                f"compression {text!r} has no rank of 1 or more", f"--compress {POWERSGD}:2"
            )
        return Compression(kind, int(number))
    if kind == TOPK:
        try:
            share = float(number)
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise TrainingError(
                f"compression {text!r} has no share of the elements, above 0 and at most 1",
                f"--compress {TOPK}:0.01",
            )
        return Compression(kind, share)
    raise TrainingError(f"there is no compression {text!r}", _REMEDY)
