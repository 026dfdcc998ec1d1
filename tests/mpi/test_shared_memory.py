"""Shared memory, all ranks in one process: whoever of them is slow or quick, results are right.

A rank's steps between two waits are one piece here; the order of these pieces is drawn.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from doubletime.mpi.shared_memory import HostMemory
from doubletime.mpi.types import Reduction
from doubletime.mpi.waiting import Operation

STAGING_NBYTES = 192
SUM = Reduction("SUM", torch.int32)
# In elements of 4 bytes: less than the staging area, as much, more, several times as much; odd ones too.
SIZES = (1, 5, 47, 48, 49, 50, 96, 97, 143, 145)


@contextmanager
def memories(ranks: int) -> Iterator[list[HostMemory]]:
    """What each rank of a host makes of the segments of all."""
    nbytes = mmap.PAGESIZE + STAGING_NBYTES
    descriptors = [os.memfd_create("segment") for _ in range(ranks)]
    for descriptor in descriptors:
        os.ftruncate(descriptor, nbytes)
    made = [
        HostMemory([mmap.mmap(each, nbytes) for each in descriptors], rank, own, STAGING_NBYTES)
        for rank, own in enumerate(descriptors)
    ]
    try:
        run([memory.reserve() for memory in made], random.Random(0))
        yield made
    finally:
        for memory in made:
            memory.close()


def run(operations: list[Operation], chance: random.Random) -> None:
    """All to their ends; of those that may go on, some are as good as never chosen for a while."""
    waiting: dict[int, Callable[[], bool]] = dict.fromkeys(range(len(operations)), lambda: True)
    haste = [chance.choice((1, 1, 1000)) for _ in operations]
    while waiting:
        ready = [rank for rank, condition in waiting.items() if condition()]
        assert ready, "all wait for each other"
        rank = chance.choices(ready, [haste[each] for each in ready])[0]
        try:
            waiting[rank] = next(operations[rank])
        except StopIteration:
            del waiting[rank]


def values(rank: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32) * 7 + 1000 * rank + 1


def all_reduce(made: list[HostMemory], count: int, chance: random.Random) -> None:
    tensors = [values(memory.rank, count) for memory in made]
    expected = torch.stack(tensors).sum(0)
    run([m.all_reduce(tensor, SUM) for m, tensor in zip(made, tensors, strict=True)], chance)
    assert all(torch.equal(tensor, expected) for tensor in tensors)


def reduce_scatter(made: list[HostMemory], count: int, chance: random.Random) -> None:
    inputs = [[values(10 * m.rank + part, count) for part in range(len(made))] for m in made]
    outputs = [torch.zeros(count, dtype=torch.int32) for _ in made]
    run([m.reduce_scatter(outputs[m.rank], inputs[m.rank], SUM) for m in made], chance)
    for rank, output in enumerate(outputs):
        assert torch.equal(output, torch.stack([each[rank] for each in inputs]).sum(0))


def all_gather(made: list[HostMemory], count: int, chance: random.Random) -> None:
    outputs = [[torch.zeros(count, dtype=torch.int32) for _ in made] for _ in made]
    run([m.all_gather(outputs[m.rank], values(m.rank, count)) for m in made], chance)
    for found in outputs:
        assert all(torch.equal(part, values(rank, count)) for rank, part in enumerate(found))


def broadcast(made: list[HostMemory], count: int, chance: random.Random) -> None:
    root = count % len(made)
    tensors = [values(memory.rank, count) for memory in made]
    run([m.broadcast(tensors[m.rank], root) for m in made], chance)
    assert all(torch.equal(tensor, values(root, count)) for tensor in tensors)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("call", [all_reduce, reduce_scatter, all_gather, broadcast])
def test_whichever_rank_is_slow_the_result_is_right(
    call: Callable[[list[HostMemory], int, random.Random], None], ranks: int
) -> None:
    with memories(ranks) as made:
        for seed in range(10):
            chance = random.Random(seed)
            for count in chance.sample(SIZES, len(SIZES)):  # one after another, in the same memory
                call(made, count, chance)


def test_operations_that_differ_follow_each_other() -> None:
    calls = (all_reduce, reduce_scatter, all_gather, broadcast)
    with memories(3) as made:
        chance = random.Random(1)
        for _ in range(200):
            chance.choice(calls)(made, chance.choice(SIZES), chance)
