"""How each collective of the table is called, and what must come out of it on this rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from contract.table import Case
from contract.values import PREMUL_FACTOR, Expected, draw, lay, moved, reduced, shape_of

Outcome = list[tuple[torch.Tensor, Expected]]


@dataclass(frozen=True)
class Setting:
    """One case as one rank sees it."""

    case: Case
    rank: int
    world_size: int

    @property
    def ranks(self) -> range:
        return range(self.world_size)

    @property
    def op(self) -> dist.ReduceOp:
        if self.case.op == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(PREMUL_FACTOR)
        return getattr(dist.ReduceOp, self.case.op or "")

    @property
    def root(self) -> int:
        assert self.case.root is not None
        return self.case.root

    def values(
        self, rank: int, part: int = 0, shape: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        return draw(self.case, rank, part, shape)

    def place(self, values: torch.Tensor) -> torch.Tensor:
        return lay(values, self.case.layout)

    def blank(self, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        shape = shape_of(self.case) if shape is None else shape
        return self.place(torch.full(shape, 1, dtype=self.values(0, 0, (1,)).dtype))

    def uneven(self, rank: int) -> tuple[int, ...]:
        """A length that differs from rank to rank; rank 0 has nothing at all."""
        return (rank * (shape_of(self.case)[0] // self.world_size + 1),)


def all_reduce(s: Setting) -> Outcome:
    tensor = s.place(s.values(s.rank))
    dist.all_reduce(tensor, s.op)
    return [(tensor, reduced(s.case, [s.values(r) for r in s.ranks]))]


def all_reduce_coalesced(s: Setting) -> Outcome:
    tensors = [s.place(s.values(s.rank, part)) for part in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_reduce_coalesced(tensors, s.op)
    return [
        (tensor, reduced(s.case, [s.values(r, part) for r in s.ranks]))
        for part, tensor in enumerate(tensors)
    ]


def reduce(s: Setting) -> Outcome:
    tensor = s.place(s.values(s.rank))
    dist.reduce(tensor, s.root, s.op)
    if s.rank != s.root:
        return []  # what other ranks' tensors hold afterwards is not defined
    return [(tensor, reduced(s.case, [s.values(r) for r in s.ranks]))]


def reduce_scatter(s: Setting) -> Outcome:
    inputs = [s.place(s.values(s.rank, part)) for part in s.ranks]
    output = s.blank()
    dist.reduce_scatter(output, inputs, s.op)
    kept = [(tensor, moved(s.values(s.rank, part))) for part, tensor in enumerate(inputs)]
    return [(output, reduced(s.case, [s.values(r, s.rank) for r in s.ranks])), *kept]


def reduce_scatter_uneven(s: Setting) -> Outcome:
    inputs = [s.place(s.values(s.rank, part, s.uneven(part))) for part in s.ranks]
    output = s.blank(s.uneven(s.rank))
    dist.reduce_scatter(output, inputs, s.op)
    terms = [s.values(r, s.rank, s.uneven(s.rank)) for r in s.ranks]
    return [(output, reduced(s.case, terms))]


def reduce_scatter_tensor(s: Setting) -> Outcome:
    def whole(rank: int) -> torch.Tensor:
        return torch.cat([s.values(rank, part) for part in s.ranks])

    joined = s.place(whole(s.rank))
    output = s.blank()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.reduce_scatter_tensor(output, joined, s.op)
    result = reduced(s.case, [s.values(r, s.rank) for r in s.ranks])
    return [(output, result), (joined, moved(whole(s.rank)))]


def broadcast(s: Setting) -> Outcome:
    tensor = s.place(s.values(s.rank))
    dist.broadcast(tensor, s.root)
    return [(tensor, moved(s.values(s.root)))]


def all_gather(s: Setting) -> Outcome:
    tensor = s.place(s.values(s.rank))
    outputs = [s.blank() for _ in s.ranks]
    dist.all_gather(outputs, tensor)
    gathered = [(output, moved(s.values(r))) for r, output in enumerate(outputs)]
    return [*gathered, (tensor, moved(s.values(s.rank)))]


def all_gather_uneven(s: Setting) -> Outcome:
    tensor = s.place(s.values(s.rank, 0, s.uneven(s.rank)))
    outputs = [s.blank(s.uneven(r)) for r in s.ranks]
    dist.all_gather(outputs, tensor)
    return [(output, moved(s.values(r, 0, s.uneven(r)))) for r, output in enumerate(outputs)]


def _gather_into(s: Setting, stacked: bool) -> Outcome:
    tensor = s.place(s.values(s.rank))
    join = torch.stack if stacked else torch.cat
    expected = join([s.values(r) for r in s.ranks])
    output = s.blank(tuple(expected.shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_into_tensor(output, tensor)
    return [(output, moved(expected)), (tensor, moved(s.values(s.rank)))]


def all_gather_into_tensor(s: Setting) -> Outcome:
    return _gather_into(s, stacked=False)


def all_gather_stacked(s: Setting) -> Outcome:
    return _gather_into(s, stacked=True)


def all_gather_coalesced(s: Setting) -> Outcome:
    tensors = [s.place(s.values(s.rank, part)) for part in range(2)]
    outputs = [[s.blank() for _ in range(2)] for _ in s.ranks]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_coalesced(outputs, tensors)
    return [(outputs[r][part], moved(s.values(r, part))) for r in s.ranks for part in range(2)]


def gather(s: Setting) -> Outcome:
    tensor = s.place(s.values(s.rank))
    outputs = [s.blank() for _ in s.ranks] if s.rank == s.root else None
    dist.gather(tensor, outputs, s.root)
    return [(output, moved(s.values(r))) for r, output in enumerate(outputs or [])]


def scatter(s: Setting) -> Outcome:
    output = s.blank()
    chunks = [s.place(s.values(s.root, r)) for r in s.ranks] if s.rank == s.root else None
    dist.scatter(output, chunks, s.root)
    return [(output, moved(s.values(s.root, s.rank)))]


def all_to_all(s: Setting) -> Outcome:
    inputs = [s.place(s.values(s.rank, r)) for r in s.ranks]
    outputs = [s.blank() for _ in s.ranks]
    dist.all_to_all(outputs, inputs)
    return [(output, moved(s.values(r, s.rank))) for r, output in enumerate(outputs)]


def all_to_all_uneven(s: Setting) -> Outcome:
    inputs = [s.place(s.values(s.rank, r, s.uneven(r))) for r in s.ranks]
    outputs = [s.blank(s.uneven(s.rank)) for _ in s.ranks]
    dist.all_to_all(outputs, inputs)
    return [
        (output, moved(s.values(r, s.rank, s.uneven(s.rank)))) for r, output in enumerate(outputs)
    ]


def all_to_all_single(s: Setting) -> Outcome:
    joined = s.place(torch.cat([s.values(s.rank, r) for r in s.ranks]))
    expected = torch.cat([s.values(r, s.rank) for r in s.ranks])
    output = s.blank(tuple(expected.shape))
    dist.all_to_all_single(output, joined)
    return [(output, moved(expected))]


def all_to_all_single_uneven(s: Setting) -> Outcome:
    """Rank r sends r·q + 1 rows to rank q, so that every pair differs and some are single rows."""

    def rows(source: int, target: int) -> torch.Tensor:
        scale = 1 if s.case.layout != "large" else shape_of(s.case)[0] // (2 * s.world_size**3)
        return s.values(source, target, (scale * source * target + 1, 2))

    joined = s.place(torch.cat([rows(s.rank, r) for r in s.ranks]))
    expected = torch.cat([rows(r, s.rank) for r in s.ranks])
    output = s.blank(tuple(expected.shape))
    dist.all_to_all_single(
        output,
        joined,
        output_split_sizes=[len(rows(r, s.rank)) for r in s.ranks],
        input_split_sizes=[len(rows(s.rank, r)) for r in s.ranks],
    )
    return [(output, moved(expected))]


def send_recv(s: Setting) -> Outcome:
    """Once around the ring, by blocking calls."""
    left, right = (s.rank - 1) % s.world_size, (s.rank + 1) % s.world_size
    tensor, output = s.place(s.values(s.rank)), s.blank()
    if s.rank == 0:
        dist.recv(output, left)
        dist.send(tensor, right)
    else:
        dist.send(tensor, right)
        dist.recv(output, left)
    return [(output, moved(s.values(left)))]


CALLS: dict[str, Callable[[Setting], Outcome]] = {
    call.__name__: call
    for call in (
        all_reduce, all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_uneven,
        reduce_scatter_tensor, broadcast, all_gather, all_gather_uneven, all_gather_into_tensor,
        all_gather_stacked, all_gather_coalesced, gather, scatter, all_to_all, all_to_all_uneven,
        all_to_all_single, all_to_all_single_uneven, send_recv,
    )
}  # fmt: skip
