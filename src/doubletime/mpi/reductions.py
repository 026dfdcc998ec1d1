"""The reductions of the c10d surface, one short method each."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch._C import _distributed_c10d as c10d

from doubletime.mpi import direct, sparse, types
from doubletime.mpi.calls import describe
from doubletime.mpi.operations import slices_of
from doubletime.mpi.surface import Surface, listed, options
from doubletime.mpi.waiting import Operation
from doubletime.mpi.work import Work


class Reductions(Surface):
    """The calls whose outcome is a reduction over the ranks."""

    def allreduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None
    ) -> Work | None:
        """Every rank ends with the reduction of all ranks' tensors; None if all is done already."""
        tensors = listed(tensors)
        opts = options(c10d.AllreduceOptions, opts, op=op, timeout=timeout)
        if (other := self._elsewhere(tensors)) is not None:
            return cast(Work, other.allreduce(tensors, opts))
        if tensors[0].is_sparse:
            return sparse.all_reduce(self._group, tensors[0], opts)
        group, reduction = self._group, types.reduction(opts.reduceOp, tensors[0].dtype)
        if self.instead is not None and len(tensors) == 1:
            work = self.instead(tensors[0], opts)
            if work is not NotImplemented:
                return cast("Work | None", work)
        if (
            not opts.asyncOp
            and len(tensors) == 1
            and direct.all_reduce(group, tensors[0], reduction, opts)
        ):
            return None

        def body(*flats: torch.Tensor) -> Operation:
            for flat in flats:
                yield from group.all_reduce(flat, reduction)

        what = describe(tensors, reduction.name)
        return group.collective(
            "all_reduce", tensors, range(len(tensors)), body, opts, what=what, same=what
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None, root: Any = None, op: Any = None) -> Work:
        """Root ends with the reduction of all ranks' tensors."""
        tensors, opts = listed(tensors), options(c10d.ReduceOptions, opts, rootRank=root, op=op)
        if (other := self._elsewhere(tensors)) is not None:
            return cast(Work, other.reduce(tensors, opts))
        group, reduction = self._group, types.reduction(opts.reduceOp, tensors[0].dtype)
        root = self._root("reduce", opts)
        what = describe(tensors, reduction.name, f"root {root}")
        return group.collective(
            "reduce", tensors, [0] if group.rank == root else [],
            lambda flat: group.transport.reduce(flat, reduction, root),
            opts, what=what, same=what, result=tensors,
        )  # fmt: skip

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, op: Any = None) -> Work:
        """Rank i ends with the reduction of all ranks' i-th tensors; sizes may differ by i."""
        outputs, opts = listed(outputs), options(c10d.ReduceScatterOptions, opts, op=op)
        lists = inputs if inputs and isinstance(inputs[0], (list, tuple)) else [inputs]
        if (other := self._elsewhere(outputs)) is not None:
            return cast(Work, other.reduce_scatter(outputs, lists, opts))
        self._check_parts("reduce_scatter", lists[0])
        group, reduction = self._group, types.reduction(opts.reduceOp, outputs[0].dtype)
        what = describe(lists[0], reduction.name)
        return group.collective(
            "reduce_scatter", [*outputs, *lists[0]], [0],
            lambda output, *parts: group.reduce_scatter(output, parts, reduction),
            opts, what=what, same=what, inputs=lists[0],
        )  # fmt: skip

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Rank i ends with the i-th part of the reduction of all ranks' inputs."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The same for several pairs of tensors in one call."""
        opts = options(c10d.ReduceScatterOptions, opts)
        if (other := self._elsewhere(outputs)) is not None:
            return cast(Work, other.reduce_scatter_single_coalesced(outputs, inputs, opts))
        for output, whole in zip(outputs, inputs, strict=True):
            self._check_whole("reduce_scatter_tensor", whole, output)
        group, reduction = self._group, types.reduction(opts.reduceOp, outputs[0].dtype)
        count = len(outputs)

        def body(*flats: torch.Tensor) -> Operation:
            for output, whole in zip(flats[:count], flats[count:], strict=True):
                parts = slices_of(whole, group.world_size)
                yield from group.reduce_scatter(output, parts, reduction)

        what = describe(inputs, reduction.name)
        return group.collective(
            "_reduce_scatter_base", [*outputs, *inputs], range(count), body, opts,
            what=what, same=what, inputs=inputs,
        )  # fmt: skip

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
