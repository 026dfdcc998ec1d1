"""Collectives between the ranks of one host through shared memory, with torch's own kernels.

Every rank owns one segment: a page of counters and a staging area of bounded size. A large tensor goes
through the staging areas chunk by chunk, so that what one rank writes the others find in the cache.

Ranks keep in step by one counter each: a rank publishes that it has finished its k-th phase, and waits
until all others have. All ranks run the same operations in the same order, so k agrees.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from doubletime import environment
from doubletime.mpi import segments, types
from doubletime.mpi.operations import slices_of
from doubletime.mpi.types import Reduction
from doubletime.mpi.waiting import Operation
from doubletime.units import parse_nbytes

SWITCH_VARIABLE = "DOUBLETIME_SHARED_MEMORY"
STAGING_VARIABLE = "DOUBLETIME_STAGING"
_DEFAULT_STAGING = "4M"
_HEADER_NBYTES = segments.HEADER_NBYTES
_ALIGNMENT = 64
# Words of the header: how many phases this rank has finished; whether its staging has its memory.
_PHASE, _RESERVED = 0, 8
_FAILED = -1


class HostMemory:
    """The segments of all ranks of a group, all of them on this host.

    Args:
        segments: every rank's segment mapped here, by rank.
        rank: of this process in the group.
        descriptor: of this rank's own memfd.
        staging_nbytes: size of each staging area.
    """

    def __init__(
        self, segments: Sequence[mmap.mmap], rank: int, descriptor: int, staging_nbytes: int
    ) -> None:
        self.rank = rank
        self.world_size = len(segments)
        self.staging_nbytes = staging_nbytes
        self._descriptor = descriptor
        self._segments = list(segments)
        self._words = [memoryview(segment)[:_HEADER_NBYTES].cast("q") for segment in segments]
        self._others = [rank_ for rank_ in range(self.world_size) if rank_ != rank]
        self._phase = 0
        self._fence = threading.Lock()
        self._reserved: bool | None = None
        self._staging: list[torch.Tensor] = []

    # -- keeping in step --------------------------------------------------------------------------

    def _publish(self) -> None:
        """Say that this rank has finished another phase."""
        # Taking and giving a lock twice orders the data before the counter on every processor.
        with self._fence:
            self._phase += 1
        with self._fence:
            self._words[self.rank][_PHASE] = self._phase

    def _all_here(self) -> bool:
        """Whether all ranks have finished as many phases as this one."""
        phase = self._phase
        return all(self._words[rank][_PHASE] >= phase for rank in self._others)

    # -- memory -----------------------------------------------------------------------------------

    def reserve(self) -> Operation:
        """Give the staging areas their memory, once, on all ranks; `is_usable` says whether it worked."""
        if self._reserved is not None:
            return
        words = self._words[self.rank]
        try:
            os.posix_fallocate(self._descriptor, 0, _HEADER_NBYTES + self.staging_nbytes)
            words[_RESERVED] = 1
        except OSError:
            words[_RESERVED] = _FAILED
        self._publish()
        yield self._all_here
        self._reserved = all(words[_RESERVED] == 1 for words in self._words)
        if self._reserved:
            self._staging = [
                torch.frombuffer(segment, dtype=torch.uint8, offset=_HEADER_NBYTES)
                for segment in self._segments
            ]

    @property
    def is_usable(self) -> bool:
        """Whether every rank got its staging memory; `reserve` first."""
        return bool(self._reserved)

    def close(self) -> None:
        """Give up the segments; the memory goes when the last rank has."""
        self._staging.clear()
        for words in self._words:
            words.release()
        self._words.clear()
        for segment in self._segments:
            # A tensor of a timed-out operation may still look into it: then it goes with the process.
            with contextlib.suppress(BufferError):
                segment.close()
        self._segments.clear()
        os.close(self._descriptor)

    def _areas(self, dtype: torch.dtype) -> list[torch.Tensor]:
        return [area.view(dtype) for area in self._staging]

    def _chunks(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        yield from tensor.split(self.staging_nbytes // tensor.element_size())

    # -- operations -------------------------------------------------------------------------------

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Operation:
        """The reduction of all ranks' tensors, in place; each rank reduces its slice of each chunk."""
        areas = self._areas(tensor.dtype)
        mine = areas[self.rank]
        yield self._all_here
        reduction.prepare(tensor)
        starts: list[int] = []
        for chunk in self._chunks(tensor):
            slices = slices_of(chunk, self.world_size)
            # Each slice of the last chunk, a smaller one, lies where that of a whole chunk does: others may
            # still read this rank's slice of the chunk before, while what is theirs is written already.
            starts = starts or _starts(slices)
            bounds = [
                slice(start, start + part.numel())
                for start, part in zip(starts, slices, strict=True)
            ]
            for rank in self._others:
                mine[bounds[rank]].copy_(slices[rank])
            self._publish()
            yield self._all_here
            own = slices[self.rank]
            contributions = [areas[rank][bounds[self.rank]] for rank in self._others]
            _reduce_into(own, contributions, reduction, self.world_size)
            mine[bounds[self.rank]].copy_(own)
            self._publish()
            yield self._all_here
            for rank in self._others:
                slices[rank].copy_(areas[rank][bounds[rank]])
        self._publish()

    def reduce_scatter(
        self, output: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> Operation:
        """The reduction of all ranks' `inputs[rank]`, all of one size, in `output`."""
        areas = self._areas(output.dtype)
        mine = areas[self.rank]
        most = self.staging_nbytes // output.element_size() // self.world_size
        yield self._all_here
        pieces = [part.split(most) for part in inputs]
        for index, target in enumerate(output.split(most)):
            size = target.numel()
            for rank in self._others:
                room = mine[rank * most : rank * most + size]
                room.copy_(pieces[rank][index])
                reduction.prepare(room)
            self._publish()
            yield self._all_here
            if target.data_ptr() != pieces[self.rank][index].data_ptr():
                target.copy_(pieces[self.rank][index])
            reduction.prepare(target)
            start = self.rank * most
            contributions = [areas[rank][start : start + size] for rank in self._others]
            _reduce_into(target, contributions, reduction, self.world_size)
            self._publish()
            yield self._all_here

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Operation:
        """Every rank's tensor, all of one size, in `outputs`, by rank."""
        areas = self._areas(tensor.dtype)
        yield self._all_here
        targets = [list(self._chunks(output)) for output in outputs]
        for index, chunk in enumerate(self._chunks(tensor)):
            areas[self.rank][: chunk.numel()].copy_(chunk)
            self._publish()
            yield self._all_here
            for rank in self._others:
                targets[rank][index].copy_(areas[rank][: chunk.numel()])
            self._publish()
            yield self._all_here
        if outputs[self.rank].data_ptr() != tensor.data_ptr():
            outputs[self.rank].copy_(tensor)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Operation:
        """Root's tensor becomes everyone's; root writes one half while the others read the other."""
        half = self._areas(tensor.dtype)[root].split(
            self.staging_nbytes // tensor.element_size() // 2
        )
        yield self._all_here
        chunks = tensor.split(half[0].numel())
        for index in range(len(chunks) + 1):
            if self.rank == root and index < len(chunks):
                half[index % 2][: chunks[index].numel()].copy_(chunks[index])
            if self.rank != root and index > 0:
                before = chunks[index - 1]
                before.copy_(half[(index - 1) % 2][: before.numel()])
            self._publish()
            yield self._all_here


def _reduce_into(
    own: torch.Tensor, others: Sequence[torch.Tensor], reduction: Reduction, world_size: int
) -> None:
    """`own = own op others…`; half types are summed in float32 and rounded once."""
    if own.dtype in types.HALF:
        wide, plain = own.float(), reduction.prepared_as(torch.float32)
        for other in others:
            plain.combine(wide, other.float())
        plain.finish(wide, world_size)
        own.copy_(wide)
        return
    for other in others:
        reduction.combine(own, other)
    reduction.finish(own, world_size)


def _starts(slices: Sequence[torch.Tensor]) -> list[int]:
    """Where each begins, one behind the other."""
    return list(itertools.accumulate((part.numel() for part in slices[:-1]), initial=0))


def attach(comm: Any) -> HostMemory | None:
    """Map the segments of all ranks of a communicator; collective over it.

    Args:
        comm: the communicator (mpi4py).

    Returns:
        None where the ranks are on several hosts, cannot open each other's memory (other containers,
        other users), are alone, or `DOUBLETIME_SHARED_MEMORY=0` says so: all ranks then agree on None.
    """
    size, rank = comm.Get_size(), comm.Get_rank()
    if size == 1:
        return None
    staging = (
        parse_nbytes(os.environ.get(STAGING_VARIABLE, _DEFAULT_STAGING)) // _ALIGNMENT * _ALIGNMENT
    )
    is_wanted = is_switched_on() and staging >= _ALIGNMENT * size * 2
    shared = segments.share(_HEADER_NBYTES + staging if is_wanted else None, comm.allgather)
    return None if shared is None else HostMemory(shared.mapped, rank, shared.descriptor, staging)


def is_switched_on() -> bool:
    """Whether `DOUBLETIME_SHARED_MEMORY` lets ranks share memory."""
    return environment.switch(SWITCH_VARIABLE) is not False
