"""A call of a collective as people should hear of it: what, which in sequence, on what, from which line."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections import deque
from collections.abc import Sequence
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


# The wrapper that logs the errors of most calls of torch.distributed, not of all: isend has none.
_TORCH_WRAPPER = torch.distributed.c10d_logger.__file__


@dataclass(slots=True)
class Call:
    """One call, the same on every rank of a correct program but for `where`.

    Attributes:
        number: its position in the group's sequence of collectives, from 1; 0 for point to point.
        name: `all_reduce`, `send`, ….
        what: types, shapes, operation, root: `float32[4, 3], SUM`.
        same: the part of it that must be the same on all ranks.
        place: file, line and function of the user's code.
    """

    number: int
    name: str
    what: object
    same: object
    place: tuple[str, int, str]

    @property
    def where(self) -> str:
        """The line of the user's code."""
        return worded(self.place)

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


class Description:
    """Types and shapes of a call's tensors, then its other arguments; put into words when asked for."""

    __slots__ = ("_details", "_kinds")

    def __init__(
        self, kinds: Sequence[tuple[torch.dtype, torch.Size]], details: tuple[str, ...]
    ) -> None:
        self._kinds = kinds
        self._details = details

    def __str__(self) -> str:
        shown = [f"{str(dtype)[6:]}{list(shape)}" for dtype, shape in self._kinds[:3]]
        if len(self._kinds) > 3:
            shown.append(f"… {len(self._kinds)} tensors")
        return ", ".join([*shown, *self._details])


def describe(tensors: Sequence[torch.Tensor], *details: str) -> Description:
    """What a call works on."""
    return Description([(tensor.dtype, tensor.shape) for tensor in tensors], details)


def caller() -> str:
    """The line of the user's code that is being executed in this thread, as `file.py:12 in step`."""
    return worded(place_of(sys._getframe(1)))


def worded(place: tuple[str, int, str]) -> str:
    """A place in words."""
    filename, line, function = place
    return f"{filename}:{line} in {function}"


def called_from(depth: int) -> tuple[str, int, str]:
    """The place of the user's code that called; `depth` frames up is the backend's caller.

    Nearly all calls come through a function of torch.distributed and the wrapper that logs its errors:
    then the frames in between need not be looked at one by one.
    """
    frame = sys._getframe(depth + 1)
    wrapper = frame.f_back
    if wrapper is not None and wrapper.f_code.co_filename == _TORCH_WRAPPER:
        return place_of(wrapper.f_back)
    return place_of(frame)


def place_of(frame: FrameType | None) -> tuple[str, int, str]:
    """File, line and function of the innermost frame that is the user's, else of the outermost."""
    outermost = ("unknown file", 0, "unknown")
    while frame is not None:
        code = frame.f_code
        if not _is_library(code.co_filename):
            return code.co_filename, frame.f_lineno, code.co_name
        outermost = (code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return outermost


@functools.lru_cache(maxsize=1024)
def _is_library(filename: str) -> bool:
    return filename.startswith(_LIBRARIES) or filename.startswith("<")
