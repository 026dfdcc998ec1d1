"""The short way: a small synchronous all_reduce on a group with nothing under way is one MPI call.

The general way costs some 60 µs of Python, ten times what MPI takes for a few bytes. Here the call is
posted and looked at in the caller's thread; only one that is not over within a moment becomes a job of
the engine, with all that a long wait needs: giving up the core, the timeout, the question who is missing.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from doubletime.mpi.calls import Description
from doubletime.mpi.flat import flattened
from doubletime.mpi.group import SHARED_FROM_NBYTES, Group
from doubletime.mpi.operations import message
from doubletime.mpi.types import Reduction, datatype
from doubletime.mpi.waiting import Condition, Operation
from doubletime.mpi.work import Work

_FREE_LOOKS = 20
_LOOKS = 120  # some 100 µs


def all_reduce(group: Group, tensor: torch.Tensor, reduction: Reduction, opts: Any) -> bool:
    """A synchronous all_reduce, in place; False, and nothing is done, where it must go the general way."""
    if (
        not reduction.is_plain
        or not _lies_plainly(tensor)
        or group.is_watched()
        or not group.engine.take()
    ):
        return False
    mpi = group.job.mpi
    try:
        what = Description(((tensor.dtype, tensor.shape),), (reduction.name,))
        call = group.enter("all_reduce", what, what)
        sent = message(mpi, tensor, datatype(mpi, tensor.dtype))
        is_over = group.comm.Iallreduce(mpi.IN_PLACE, sent, reduction.mpi_op(mpi)).Test
        if _is_over_soon(is_over):
            _finish(tensor, reduction, group.world_size)
            group.leave(call)
        else:
            work = Work([tensor], group.callbacks)
            rest = _rest(is_over, tensor, reduction, group.world_size)
            group.engine.run(group.job_of(call, rest, work, opts))
            work.wait()
    finally:
        group.engine.give_back()
    return True


def _lies_plainly(tensor: torch.Tensor) -> bool:
    """Whether MPI can work on the tensor's own memory, and would be asked to for its size."""
    return (
        tensor.is_cpu
        and tensor.is_contiguous()
        and 0 < tensor.nbytes < SHARED_FROM_NBYTES
        and not tensor.is_neg()
    )


def _is_over_soon(is_over: Condition) -> bool:
    for _ in range(_FREE_LOOKS):
        if is_over():
            return True
    for _ in range(_LOOKS):
        os.sched_yield()
        if is_over():
            return True
    return False


def _rest(
    is_over: Condition, tensor: torch.Tensor, reduction: Reduction, world_size: int
) -> Operation:
    yield is_over
    _finish(tensor, reduction, world_size)


def _finish(tensor: torch.Tensor, reduction: Reduction, world_size: int) -> None:
    """What torch still has to do; it refuses to write to a leaf or inference tensor as such."""
    if reduction.name == "AVG":
        reduction.finish(flattened(tensor), world_size)
