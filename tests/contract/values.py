"""What each rank puts in, how it lies in memory, and what one process says must come out.

The reference computes in NumPy: float64, complex128, or the exact integers, never with the kernels
under test.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from contract.table import LARGE_NBYTES, LAYOUTS, Case

PREMUL_FACTOR = 0.75
_PERIOD = 4099  # a large tensor repeats this many numbers: a prime, so that chunks differ
_MARK = 1  # what lies around a tensor that is a part of a larger one, and must stay


def dtype_of(name: str) -> torch.dtype:
    """`torch.float32` for "float32"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def shape_of(case: Case) -> tuple[int, ...]:
    """The shape of one rank's tensor."""
    shape = LAYOUTS[case.layout]
    if shape is None:
        return (LARGE_NBYTES // dtype_of(case.dtype).itemsize + 1,)
    return shape


def draw(
    case: Case, rank: int, part: int = 0, shape: tuple[int, ...] | None = None
) -> torch.Tensor:
    """The contiguous tensor that `rank` puts in as its `part`; the same on every process."""
    shape = shape_of(case) if shape is None else shape
    if math.prod(shape) > _PERIOD:
        return (
            draw(case, rank, part, (_PERIOD,))
            .repeat(math.prod(shape) // _PERIOD + 1)[: math.prod(shape)]
            .view(shape)
        )
    rng = np.random.default_rng([zlib.crc32(case.name.encode()), rank, part])
    dtype = dtype_of(case.dtype)
    if dtype == torch.bool:
        return torch.from_numpy(np.asarray(rng.integers(0, 2, shape, dtype=np.uint8))).bool()
    if dtype.is_complex or dtype.is_floating_point:
        real = rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
        numbers = real + 1j * rng.uniform(-2, 2, shape) if dtype.is_complex else real
        return torch.from_numpy(np.asarray(numbers)).to(dtype)
    info = np.iinfo(case.dtype)
    low, high = int(info.min), int(info.max)
    if case.op == "PRODUCT":
        low, high = 1, 3
    elif case.op == "SUM":  # no overflow on 4 ranks, yet past 2**53 for the 64-bit types
        low, high = -(-low // 4), high // 4
    numbers = rng.integers(low, high, shape, dtype=case.dtype, endpoint=True)
    return torch.from_numpy(np.asarray(numbers))


def lay(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers, lying in memory as the layout says."""
    if layout == "offset":
        whole = torch.full((values.numel() + 5,), _MARK, dtype=values.dtype)
        view = whole[3 : 3 + values.numel()].view(values.shape)
    elif layout == "strided":
        whole = torch.full((2 * values.shape[0], *values.shape[1:]), _MARK, dtype=values.dtype)
        view = whole[::2]
    elif layout == "transposed":
        whole = torch.full(tuple(reversed(values.shape)), _MARK, dtype=values.dtype)
        view = whole.t() if values.dim() == 2 else whole.permute(*reversed(range(values.dim())))
    else:
        return values.clone()
    view.copy_(values)
    return view


def stains(tensor: torch.Tensor, layout: str) -> str | None:
    """What was written around a tensor that is part of a larger one, or None."""
    base = tensor._base
    if base is None or layout not in ("offset", "strided"):
        return None
    kept = base[1::2] if layout == "strided" else torch.cat([base[:3], base[3 + tensor.numel() :]])
    return None if bool((kept == _MARK).all()) else "memory beside the tensor was overwritten"


def wide(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The numbers in the type that the reference computes in."""
    if tensor.dtype in (torch.bfloat16, torch.float16, torch.float32):
        tensor = tensor.double()
    elif tensor.dtype == torch.complex64:
        tensor = tensor.to(torch.complex128)
    return np.array(tensor.detach().numpy())


@dataclass(frozen=True)
class Expected:
    """What must come out, and how far from it rounding may lead, element by element."""

    numbers: np.ndarray[Any, Any]
    tolerance: np.ndarray[Any, Any] | float = 0.0


def moved(values: torch.Tensor) -> Expected:
    """Exactly these numbers."""
    return Expected(wide(values))


def reduced(case: Case, parts: list[torch.Tensor]) -> Expected:
    """The reduction over all ranks' parts by the case's operation."""
    arrays = [wide(part) for part in parts]
    dtype = dtype_of(case.dtype)
    if dtype == torch.bool:
        fold = {"SUM": np.logical_or, "PRODUCT": np.logical_and, "MIN": np.logical_and,
                "MAX": np.logical_or, "BAND": np.logical_and, "BOR": np.logical_or,
                "BXOR": np.logical_xor}[case.op or ""]  # fmt: skip
        return Expected(fold.reduce(arrays))
    stack = np.stack(arrays)
    exact = {"MIN": np.minimum, "MAX": np.maximum, "BAND": np.bitwise_and,
             "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}  # fmt: skip
    if case.op in exact:
        return Expected(exact[case.op].reduce(stack))
    if case.op == "PRODUCT":
        numbers = np.multiply.reduce(stack)
        magnitude = np.abs(numbers)
    else:
        factor = {"SUM": 1.0, "AVG": 1.0 / len(parts), "PREMUL_SUM": PREMUL_FACTOR}[case.op or ""]
        numbers = np.add.reduce(stack)
        if factor != 1.0:
            numbers = numbers * factor
        magnitude = np.abs(stack).astype(np.float64).sum(axis=0) * factor
    if not (dtype.is_floating_point or dtype.is_complex):
        return Expected(numbers)
    # One rounding for each of the p terms and one for the factor.
    return Expected(numbers, (len(parts) + 1) * torch.finfo(dtype).eps * magnitude)


def difference(actual: torch.Tensor, expected: Expected) -> str | None:
    """The first element that is wrong, or None."""
    found = wide(actual)
    if found.shape != expected.numbers.shape:
        return f"shape {found.shape}, expected {expected.numbers.shape}"
    if found.dtype.kind in "fc":
        wrong = ~(np.abs(found - expected.numbers) <= expected.tolerance)
    else:
        wrong = found != expected.numbers
    if not wrong.any():
        return None
    index = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = ",".join(map(str, index))
    return (
        f"[{place}] is {found[index]}, expected {expected.numbers[index]}"
        f" ({int(wrong.sum())} of {math.prod(wrong.shape)} elements wrong)"
    )
