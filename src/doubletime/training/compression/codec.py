"""Numbers as fewer bytes, and back: half precision, and 8 bits with a scale for each block.

Both work piece by piece, so that what lies between stays in the processor's cache: memory that is made
anew for each message costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

_PIECE = 1 << 16  # numbers
_SCALE_NBYTES = 4
_ALIGNED_NBYTES = 8
_LARGEST = 127


class Codec(Protocol):
    """Turns numbers into bytes."""

    def nbytes(self, count: int) -> int:
        """How many bytes so many numbers become."""

    def encode(self, numbers: Tensor, message: Tensor) -> None:
        """Write numbers, flat, to a message of `nbytes` bytes, uint8."""

    def decode(
        self, message: Tensor, count: int, dtype: torch.dtype
    ) -> Iterator[tuple[slice, Tensor]]:
        """The message's numbers, piece by piece, as this type, with where they belong."""


class Half:
    """16 bits a number.

    Args:
        dtype: `torch.float16` or `torch.bfloat16`.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def nbytes(self, count: int) -> int:
        """Two for each."""
        return 2 * count

    def encode(self, numbers: Tensor, message: Tensor) -> None:
        """Rounded to the nearest; what is too large for float16 becomes infinite."""
        message.view(self._dtype).copy_(numbers)

    def decode(
        self, message: Tensor, count: int, dtype: torch.dtype
    ) -> Iterator[tuple[slice, Tensor]]:
        """Exactly."""
        halves = message.view(self._dtype)
        for where in _slices(count, _PIECE):
            yield where, halves[where].to(dtype)


class Int8:
    """8 bits a number, and a float32 scale for each block of them.

    A number becomes the nearest of 255 multiples of its block's scale, which is the 127th part of the
    block's largest magnitude. Blocks that hold what is not finite stay so.

    Args:
        block: numbers that share a scale; only whole blocks can be encoded.
    """

    def __init__(self, block: int) -> None:
        self._block = block

    def nbytes(self, count: int) -> int:
        """One for each, four for each block, and what makes messages lie side by side."""
        nbytes = count + count // self._block * _SCALE_NBYTES
        return -(-nbytes // _ALIGNED_NBYTES) * _ALIGNED_NBYTES

    def encode(self, numbers: Tensor, message: Tensor) -> None:
        """First all scales, then all levels."""
        scales, levels = self._parts(message, numbers.numel())
        for where in self._blocks(numbers.numel()):
            blocks = numbers.view(-1, self._block)[where]
            scale = torch.linalg.vector_norm(blocks, float("inf"), dim=1) / _LARGEST
            scales[where] = scale
            divisor = torch.where(scale == 0, 1, scale)
            levels[where] = (blocks / divisor[:, None]).round_()

    def decode(
        self, message: Tensor, count: int, dtype: torch.dtype
    ) -> Iterator[tuple[slice, Tensor]]:
        """Each level times its block's scale."""
        scales, levels = self._parts(message, count)
        for where in self._blocks(count):
            numbers = levels[where] * scales[where].to(dtype)[:, None]
            first = where.start * self._block
            yield slice(first, first + numbers.numel()), numbers.view(-1)

    def _parts(self, message: Tensor, count: int) -> tuple[Tensor, Tensor]:
        split = count // self._block * _SCALE_NBYTES
        levels = message[split : split + count].view(torch.int8).view(-1, self._block)
        return message[:split].view(torch.float32), levels

    def _blocks(self, count: int) -> Iterator[slice]:
        return _slices(count // self._block, max(1, _PIECE // self._block))


def _slices(count: int, each: int) -> Iterator[slice]:
    return (slice(first, min(first + each, count)) for first in range(0, count, each))
