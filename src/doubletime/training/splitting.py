"""Batches of whatever structure: their tensors, and smaller batches made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from doubletime.errors import TaskError


def length(batch: Any) -> int:
    """The number of samples: the rows of the first tensor found in tuples, lists and dicts.

    Raises:
        TaskError: if there is no tensor with rows.
    """
    found = _rows(batch)
    if found is None:
        raise TaskError(
            f"a batch that is a {type(batch).__name__} without a tensor cannot be divided",
            "let the data yield tensors, or tuples, lists or dicts of them, a row per sample",
        )
    return found


def split(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Consecutive parts of a batch, each of its structure.

    Args:
        batch: a tensor with a row per sample, or a tuple, list or dict of such. A list that holds no
            tensors and has as many items as there are samples is divided too; anything else is given
            to each part as it is.
        sizes: samples of each part; together the batch's.

    Raises:
        TaskError: if the batch cannot be divided, or a tensor has another number of rows.
    """
    rows = length(batch)
    if sum(sizes) != rows:
        raise TaskError(
            f"a batch of {rows} samples cannot be divided into {list(sizes)}",
            "let each tensor of a batch have one row per sample",
        )
    starts = [sum(sizes[:part]) for part in range(len(sizes))]
    return [
        _cut(batch, start, start + size, rows) for start, size in zip(starts, sizes, strict=True)
    ]


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with each tensor in it (in tuples, lists and dicts too) changed; the rest as it is."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: map_tensors(part, change) for key, part in batch.items()}
    if isinstance(batch, tuple | list):
        return _like(batch, [map_tensors(part, change) for part in batch])
    return batch


def evenly(samples: int, parts: int) -> list[int]:
    """How many samples each of `parts` gets: as equal as can be, the first ones the larger. Pure."""
    return [samples // parts + (part < samples % parts) for part in range(parts)]


def _rows(batch: Any) -> int | None:
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else None
    if isinstance(batch, dict):
        batch = batch.values()
    elif not isinstance(batch, tuple | list):
        return None
    return next((rows for rows in map(_rows, batch) if rows is not None), None)


def _cut(batch: Any, start: int, end: int, rows: int) -> Any:
    if isinstance(batch, Tensor):
        if not batch.dim():
            return batch
        if len(batch) != rows:
            raise TaskError(
                f"a batch holds tensors of {rows} and of {len(batch)} rows",
                "let each tensor of a batch have one row per sample",
            )
        return batch[start:end]
    if isinstance(batch, dict):
        return {key: _cut(part, start, end, rows) for key, part in batch.items()}
    if isinstance(batch, list) and len(batch) == rows and _rows(batch) is None:
        return batch[start:end]
    if isinstance(batch, tuple | list):
        return _like(batch, [_cut(part, start, end, rows) for part in batch])
    return batch


def _like(batch: tuple[Any, ...] | list[Any], parts: list[Any]) -> Any:
    """The parts as the batch holds its own; a named tuple takes them one by one."""
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
