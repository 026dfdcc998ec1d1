"""The table for reduction algorithms: what each defines, by types, operations, roots and layouts.

An algorithm that is listed in the catalogue is in it without being told.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import doubletime as dt
from contract.collectives import Outcome, Setting
from contract.table import COMPLEX, DTYPES, FLOATS, OPS, Case, is_allowed
from contract.values import Expected, moved, reduced
from doubletime.collectives.catalogue import ALGORITHMS, find

# Beyond the catalogue: two levels that differ.
NAMES = (*ALGORITHMS, "two_level:binomial_tree+halving_doubling")
# A large tensor passes the code that small ones pass, but for what is cut and accumulated.
LARGE = ("float32", "bfloat16", "int16")
# Small tensors too are cut into several segments, some of them empty.
_SEGMENT_NBYTES = {"large": 200_000}
_SMALL_SEGMENT_NBYTES = 16

_REDUCES = ("all_reduce", "reduce", "reduce_scatter")
_HAS_ROOT = ("reduce", "broadcast")
# One flat tensor of equal parts: a 0-dim tensor has none.
_CUT = ("reduce_scatter", "all_gather")


@dataclass(frozen=True)
class Line:
    """One case by one algorithm."""

    algorithm: str
    case: Case

    @property
    def name(self) -> str:
        """Unique within one world size."""
        return f"{self.algorithm}-{self.case.name}"


def lines(world_size: int) -> Iterator[Line]:
    """Every line that a job of this size runs."""
    for algorithm in NAMES:
        for collective in find(algorithm).collectives:
            for case in _cases(collective, world_size):
                yield Line(algorithm, case)


def _cases(collective: str, world_size: int) -> Iterator[Case]:
    last = world_size - 1
    for dtype in DTYPES:
        for op in OPS if collective in _REDUCES else (None,):
            # "reduce" stands for the operation itself; torch.distributed's all_reduce knows less.
            if op is not None and not is_allowed("reduce", dtype, op):
                if collective == "all_reduce":
                    yield Case(collective, dtype, op, None, "odd", refused=True)
                continue
            for layout in _layouts(collective, dtype, op):
                if collective not in _HAS_ROOT:
                    roots: tuple[int | None, ...] = (None,)
                else:
                    roots = tuple(range(world_size)) if layout == "odd" else (last,)
                for root in roots:
                    yield Case(collective, dtype, op, root, layout)


def _layouts(collective: str, dtype: str, op: str | None) -> Iterator[str]:
    # Every operation once, by all_reduce; the others share its kernels.
    if op in (None, "SUM", "AVG") or collective == "all_reduce":
        yield "strided"
    if op in (None, "SUM"):
        yield from ("odd", "empty")
        if collective not in _CUT:
            yield from ("scalar", "transposed")
        if dtype in LARGE:
            yield "large"


def _way(s: Setting, algorithm: str) -> dict[str, Any]:
    nbytes = _SEGMENT_NBYTES.get(s.case.layout, _SMALL_SEGMENT_NBYTES)
    return {"algorithm": algorithm, "segment_nbytes": nbytes}


# All algorithms are asked the same: what goes in and what must come out is worked out once.
@functools.cache
def _values(s: Setting, rank: int, part: int = 0) -> torch.Tensor:
    return s.values(rank, part)


@functools.cache
def _reduced(s: Setting, part: int = 0) -> Expected:
    return reduced(s.case, [_values(s, rank, part) for rank in s.ranks])


@functools.cache
def _parts(s: Setting, rank: int) -> torch.Tensor:
    return torch.cat([_values(s, rank, part) for part in s.ranks])


@functools.cache
def _gathered(s: Setting) -> torch.Tensor:
    return torch.cat([_values(s, rank) for rank in s.ranks])


def all_reduce(s: Setting, algorithm: str) -> Outcome:
    tensor = s.place(_values(s, s.rank))
    dt.all_reduce(tensor, s.op, **_way(s, algorithm))
    return [(tensor, _reduced(s))]


def reduce(s: Setting, algorithm: str) -> Outcome:
    tensor = s.place(_values(s, s.rank))
    dt.reduce(tensor, s.root, s.op, **_way(s, algorithm))
    return [(tensor, _reduced(s) if s.rank == s.root else moved(_values(s, s.rank)))]


def broadcast(s: Setting, algorithm: str) -> Outcome:
    tensor = s.place(_values(s, s.rank))
    dt.broadcast(tensor, s.root, **_way(s, algorithm))
    return [(tensor, moved(_values(s, s.root)))]


def reduce_scatter(s: Setting, algorithm: str) -> Outcome:
    whole, output = s.place(_parts(s, s.rank)), s.blank()
    dt.reduce_scatter(output, whole, s.op, **_way(s, algorithm))
    return [(output, _reduced(s, s.rank)), (whole, moved(_parts(s, s.rank)))]


def all_gather(s: Setting, algorithm: str) -> Outcome:
    tensor, expected = s.place(_values(s, s.rank)), _gathered(s)
    output = s.blank(tuple(expected.shape))
    dt.all_gather(output, tensor, **_way(s, algorithm))
    return [(output, moved(expected)), (tensor, moved(_values(s, s.rank)))]


CALLS: dict[str, Callable[[Setting, str], Outcome]] = {
    call.__name__: call for call in (all_reduce, reduce, broadcast, reduce_scatter, all_gather)
}
# Where the order of operands could show in the result.
ROUNDED = frozenset((*FLOATS, *COMPLEX))
