"""The table: collectives by types, operations, roots and layouts, and what of it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

# Shape of one rank's tensor; how it lies in memory is told by `contract.values.lay`.
LAYOUTS = {
    "scalar": (),
    "empty": (0,),
    "odd": (7,),
    "offset": (3, 5),
    "strided": (4, 3),
    "transposed": (5, 3),
    "large": None,  # 1.5 MiB and an odd element: past the threshold of the shared-memory path
}
LARGE_NBYTES = 3 << 19

# name: whether it takes a root
REDUCTIONS = {
    "all_reduce": False,
    "all_reduce_coalesced": False,
    "reduce": True,
    "reduce_scatter": False,
    "reduce_scatter_uneven": False,
    "reduce_scatter_tensor": False,
}
MOVEMENTS = {
    "broadcast": True,
    "all_gather": False,
    "all_gather_uneven": False,
    "all_gather_into_tensor": False,
    "all_gather_stacked": False,
    "all_gather_coalesced": False,
    "gather": True,
    "scatter": True,
    "all_to_all": False,
    "all_to_all_uneven": False,
    "all_to_all_single": False,
    "all_to_all_single_uneven": False,
    "send_recv": False,
}
# Those whose pieces differ in length: they make their own shapes from the layout's length.
UNEVEN = frozenset(name for name in (*REDUCTIONS, *MOVEMENTS) if name.endswith("_uneven"))
# One flat buffer cut into equal chunks along dim 0: a 0-dim tensor has no such dim.
FLAT = frozenset({"reduce_scatter_tensor", "all_gather_into_tensor", "all_to_all_single"})


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    collective: str
    dtype: str
    op: str | None
    root: int | None
    layout: str
    refused: bool = False

    @property
    def name(self) -> str:
        """Unique within one world size."""
        parts = [self.collective, self.dtype, self.op, self.layout]
        if self.root is not None:
            parts.append(f"root{self.root}")
        return "-".join(part for part in parts if part)


def is_allowed(collective: str, dtype: str, op: str) -> bool:
    """Whether the collective can reduce the type by the operation."""
    if op in ("BAND", "BOR", "BXOR"):
        return dtype in INTEGERS or dtype == "bool"
    if op in ("AVG", "PREMUL_SUM"):
        return dtype in FLOATS or dtype in COMPLEX
    if op in ("MIN", "MAX"):
        return dtype not in COMPLEX
    if op == "PRODUCT":  # torch hands complex numbers to all_reduce as pairs, which have no product
        return dtype not in COMPLEX or not collective.startswith("all_reduce")
    return True


def cases(world_size: int) -> Iterator[Case]:
    """Every line of the table that a job of this size runs, in the order it runs them."""
    for collective, has_root in REDUCTIONS.items():
        for dtype in DTYPES:
            for op in OPS:
                if is_allowed(collective, dtype, op):
                    yield from _allowed(collective, dtype, op, has_root, world_size)
                elif collective not in UNEVEN:
                    root = world_size - 1 if has_root else None
                    yield Case(collective, dtype, op, root, "odd", refused=True)
    for collective, has_root in MOVEMENTS.items():
        for dtype in DTYPES:
            yield from _allowed(collective, dtype, None, has_root, world_size)


def _allowed(
    collective: str, dtype: str, op: str | None, has_root: bool, world_size: int
) -> Iterator[Case]:
    for layout in LAYOUTS:
        if collective in UNEVEN and layout not in ("odd", "strided", "large"):
            continue
        if collective in FLAT and layout == "scalar":
            continue
        # Every operation in every layout once, by all_reduce; the others share its kernels.
        if op not in (None, "SUM") and collective != "all_reduce" and layout != "strided":
            continue
        # Every root where it is cheap; one that is not 0 where it is not.
        if not has_root:
            roots: tuple[int | None, ...] = (None,)
        elif layout in ("odd", "strided"):
            roots = tuple(range(world_size))
        else:
            roots = (world_size - 1,)
        for root in roots:
            yield Case(collective, dtype, op, root, layout)
