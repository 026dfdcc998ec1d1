"""The copies of the c10d surface, one short method each: what moves data and reduces nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch._C import _distributed_c10d as c10d

from doubletime.mpi.calls import describe
from doubletime.mpi.operations import slices_of
from doubletime.mpi.surface import Surface, Tensors, listed, options
from doubletime.mpi.waiting import Operation
from doubletime.mpi.work import Work


class Copies(Surface):
    """The calls that move tensors from rank to rank."""

    def broadcast(
        self, tensors: Any, opts: Any = None, root: Any = None, timeout: Any = None
    ) -> Work:
        """Root's tensor becomes everyone's."""
        tensors = listed(tensors)
        opts = options(c10d.BroadcastOptions, opts, rootRank=root, timeout=timeout)
        if (other := self._elsewhere(tensors)) is not None:
            return cast(Work, other.broadcast(tensors, opts))
        group, root = self._group, self._root("broadcast", opts)
        what = describe(tensors, f"root {root}")
        return group.collective(
            "broadcast", tensors, [0], lambda flat: group.broadcast(flat, root), opts,
            what=what, same=what,
        )  # fmt: skip

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Everyone ends with every rank's tensor; shapes may differ between ranks."""
        inputs, opts = listed(inputs), options(c10d.AllgatherOptions, opts, timeout=timeout)
        lists = outputs if outputs and isinstance(outputs[0], (list, tuple)) else [outputs]
        if (other := self._elsewhere(inputs)) is not None:
            return cast(Work, other.allgather(lists, inputs, opts))
        self._check_parts("all_gather", lists[0])
        return self._all_gather("all_gather", [lists[0]], inputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The same for several tensors in one call; `outputs[r][i]` is rank r's `inputs[i]`."""
        opts = options(c10d.AllgatherOptions, opts)
        if (other := self._elsewhere(inputs)) is not None:
            return cast(Work, other.allgather_coalesced(outputs, inputs, opts))
        self._check_parts("all_gather_coalesced", outputs)
        lists = [list(column) for column in zip(*outputs, strict=True)]
        return self._all_gather("all_gather", lists, inputs, opts)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Everyone ends with all ranks' tensors one after the other in one."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The same for several pairs of tensors in one call."""
        opts = options(c10d.AllgatherOptions, opts)
        if (other := self._elsewhere(inputs)) is not None:
            return cast(Work, other.all_gather_single_coalesced(outputs, inputs, opts))
        for output, part in zip(outputs, inputs, strict=True):
            self._check_whole("all_gather_into_tensor", output, part)
        group, count = self._group, len(outputs)

        def body(*flats: torch.Tensor) -> Operation:
            for whole, part in zip(flats[:count], flats[count:], strict=True):
                yield from group.all_gather(slices_of(whole, group.world_size), part)

        what = describe(inputs)
        return group.collective(
            "_all_gather_base", [*outputs, *inputs], range(count), body, opts,
            what=what, same=what, inputs=inputs,
        )  # fmt: skip

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather(self, name: str, lists: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        group, count = self._group, len(inputs)
        size = group.world_size
        outputs = [tensor for row in lists for tensor in row]

        def body(*flats: torch.Tensor) -> Operation:
            for index in range(count):
                row = flats[count + index * size : count + (index + 1) * size]
                yield from group.all_gather(row, flats[index])

        return group.collective(
            name, [*inputs, *outputs], range(count, count + len(outputs)), body, opts,
            what=describe(list(inputs)), same=str(inputs[0].dtype)[6:], inputs=inputs,
        )  # fmt: skip

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, root: Any = None) -> Work:
        """Root ends with every rank's tensor."""
        inputs, opts = listed(inputs), options(c10d.GatherOptions, opts, rootRank=root)
        if (other := self._elsewhere(inputs)) is not None:
            return cast(Work, other.gather(outputs, inputs, opts))
        group, root = self._group, self._root("gather", opts)
        rows: list[torch.Tensor] = []
        if group.rank == root:
            rows = list(outputs[0] if isinstance(outputs[0], (list, tuple)) else outputs)
            self._check_parts("gather", rows)
        return group.collective(
            "gather", [*inputs, *rows], range(1, 1 + len(rows)),
            lambda part, *flats: group.transport.gather(flats or None, part, root),
            opts, what=describe(inputs, f"root {root}"), same=f"root {root}", inputs=inputs,
        )  # fmt: skip

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, root: Any = None) -> Work:
        """Rank i ends with root's i-th tensor."""
        outputs, opts = listed(outputs), options(c10d.ScatterOptions, opts, rootRank=root)
        if (other := self._elsewhere(outputs)) is not None:
            return cast(Work, other.scatter(outputs, inputs, opts))
        group, root = self._group, self._root("scatter", opts)
        parts: list[torch.Tensor] = []
        if group.rank == root:
            parts = list(inputs[0] if isinstance(inputs[0], (list, tuple)) else inputs)
            self._check_parts("scatter", parts)
        return group.collective(
            "scatter", [*outputs, *parts], [0],
            lambda output, *flats: group.transport.scatter(output, flats or None, root),
            opts, what=describe(outputs, f"root {root}"), same=f"root {root}", inputs=parts,
        )  # fmt: skip

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Rank i's `inputs[j]` becomes rank j's `outputs[i]`; shapes may differ."""
        opts = options(c10d.AllToAllOptions, opts)
        if (other := self._elsewhere(inputs)) is not None:
            return cast(Work, other.alltoall(outputs, inputs, opts))
        self._check_parts("all_to_all", inputs)
        self._check_parts("all_to_all", outputs)
        group, size = self._group, self._group.world_size
        return group.collective(
            "all_to_all", [*outputs, *inputs], range(size),
            lambda *flats: group.transport.all_to_all(flats[:size], flats[size:]),
            opts, what=describe(inputs), same=str(inputs[0].dtype)[6:], inputs=inputs,
        )  # fmt: skip

    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Work:
        """Rank i's j-th part of `input` becomes rank j's i-th part of `output`, along dim 0."""
        opts = options(c10d.AllToAllOptions, opts)
        if (other := self._elsewhere([input])) is not None:
            return cast(
                Work, other.all_to_all_single(output, input, output_splits, input_splits, opts)
            )
        received = self._splits("all_to_all_single", output, output_splits)
        sent = self._splits("all_to_all_single", input, input_splits)
        group = self._group
        return group.collective(
            "all_to_all", [output, input], [0],
            lambda into, out: group.transport.all_to_all(into.split(received), out.split(sent)),
            opts, what=describe([input], f"splits {list(input_splits)}"), same=str(input.dtype)[6:],
            inputs=[input],
        )  # fmt: skip

    alltoall_base = all_to_all_single
