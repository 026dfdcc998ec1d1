"""What can be reduced how: torch's dtypes and ReduceOps as MPI datatypes, operations and torch kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from doubletime.errors import UnsupportedError

Kernel = Callable[[torch.Tensor, torch.Tensor], object]

_FLOAT = (torch.float64, torch.float32)
HALF = (torch.float16, torch.bfloat16)
_COMPLEX = (torch.complex64, torch.complex128)
_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
# torch has few kernels for these; numpy has all.
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_INTEGER = (*_SIGNED, torch.uint8, *_UNSIGNED)

# Which operations make sense for which kind of number.
_ALLOWED: dict[str, tuple[torch.dtype, ...]] = {
    "SUM": (*_FLOAT, *HALF, *_COMPLEX, *_INTEGER, torch.bool),
    "PRODUCT": (*_FLOAT, *HALF, *_COMPLEX, *_INTEGER, torch.bool),
    "AVG": (*_FLOAT, *HALF, *_COMPLEX),
    "PREMUL_SUM": (*_FLOAT, *HALF, *_COMPLEX),
    "MIN": (*_FLOAT, *HALF, *_INTEGER, torch.bool),
    "MAX": (*_FLOAT, *HALF, *_INTEGER, torch.bool),
    "BAND": (*_INTEGER, torch.bool),
    "BOR": (*_INTEGER, torch.bool),
    "BXOR": (*_INTEGER, torch.bool),
}

# On truth values a sum is "any", a product "all": as in NCCL.
_BOOL = {
    "SUM": "LOR", "MAX": "LOR", "BOR": "LOR",
    "PRODUCT": "LAND", "MIN": "LAND", "BAND": "LAND",
    "BXOR": "LXOR",
}  # fmt: skip
_MPI_OP = {
    "SUM": "SUM", "AVG": "SUM", "PREMUL_SUM": "SUM", "PRODUCT": "PROD", "MIN": "MIN", "MAX": "MAX",
    "BAND": "BAND", "BOR": "BOR", "BXOR": "BXOR",
}  # fmt: skip

_MPI_TYPE = {
    torch.float64: "DOUBLE", torch.float32: "FLOAT",
    torch.complex64: "C_FLOAT_COMPLEX", torch.complex128: "C_DOUBLE_COMPLEX",
    torch.int8: "INT8_T", torch.int16: "INT16_T", torch.int32: "INT32_T", torch.int64: "INT64_T",
    torch.uint8: "UINT8_T", torch.uint16: "UINT16_T", torch.uint32: "UINT32_T", torch.uint64: "UINT64_T",
    torch.bool: "C_BOOL",
}  # fmt: skip
_MOVE_TYPE = {1: "BYTE", 2: "INT16_T", 4: "INT32_T", 8: "INT64_T", 16: "C_DOUBLE_COMPLEX"}

_TORCH_KERNEL: dict[str, Kernel] = {
    "SUM": torch.Tensor.add_,
    "PRODUCT": torch.Tensor.mul_,
    "MIN": lambda into, other: torch.minimum(into, other, out=into),
    "MAX": lambda into, other: torch.maximum(into, other, out=into),
    "BAND": torch.Tensor.bitwise_and_,
    "BOR": torch.Tensor.bitwise_or_,
    "BXOR": torch.Tensor.bitwise_xor_,
    "LOR": torch.Tensor.logical_or_,
    "LAND": torch.Tensor.logical_and_,
    "LXOR": torch.Tensor.logical_xor_,
}
_NUMPY_KERNEL: dict[str, np.ufunc] = {
    "SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip


@dataclass(frozen=True)
class Reduction:
    """One ReduceOp on one dtype.

    Attributes:
        name: the ReduceOp's name, `SUM` to `PREMUL_SUM`.
        dtype: of the elements.
        factor: what PREMUL_SUM multiplies each contribution by; None otherwise.
    """

    name: str
    dtype: torch.dtype
    factor: float | torch.Tensor | None = None

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether MPI can reduce the elements as they are."""
        return self.has_mpi_type and self.factor is None

    @property
    def has_mpi_type(self) -> bool:
        """Whether MPI can reduce the dtype itself; it has no 16-bit floats."""
        return self.dtype in _MPI_TYPE

    def mpi_op(self, mpi: Any) -> Any:
        """The MPI operation."""
        return getattr(mpi, _BOOL[self.name] if self.dtype == torch.bool else _MPI_OP[self.name])

    def as_dtype(self, dtype: torch.dtype) -> Reduction:
        """The same operation on another dtype."""
        return replace(self, dtype=dtype)

    def prepared_as(self, dtype: torch.dtype) -> Reduction:
        """The same on another dtype, for tensors that `prepare` has seen already."""
        return replace(self, dtype=dtype, factor=None)

    def prepare(self, tensor: torch.Tensor) -> None:
        """Before the reduction, in place: PREMUL_SUM's factor."""
        if self.factor is not None:
            tensor.mul_(self.factor)

    def finish(self, tensor: torch.Tensor, world_size: int) -> None:
        """After it, in place: AVG's division."""
        if self.name == "AVG":
            tensor.div_(world_size)

    def combine(self, into: torch.Tensor, other: torch.Tensor) -> None:
        """`into = into op other`, element by element, in place."""
        if self.dtype in _UNSIGNED:
            ufunc = _NUMPY_KERNEL[self.name]
            ufunc(into.numpy(), other.numpy(), out=into.numpy())
            return
        if self.dtype == torch.bool:
            name = _BOOL[self.name]
        else:
            name = "SUM" if self.name in ("AVG", "PREMUL_SUM") else self.name
        _TORCH_KERNEL[name](into, other)


_SUM = dist.ReduceOp.SUM
_SUMS = {dtype: Reduction("SUM", dtype) for dtype in _ALLOWED["SUM"]}


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """The Reduction that a c10d operation means for a dtype.

    Args:
        op: `ReduceOp.SUM` or the like, or a ReduceOp object (PREMUL_SUM carries its factor).
        dtype: of the tensor.

    Raises:
        UnsupportedError: if the operation makes no sense for the dtype.
    """
    if op == _SUM and (found := _SUMS.get(dtype)) is not None:
        return found  # nearly all there are, and one comparison is quicker than any key
    found = _without_factor(op, dtype)
    # Operations that differ only in their factor are equal.
    return found if found.name != "PREMUL_SUM" else replace(found, factor=op.__getstate__()[1])


@functools.lru_cache(maxsize=1024)
def _without_factor(op: Any, dtype: torch.dtype) -> Reduction:
    # a ReduceOp object holds (kind, factor); `ReduceOp.SUM` itself is the kind
    state: Any = op.__getstate__()
    kind = state[0] if isinstance(state, tuple) else op
    name = str(kind).rpartition(".")[2]
    allowed = _ALLOWED.get(name)
    if allowed is None:
        raise UnsupportedError(
            f"the mpi backend has no reduction {name}", f"use one of {', '.join(_ALLOWED)}"
        )
    if dtype not in allowed:
        able = [other for other, dtypes in _ALLOWED.items() if dtype in dtypes]
        raise UnsupportedError(
            f"ReduceOp.{name} has no meaning for {dtype}",
            f"use one of {', '.join(able)} for this dtype" if able else "cast the tensor first",
        )
    return Reduction(name, dtype)


def datatype(mpi: Any, dtype: torch.dtype) -> Any:
    """The MPI datatype that reduces this dtype."""
    return getattr(mpi, _MPI_TYPE[dtype])


def move_type(mpi: Any, itemsize: int) -> Any:
    """An MPI datatype that moves elements of `itemsize` bytes, whatever they mean."""
    return getattr(mpi, _MOVE_TYPE[itemsize])
