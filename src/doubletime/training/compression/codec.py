"""Numbers as fewer bytes, and back: half precision, and 8 bits with a scale for each block."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_SCALE_NBYTES = 4
_LARGEST = 127


class Codec(Protocol):
    """Turns rows of numbers into rows of bytes."""

    def encode(self, rows: Tensor) -> Tensor:
        """Rows of n numbers, (r, n), as bytes, (r, m)."""

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """What `encode` made, as numbers of this type."""


class Half:
    """16 bits a number.

    Args:
        dtype: `torch.float16` or `torch.bfloat16`.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def encode(self, rows: Tensor) -> Tensor:
        """Rounded to the nearest; what is too large for float16 becomes infinite."""
        return rows.to(self._dtype).contiguous().view(torch.uint8)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Exactly."""
        return rows.contiguous().view(self._dtype).to(dtype)


class Int8:
    """8 bits a number, and a float32 scale for each block of them.

    A number becomes the nearest of 255 multiples of its block's scale, which is the 127th part of the
    block's largest magnitude. Blocks that hold what is not finite stay so.

    Args:
        block: numbers that share a scale; rows must be whole blocks.
    """

    def __init__(self, block: int) -> None:
        self._block = block

    def encode(self, rows: Tensor) -> Tensor:
        """To bytes, (r, n·(1 + 4/block))."""
        blocks = rows.view(rows.shape[0], -1, self._block)
        scale = torch.linalg.vector_norm(blocks, float("inf"), dim=2, keepdim=True) / _LARGEST
        divisor = torch.where(scale == 0, 1, scale)
        levels = (blocks / divisor).round_().to(torch.int8)
        scales = scale.flatten(1).to(torch.float32).view(torch.uint8)
        return torch.cat([scales, levels.flatten(1).view(torch.uint8)], dim=1)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Each level times its block's scale."""
        count = rows.shape[0]
        split = rows.shape[1] // (_SCALE_NBYTES + self._block) * _SCALE_NBYTES
        # Copied, not made contiguous: a single row is so already, wherever it begins.
        scales = rows[:, :split].clone(memory_format=torch.contiguous_format)
        scale = scales.view(torch.float32).view(count, -1, 1).to(dtype)
        levels = rows[:, split:].view(torch.int8).reshape(count, -1, self._block)
        return (levels.to(dtype) * scale).flatten(1)
