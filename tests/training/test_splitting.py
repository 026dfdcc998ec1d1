"""Batches in parts: nothing lost, nothing twice, whatever a batch is made of."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from doubletime.errors import TaskError
from doubletime.training.splitting import evenly, length, split


class Pair(NamedTuple):
    """As some collations make."""

    inputs: torch.Tensor
    names: list[str]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_parts_put_together_are_the_batch(sizes: list[int]) -> None:
    rows = sum(sizes)
    names = [f"sample {row}" for row in range(rows)]
    batch = {"pair": Pair(torch.arange(rows * 3).view(rows, 3), names), "scale": torch.tensor(2.0)}
    parts = split(batch, sizes)
    assert [length(part) for part in parts] == sizes
    assert torch.equal(torch.cat([part["pair"].inputs for part in parts]), batch["pair"].inputs)
    assert [name for part in parts for name in part["pair"].names] == names
    assert all(part["scale"] == 2 and isinstance(part["pair"], Pair) for part in parts)


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_even_parts_differ_by_one_at_most(samples: int, parts: int) -> None:
    sizes = evenly(samples, parts)
    assert len(sizes) == parts
    assert sum(sizes) == samples
    assert sorted(sizes, reverse=True) == sizes
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        ("text", [1]),
        ([1, 2], [1, 1]),
        (torch.tensor(1.0), [1]),
        (torch.ones(4), [2, 1]),
        ((torch.ones(4), torch.ones(3)), [2, 2]),
    ],
)
def test_what_cannot_be_divided_is_refused(batch: object, sizes: list[int]) -> None:
    with pytest.raises(TaskError):
        split(batch, sizes)
