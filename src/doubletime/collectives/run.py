"""Collectives by a named algorithm, on any process group: what `dt.all_reduce` and its like do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from doubletime.collectives.choice import NATIVE, Choice, course
from doubletime.collectives.execution import Execution, Operation, Wire
from doubletime.collectives.party import AHEAD_MPI, Party
from doubletime.collectives.schedule import Collective, Combine
from doubletime.collectives.wires import MPIWire
from doubletime.errors import UnsupportedError
from doubletime.mpi import types
from doubletime.mpi.calls import describe
from doubletime.mpi.flat import flattened, written_back
from doubletime.mpi.types import Reduction


def all_reduce(party: Party, tensor: torch.Tensor, op: Any, choice: Choice) -> Any:
    """Every rank's tensor becomes the reduction of all; returns the Work of an mpi group, else None."""
    if choice.algorithm == NATIVE:
        return dist.all_reduce(tensor, op, party.group)
    reduction = types.reduction(op, tensor.dtype)
    return _start(
        party, "all_reduce", choice, 0, [tensor], [0], reduction,
        lambda way, flat: way.reduce(flat, reduction),
    )  # fmt: skip


def reduce(party: Party, tensor: torch.Tensor, root: int, op: Any, choice: Choice) -> Any:
    """Root's tensor becomes the reduction of all; the others' stay as they are."""
    if choice.algorithm == NATIVE:
        return dist.reduce(tensor, op=op, group=party.group, group_dst=root)
    reduction = types.reduction(op, tensor.dtype)

    def body(way: _Way, flat: torch.Tensor) -> Operation:
        # On its way to the root the sum grows in other ranks' memory too.
        return way.reduce(flat if party.rank == root else flat.clone(), reduction)

    outputs = [0] if party.rank == root else []
    return _start(party, "reduce", choice, root, [tensor], outputs, reduction, body)


def broadcast(party: Party, tensor: torch.Tensor, root: int, choice: Choice) -> Any:
    """Root's tensor becomes everyone's."""
    if choice.algorithm == NATIVE:
        return dist.broadcast(tensor, group=party.group, group_src=root)
    return _start(
        party, "broadcast", choice, root, [tensor], [0], None, lambda way, flat: way.move(flat)
    )  # fmt: skip


def reduce_scatter(
    party: Party, output: torch.Tensor, whole: torch.Tensor, op: Any, choice: Choice
) -> Any:
    """Rank i's output becomes the reduction of all ranks' i-th parts of `whole`, along dim 0."""
    _check_parts(party, "reduce_scatter", whole, output)
    if choice.algorithm == NATIVE:
        return dist.reduce_scatter_tensor(output, whole, op, party.group)
    reduction = types.reduction(op, whole.dtype)

    def body(way: _Way, into: torch.Tensor, flat: torch.Tensor) -> Operation:
        work = flat.clone()
        yield from way.reduce(work, reduction)
        into.copy_(work.view(party.world_size, -1)[party.rank])

    return _start(
        party, "reduce_scatter", choice, 0, [output, whole], [0], reduction, body
    )  # fmt: skip


def all_gather(party: Party, whole: torch.Tensor, part: torch.Tensor, choice: Choice) -> Any:
    """Every rank's `whole` becomes all ranks' parts one after the other."""
    _check_parts(party, "all_gather", whole, part)
    if choice.algorithm == NATIVE:
        return dist.all_gather_into_tensor(whole, part, party.group)

    def body(way: _Way, into: torch.Tensor, flat: torch.Tensor) -> Operation:
        own = into.view(party.world_size, -1)[party.rank]
        if own.data_ptr() != flat.data_ptr():
            own.copy_(flat)
        return way.move(into)

    return _start(party, "all_gather", choice, 0, [whole, part], [0], None, body)


class _Way:
    """One collective of one choice: how its rounds run on a flat tensor."""

    def __init__(
        self,
        party: Party,
        collective: Collective,
        choice: Choice,
        root: int,
        wire: Wire,
        ahead: int,
    ) -> None:
        self._party = party
        self._collective = collective
        self._choice = choice
        self._root = root
        self._wire = wire
        self._ahead = ahead

    def move(self, flat: torch.Tensor) -> Operation:
        """Rounds that only copy."""
        return self._run(flat, _nothing_to_reduce)

    def reduce(self, flat: torch.Tensor, reduction: Reduction) -> Operation:
        """Rounds that reduce, in place; half types in float32, rounded once at the end."""
        reduction.prepare(flat)
        is_half = flat.dtype in types.HALF
        wide = flat.float() if is_half else flat
        plain = reduction.prepared_as(wide.dtype)

        def combine(held: torch.Tensor, received: torch.Tensor, how: Combine) -> None:
            if how is Combine.RECEIVED_LEFT and plain.name in ("MIN", "MAX"):
                # Of two zeros or NaNs it depends on the side which one stays.
                plain.combine(received, held)
                held.copy_(received)
            else:
                plain.combine(held, received)

        yield from self._run(wide, combine)
        plain.finish(wide, self._party.world_size)
        if is_half:
            flat.copy_(wide)

    def _run(
        self, flat: torch.Tensor, combine: Callable[[torch.Tensor, torch.Tensor, Combine], None]
    ) -> Operation:
        party = self._party
        steps = course(
            self._choice, self._collective, party.topology, self._root, party.rank,
            flat.numel(), flat.element_size(),
        )  # fmt: skip
        return Execution(steps, flat, self._wire, combine, self._ahead).run()


def _nothing_to_reduce(_held: torch.Tensor, _received: torch.Tensor, _how: Combine) -> None:
    raise AssertionError("a schedule that only moves data asked for a reduction")


def _start(
    party: Party,
    collective: Collective,
    choice: Choice,
    root: int,
    tensors: list[torch.Tensor],
    outputs: list[int],
    reduction: Reduction | None,
    body: Callable[..., Operation],
) -> Any:
    """On an mpi group a job of its engine, elsewhere carried out in this thread."""
    topology = party.topology
    # An algorithm that cannot do it is refused here, on every rank alike, before data moves.
    course(choice, collective, topology, root, party.rank, 0, 1)
    words = [] if reduction is None else [reduction.name]
    if party.is_mpi:
        group = party.group._group
        way = _Way(party, collective, choice, root, MPIWire(group), AHEAD_MPI)
        what = describe(tensors[-1:], *words, choice.algorithm)
        return group.collective(
            collective, tensors, outputs, lambda *flats: body(way, *flats), _options(),
            what=what, same=what,
        )  # fmt: skip
    wire, ahead = party.wire(tensors[0])
    way = _Way(party, collective, choice, root, wire, ahead)
    flats = [flattened(tensor) for tensor in tensors]
    for condition in body(way, *flats):
        while not condition():
            pass
    for index in outputs:
        written_back(flats[index], tensors[index])
    return None


def _options() -> Any:
    options = c10d.AllreduceOptions()
    options.asyncOp = False
    return options


def _check_parts(party: Party, name: str, whole: torch.Tensor, part: torch.Tensor) -> None:
    if whole.numel() != part.numel() * party.world_size or whole.dtype != part.dtype:
        raise UnsupportedError(
            f"{name}: {describe([whole])} is not {party.world_size} times {describe([part])}",
            "the large tensor holds one part for each rank, of the same dtype",
        )
