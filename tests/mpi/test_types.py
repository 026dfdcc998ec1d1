"""Reductions: what is allowed, and that torch kernels compute it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from doubletime.errors import UnsupportedError
from doubletime.mpi.types import reduction

NUMPY = {
    "SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(sorted(NUMPY)))
def test_integers_combine_as_in_numpy(data, name, op):
    info = np.iinfo(name)
    values = st.lists(st.integers(info.min, info.max), min_size=3, max_size=3)
    first = np.array(data.draw(values), dtype=name)
    second = np.array(data.draw(values), dtype=name)
    with np.errstate(over="ignore"):
        expected = NUMPY[op](first, second)
    into = torch.from_numpy(first.copy())
    reduction(getattr(ReduceOp, op), into.dtype).combine(into, torch.from_numpy(second))
    assert into.numpy().tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (ReduceOp.AVG, torch.int32),
        (ReduceOp.BAND, torch.float32),
        (ReduceOp.BXOR, torch.bfloat16),
        (ReduceOp.MIN, torch.complex64),
        (ReduceOp.AVG, torch.bool),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(op, dtype):
    with pytest.raises(UnsupportedError, match=str(dtype)) as refused:
        reduction(op, dtype)
    assert refused.value.remedy


def test_premultiplied_sum_carries_its_factor():
    op = torch.distributed._make_nccl_premul_sum(0.5)
    prepared = torch.full((2,), 3.0)
    reduction(op, torch.float32).prepare(prepared)
    assert prepared.tolist() == [1.5, 1.5]
