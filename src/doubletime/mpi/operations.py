"""Each collective as nonblocking MPI calls on flat, contiguous tensors in host memory.

Every function is a generator (`waiting.Operation`): it posts MPI calls and yields conditions until they
are complete, so that one thread can drive several, stop at a deadline, and never sits inside MPI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from doubletime.mpi import types
from doubletime.mpi.types import Reduction
from doubletime.mpi.waiting import Operation

# What a single MPI call moves at most: MPI counts are C ints before MPI 4, and Open MPI 5 never ends a
# message of 2 GiB and more.
_MOST_NBYTES = 1 << 30
# The same between hosts. Over TCP a larger message of MPICH or Open MPI holds up the one that comes the
# other way: recursive doubling of 16 MiB on 4 hosts at 1 Gbit/s takes 430 ms whole, 297 ms in such pieces.
_MOST_FAR_NBYTES = 256 << 10
# Half types up to this size travel as float32 (fewer messages); above, in their own two bytes,
# in blocks that bound the scratch memory to one block a rank.
_HALF_AS_FLOAT_NBYTES = 32 << 10
_HALF_BLOCK_NBYTES = 8 << 20
# Lists of tensors up to this size are packed into one message buffer.
_PACK_NBYTES = 64 << 10


class Transport:
    """Collectives over one MPI communicator. Tensors are 1-D and contiguous, in host memory.

    Args:
        mpi: the mpi4py module.
        comm: the communicator of collectives, not used for anything else.
        are_far: for each rank, whether it is on another host.
    """

    def __init__(self, mpi: Any, comm: Any, are_far: Sequence[bool]) -> None:
        self._mpi = mpi
        self._comm = comm
        self._most_nbytes = [_MOST_FAR_NBYTES if is_far else _MOST_NBYTES for is_far in are_far]
        self.rank: int = comm.Get_rank()
        self.world_size: int = comm.Get_size()

    def send(self, tensor: torch.Tensor, rank: int) -> list[Any]:
        """Start to send to a rank, in pieces; the requests."""
        whole = pieces(tensor, self._most_nbytes[rank])
        return [self._comm.Isend(self._move(piece), rank) for piece in whole]

    def receive(self, tensor: torch.Tensor, rank: int) -> list[Any]:
        """Start to receive what a rank sends by `send`; the requests."""
        whole = pieces(tensor, self._most_nbytes[rank])
        return [self._comm.Irecv(self._move(piece), rank) for piece in whole]

    def _move(self, tensor: torch.Tensor) -> list[Any]:
        """The tensor as a message whose elements are only moved."""
        return message(self._mpi, tensor, types.move_type(self._mpi, tensor.element_size()))

    def _reduce(self, tensor: torch.Tensor) -> list[Any]:
        """The tensor as a message whose elements MPI reduces."""
        return message(self._mpi, tensor, types.datatype(self._mpi, tensor.dtype))

    def barrier(self) -> Operation:
        """Return when every rank has come."""
        yield self._comm.Ibarrier().Test

    def broadcast(self, tensor: torch.Tensor, root: int) -> Operation:
        """Root's tensor becomes everyone's."""
        for piece in pieces(tensor):
            yield self._comm.Ibcast(self._move(piece), root).Test

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Operation:
        """The reduction of all ranks' tensors, in place on every rank."""
        reduction.prepare(tensor)
        if reduction.has_mpi_type:
            op = reduction.mpi_op(self._mpi)
            for piece in pieces(tensor):
                yield self._comm.Iallreduce(self._mpi.IN_PLACE, self._reduce(piece), op).Test
            reduction.finish(tensor, self.world_size)
        elif tensor.numel() * tensor.element_size() <= _HALF_AS_FLOAT_NBYTES:
            wide = tensor.float()
            yield from self.all_reduce(wide, reduction.prepared_as(torch.float32))
            tensor.copy_(wide)
        else:
            for block in pieces(tensor, _HALF_BLOCK_NBYTES):
                yield from self._all_reduce_by_slices(block, reduction)

    def _all_reduce_by_slices(self, block: torch.Tensor, reduction: Reduction) -> Operation:
        """All-reduce in the tensor's own two bytes, rounded once.

        Each rank collects every rank's contribution to its slice, sums in float32, and hands the rounded
        slice to all: 2(p-1)/p·n bytes sent by each rank, as by a ring.
        """
        slices = slices_of(block, self.world_size)
        mine = slices[self.rank]
        yield from self._reduce_scatter_half(mine, slices, reduction)
        yield from self.exchange([mine] * self.world_size, slices)

    def reduce(self, tensor: torch.Tensor, reduction: Reduction, root: int) -> Operation:
        """The reduction of all ranks' tensors in root's; the others' stay as they are."""
        for piece in pieces(tensor, _MOST_NBYTES if reduction.has_mpi_type else _HALF_BLOCK_NBYTES):
            scaled = piece if reduction.factor is None else piece.clone()
            reduction.prepare(scaled)
            wide = scaled if reduction.has_mpi_type else scaled.float()
            plain = reduction if reduction.has_mpi_type else reduction.prepared_as(torch.float32)
            op = plain.mpi_op(self._mpi)
            if self.rank == root:
                yield self._comm.Ireduce(self._mpi.IN_PLACE, self._reduce(wide), op, root).Test
                plain.finish(wide, self.world_size)
                if wide is not piece:
                    piece.copy_(wide)
            else:
                yield self._comm.Ireduce(self._reduce(wide), None, op, root).Test

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Operation:
        """Every rank's tensor in everyone's `outputs`, by rank; sizes may differ between ranks."""
        sizes = {output.numel() for output in outputs}
        nbytes = tensor.numel() * tensor.element_size() * self.world_size
        if len(sizes) > 1 or nbytes > _PACK_NBYTES:
            yield from self.exchange([tensor] * self.world_size, outputs)
            return
        together = tensor.new_empty((self.world_size, tensor.numel()))
        sent, received = self._move(tensor), self._move(together)
        received[1] = tensor.numel()  # MPI wants the count of one rank's part
        yield self._comm.Iallgather(sent, received).Test
        for output, row in zip(outputs, together, strict=True):
            output.copy_(row)

    def gather(
        self, outputs: Sequence[torch.Tensor] | None, tensor: torch.Tensor, root: int
    ) -> Operation:
        """Every rank's tensor in root's `outputs`; None on the other ranks."""
        sends: list[torch.Tensor | None] = [None] * self.world_size
        sends[root] = tensor
        yield from self.exchange(sends, outputs or [None] * self.world_size)

    def scatter(
        self, tensor: torch.Tensor, inputs: Sequence[torch.Tensor] | None, root: int
    ) -> Operation:
        """Rank i's part of root's `inputs` in its tensor; None on the other ranks."""
        receives: list[torch.Tensor | None] = [None] * self.world_size
        receives[root] = tensor
        yield from self.exchange(inputs or [None] * self.world_size, receives)

    def all_to_all(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Operation:
        """`inputs[i]` goes to rank i, `outputs[i]` comes from it; sizes may differ."""
        yield from self.exchange(inputs, outputs)

    def reduce_scatter(
        self, output: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> Operation:
        """The reduction of all ranks' `inputs[rank]`; sizes may differ. Inputs stay as they are."""
        if not reduction.has_mpi_type:
            yield from self._reduce_scatter_half(output, inputs, reduction)
            return
        counts = [part.numel() for part in inputs]
        together = joined(inputs)
        if reduction.factor is not None:
            together = together.clone()
            reduction.prepare(together)
        if together.numel() * together.element_size() > _MOST_NBYTES:
            for part, root in zip(inputs, range(self.world_size), strict=True):
                whole = part.clone()
                yield from self.reduce(whole, reduction, root)
                if root == self.rank:
                    output.copy_(whole)
            return
        op = reduction.mpi_op(self._mpi)
        sent, received = self._reduce(together), self._reduce(output)
        yield self._comm.Ireduce_scatter(sent, received, counts, op).Test
        reduction.finish(output, self.world_size)

    def _reduce_scatter_half(
        self, output: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> Operation:
        rows = output.new_empty((self.world_size, output.numel()))
        yield from self.exchange(inputs, list(rows))
        wide = rows[0].float()
        plain = reduction.as_dtype(torch.float32)
        plain.prepare(wide)
        for row in rows[1:]:
            other = row.float()
            plain.prepare(other)
            plain.combine(wide, other)
        plain.finish(wide, self.world_size)
        output.copy_(wide)

    def exchange(
        self,
        sends: Sequence[torch.Tensor | None],
        receives: Sequence[torch.Tensor | None],
    ) -> Operation:
        """Send `sends[i]` to rank i and receive `receives[i]` from it; None where nothing goes.

        Receives are posted first. Peers are taken in an order that spreads the load: each rank starts
        with its neighbour.
        """
        mine, own = sends[self.rank], receives[self.rank]
        if mine is not None and own is not None and mine.data_ptr() != own.data_ptr():
            own.copy_(mine)
        requests = []
        for step in range(1, self.world_size):
            source = (self.rank - step) % self.world_size
            into = receives[source]
            if into is not None:
                requests += self.receive(into, source)
        for step in range(1, self.world_size):
            target = (self.rank + step) % self.world_size
            out = sends[target]
            if out is not None:
                requests += self.send(out, target)
        for request in requests:
            yield request.Test


def message(mpi: Any, tensor: torch.Tensor, datatype: Any) -> list[Any]:
    """A flat tensor as mpi4py's buffer, count and datatype; the tensor must outlive the call."""
    nbytes = tensor.numel() * tensor.element_size()
    return [mpi.buffer.fromaddress(tensor.data_ptr(), nbytes), tensor.numel(), datatype]


def slices_of(tensor: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """The tensor in `parts` consecutive slices of (nearly) equal size, some perhaps empty."""
    return list(tensor.tensor_split(parts))


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensors one after the other: a view where they already lie so in memory, else a copy."""
    first = tensors[0]
    address = first.data_ptr()
    storage = first.untyped_storage().data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != address or tensor.untyped_storage().data_ptr() != storage:
            return torch.cat(list(tensors))
        address += tensor.numel() * tensor.element_size()
    total = sum(tensor.numel() for tensor in tensors)
    return first.as_strided((total,), (1,), first.storage_offset())


def pieces(tensor: torch.Tensor, most_nbytes: int = _MOST_NBYTES) -> Iterator[torch.Tensor]:
    """The tensor in pieces of at most `most_nbytes` bytes; an empty tensor is one piece."""
    most = most_nbytes // tensor.element_size()
    if tensor.numel() <= most:
        yield tensor
    else:
        yield from tensor.split(most)
