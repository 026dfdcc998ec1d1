"""All-reduce of sparse tensors: gather everyone's entries, add them up."""

from __future__ import annotations

from typing import Any

import torch

from doubletime.errors import UnsupportedError
from doubletime.mpi import types
from doubletime.mpi.calls import describe
from doubletime.mpi.group import Group
from doubletime.mpi.waiting import Operation
from doubletime.mpi.work import Work


def all_reduce(group: Group, tensor: torch.Tensor, opts: Any) -> Work:
    """The sum of all ranks' sparse tensors, in place.

    Args:
        group: of the ranks.
        tensor: COO, of the same shape on all ranks; entries may differ in number.
        opts: c10d's AllreduceOptions.

    Raises:
        UnsupportedError: if the operation is neither SUM nor AVG, or the tensor is not in host memory.
    """
    reduction = types.reduction(opts.reduceOp, tensor.dtype)
    if reduction.name not in ("SUM", "AVG") or tensor.is_cuda:
        raise UnsupportedError(
            f"all_reduce of sparse tensors does {reduction.name} not, or not on {tensor.device}",
            "use ReduceOp.SUM or AVG on a CPU tensor, or make it dense",
        )
    transport = group.transport

    def body() -> Operation:
        mine = tensor.detach().coalesce()
        counts = torch.zeros(group.world_size, dtype=torch.int64)
        own = torch.tensor([mine._nnz()])
        yield from transport.all_gather(list(counts.split(1)), own)
        indices, values = mine.indices().contiguous(), mine.values().contiguous()
        rows = indices.shape[0]
        all_indices = [indices.new_empty(rows * count) for count in counts.tolist()]
        width = values[0].numel() if values.shape[0] else int(torch.Size(values.shape[1:]).numel())
        all_values = [values.new_empty(count * width) for count in counts.tolist()]
        yield from transport.exchange([indices.view(-1)] * group.world_size, all_indices)
        yield from transport.exchange([values.view(-1)] * group.world_size, all_values)
        total = torch.sparse_coo_tensor(
            torch.cat([part.view(rows, -1) for part in all_indices], dim=1),
            torch.cat([part.view(-1, *values.shape[1:]) for part in all_values]),
            tensor.shape,
        ).coalesce()
        if reduction.name == "AVG":
            total = total / group.world_size
        with torch.no_grad():  # detach() of a sparse tensor would be another one
            tensor.copy_(total)

    what = describe([tensor], "sparse", reduction.name)
    return group.collective("all_reduce", [], [], body, opts, what=what, same=what, result=[tensor])
