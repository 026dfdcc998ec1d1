"""A batch's samples: their digests, their rows, their precision."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def digest(tensor: Tensor) -> bytes:
    """Eight bytes that tell tensors apart by type, shape and bits."""
    words = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    head = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    return hashlib.blake2b(head + words.tobytes(), digest_size=8).digest()


def sample_digests(batch: Any, rows: int) -> tuple[bytes, ...]:
    """One for each sample, over all parts of the batch that have one row a sample.

    Args:
        batch: tensors in any nesting of tuples, lists and dicts.
        rows: samples of the batch.

    Returns:
        `rows` digests; none where no part has a row for each sample.
    """
    parts = [part for part in _leaves(batch) if isinstance(part, Tensor)]
    parts = [part for part in parts if part.dim() and len(part) == rows]
    if not parts:
        return ()
    return tuple(b"".join(digest(part[row]) for part in parts) for row in range(rows))


def rows_of(batch: Any, rows: int, wanted: slice) -> Any:
    """The batch cut to some of its samples.

    Args:
        batch: as in `sample_digests`; lists of text with one line a sample are cut too.
        rows: samples of the whole batch.
        wanted: which of them.
    """
    if isinstance(batch, Tensor):
        return batch[wanted] if batch.dim() and len(batch) == rows else batch
    if isinstance(batch, list | tuple) and len(batch) == rows and isinstance(batch[0], str):
        return batch[wanted]
    return _map(batch, lambda part: rows_of(part, rows, wanted))


def in_double(batch: Any) -> Any:
    """The batch with its floating tensors in float64."""
    if isinstance(batch, Tensor):
        return batch.double() if batch.is_floating_point() else batch
    return _map(batch, in_double)


def _map(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, tuple | list):
        parts = [change(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, dict):
        return {key: change(part) for key, part in batch.items()}
    return batch


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, tuple | list):
        for part in batch:
            yield from _leaves(part)
    elif isinstance(batch, dict):
        for part in batch.values():
            yield from _leaves(part)
    else:
        yield batch


def is_repeatable(fetch: Callable[[int], Any], indices: Sequence[int]) -> bool:
    """Whether fetching these samples twice gives the same bits.

    Args:
        fetch: a dataset's `__getitem__`.
        indices: which.
    """
    first, second = ([list(_leaves(fetch(index))) for index in indices] for _ in range(2))
    return all(
        len(one) == len(other) and all(map(_is_same, one, other))
        for one, other in zip(first, second, strict=True)
    )


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return digest(one) == digest(other)
    return type(one) is type(other) and bool((one == other) is True or str(one) == str(other))
