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
from doubletime.errors import CollectiveError, UnsupportedError
from doubletime.mpi import types
from doubletime.mpi.calls import caller, describe
from doubletime.mpi.flat import flattened, written_back
from doubletime.mpi.types import Reduction

_SUM = dist.ReduceOp.SUM


def all_reduce(
    party: Party, tensor: torch.Tensor, op: Any, choice: Choice, *, is_async: bool = False
) -> Any:
    """Every rank's tensor becomes the reduction of all.

    Returns:
        The Work if `is_async` and the group is one of mpi or the choice `native`; else None, and all
        is done.
    """
    if choice.algorithm == NATIVE:
        if not party.is_mpi or tensor.is_complex():
            return dist.all_reduce(tensor, op, party.group, async_op=is_async)
        # What torch does before it asks the group takes a third as long as a small message.
        at_once = op is _SUM and not is_async
        work = party.group.allreduce([tensor], _SUM_AT_ONCE if at_once else _options(is_async, op))
        if is_async:
            return work
        if work is not None:
            work.wait()
        return None
    reduction = types.reduction(op, tensor.dtype)
    return _start(
        party, "all_reduce", choice, 0, [tensor], [0], reduction,
        lambda way, flat: way.reduce(flat, reduction), is_async=is_async,
    )  # fmt: skip


def reduce(party: Party, tensor: torch.Tensor, root: int, op: Any, choice: Choice) -> None:
    """Root's tensor becomes the reduction of all; the others' stay as they are."""
    if choice.algorithm == NATIVE:
        dist.reduce(tensor, op=op, group=party.group, group_dst=root)
        return
    reduction = types.reduction(op, tensor.dtype)

    def body(way: _Way, flat: torch.Tensor) -> Operation:
        # On its way to the root the sum grows in other ranks' memory too.
        return way.reduce(flat if party.rank == root else flat.clone(), reduction)

    outputs = [0] if party.rank == root else []
    _start(party, "reduce", choice, root, [tensor], outputs, reduction, body)


def broadcast(party: Party, tensor: torch.Tensor, root: int, choice: Choice) -> None:
    """Root's tensor becomes everyone's."""
    if choice.algorithm == NATIVE:
        dist.broadcast(tensor, group=party.group, group_src=root)
        return
    _start(
        party, "broadcast", choice, root, [tensor], [0], None, lambda way, flat: way.move(flat)
    )  # fmt: skip


def reduce_scatter(
    party: Party, output: torch.Tensor, whole: torch.Tensor, op: Any, choice: Choice
) -> None:
    """Rank i's output becomes the reduction of all ranks' i-th parts of `whole`, along dim 0."""
    _check_parts(party, "reduce_scatter", whole, output)
    if choice.algorithm == NATIVE:
        dist.reduce_scatter_tensor(output, whole, op, party.group)
        return
    reduction = types.reduction(op, whole.dtype)

    def body(way: _Way, into: torch.Tensor, flat: torch.Tensor) -> Operation:
        work = flat.clone()
        yield from way.reduce(work, reduction)
        into.copy_(work.view(party.world_size, -1)[party.rank])

    _start(
        party, "reduce_scatter", choice, 0, [output, whole], [0], reduction, body
    )  # fmt: skip


def all_gather(party: Party, whole: torch.Tensor, part: torch.Tensor, choice: Choice) -> None:
    """Every rank's `whole` becomes all ranks' parts one after the other."""
    _check_parts(party, "all_gather", whole, part)
    if choice.algorithm == NATIVE:
        dist.all_gather_into_tensor(whole, part, party.group)
        return

    def body(way: _Way, into: torch.Tensor, flat: torch.Tensor) -> Operation:
        own = into.view(party.world_size, -1)[party.rank]
        if own.data_ptr() != flat.data_ptr():
            own.copy_(flat)
        return way.move(into)

    _start(party, "all_gather", choice, 0, [whole, part], [0], None, body)


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

        # Of two zeros or NaNs it depends on the side which one stays, and the rounding of a complex product.
        has_sides = plain.name in ("MIN", "MAX") or (
            plain.name == "PRODUCT" and wide.dtype.is_complex
        )

        def combine(held: torch.Tensor, received: torch.Tensor, how: Combine) -> None:
            if has_sides and how is Combine.RECEIVED_LEFT:
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
    *,
    is_async: bool = False,
) -> Any:
    """On an mpi group a job of its engine, elsewhere carried out in this thread."""
    topology = party.topology
    # An algorithm that cannot do it is refused here, on every rank alike, before data moves.
    course(choice, collective, topology, root, party.rank, 0, 1)
    words = [] if reduction is None else [reduction.name]
    if collective in ("reduce", "broadcast"):
        words.append(f"root {root}")
    what = describe(tensors[-1:], *words, choice.algorithm)
    if party.is_mpi:
        group = party.group._group
        way = _Way(party, collective, choice, root, MPIWire(group), AHEAD_MPI)
        work = group.collective(
            collective, tensors, outputs, lambda *flats: body(way, *flats), _options(is_async),
            what=what, same=what,
        )  # fmt: skip
        if is_async:
            return work
        work.wait()
        return None
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        _agree(party, f"{collective}({what})")
    wire, ahead = party.wire(tensors[0])
    way = _Way(party, collective, choice, root, wire, ahead)
    flats = [flattened(tensor) for tensor in tensors]
    for condition in body(way, *flats):
        while not condition():
            pass
    for index in outputs:
        written_back(flats[index], tensors[index])
    return None


def _agree(party: Party, call: str) -> None:
    """In debug mode: all ranks say what they are about to do, and stop if it differs."""
    said: list[Any] = [None] * party.world_size
    dist.all_gather_object(said, (call, caller()), group=party.group)
    if len({other for other, _ in said}) > 1:
        ranks = dist.get_process_group_ranks(party.group)
        lines = "".join(
            f"\n  rank {rank}: {what} called at {where}"
            for rank, (what, where) in zip(ranks, said, strict=True)
        )
        raise CollectiveError(
            f"the ranks call different collectives, or the same with different shapes or types:{lines}",
            "let all ranks of the group make the same calls in the same order",
        )


def _options(is_async: bool, op: Any = _SUM) -> Any:
    options = c10d.AllreduceOptions()
    options.reduceOp = op
    options.asyncOp = is_async
    return options


_SUM_AT_ONCE = _options(is_async=False)  # what nearly all small ones are: made once


def _check_parts(party: Party, name: str, whole: torch.Tensor, part: torch.Tensor) -> None:
    if whole.numel() != part.numel() * party.world_size or whole.dtype != part.dtype:
        raise UnsupportedError(
            f"{name}: {describe([whole])} is not {party.world_size} times {describe([part])}",
            "the large tensor holds one part for each rank, of the same dtype",
        )
