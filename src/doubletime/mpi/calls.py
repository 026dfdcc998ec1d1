"""A call of a collective as people should hear of it: what, which in sequence, on what, from which line."""

from __future__ import annotations

import sys
import sysconfig
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

# Frames of these packages, and of the standard library, are not where a user called from.
_LIBRARIES = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent.parent),
    f"{sysconfig.get_path('stdlib')}/threading.py",
    f"{sysconfig.get_path('stdlib')}/contextlib.py",
    f"{sysconfig.get_path('stdlib')}/concurrent",
)


@dataclass(frozen=True)
class Call:
    """One call, the same on every rank of a correct program but for `where`.

    Attributes:
        number: its place in the group's sequence of collectives, from 1; 0 for point to point.
        name: `all_reduce`, `send`, ….
        what: types, shapes, operation, root: `float32[4, 3], SUM`.
        same: the part of it that must be the same on all ranks.
        where: `file.py:12 in step`.
    """

    number: int
    name: str
    what: str
    same: str
    where: str

    @property
    def signature(self) -> str:
        """What all ranks must agree on: `all_reduce(float32[4, 3], SUM)`."""
        return f"{self.name}({self.same})"

    def __str__(self) -> str:
        number = f" #{self.number}" if self.number else ""
        return f"{self.name}{number} ({self.what}) called at {self.where}"


class History:
    """The last calls of one group on this rank.

    Attributes:
        entered: how many collectives this rank has entered.
        finished: the number of the last that is complete here.
    """

    _KEPT = 256

    def __init__(self) -> None:
        self.entered = 0
        self.finished = 0
        self._calls: deque[Call] = deque(maxlen=self._KEPT)

    def enter(self, call: Call) -> None:
        """Note a collective that this rank has begun."""
        self.entered = call.number
        self._calls.append(call)

    def at(self, number: int) -> Call | None:
        """The call with this number; None if not entered yet or too long ago."""
        return next((call for call in reversed(self._calls) if call.number == number), None)

    def last(self) -> Call | None:
        """The newest call."""
        return self._calls[-1] if self._calls else None


def describe(tensors: list[torch.Tensor], *details: str) -> str:
    """Types and shapes of a call's tensors, then its other arguments."""
    shown = [f"{str(t.dtype)[6:]}{list(t.shape)}" for t in tensors[:3]]
    if len(tensors) > 3:
        shown.append(f"… {len(tensors)} tensors")
    return ", ".join([*shown, *details])


def caller() -> str:
    """The line of the user's code that is being executed in this thread."""
    return place_of(sys._getframe(1))


def place_of(frame: FrameType | None) -> str:
    """The innermost frame that is the user's, as `file.py:12 in function`."""
    outermost = None
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(_LIBRARIES) and not filename.startswith("<"):
            return f"{filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        outermost = frame
        frame = frame.f_back
    if outermost is None:
        return "an unknown line"
    return f"{outermost.f_code.co_filename}:{outermost.f_lineno}"
