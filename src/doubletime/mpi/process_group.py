"""ProcessGroupMPI: the c10d surface, one short method per collective.

torch.distributed calls these methods with lists of tensors and an options object, from Python and (for
DistributedDataParallel and compiled functional collectives) from C++ through torch's trampoline.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from doubletime.errors import UnsupportedError
from doubletime.mpi import messages, monitored, sparse, types
from doubletime.mpi.calls import describe
from doubletime.mpi.group import Group
from doubletime.mpi.operations import slices_of
from doubletime.mpi.waiting import Operation
from doubletime.mpi.work import Together, Work

_Base: Any = dist.ProcessGroup
Tensors = Sequence[torch.Tensor]


class ProcessGroupMPI(_Base):  # type: ignore[misc]
    """A torch.distributed process group over MPI.

    Args:
        group: the machinery beneath.
        store: the c10d store that came with `init_process_group`, if any.
        others: process groups for devices that another backend serves, by device type
            (`cpu:mpi,cuda:nccl`).
    """

    def __init__(
        self, group: Group, store: dist.Store | None = None, others: dict[str, Any] | None = None
    ) -> None:
        super().__init__(group.rank, group.world_size)
        self._first_lane = group
        self._store = store
        self._others = others or {}
        self._group_name = ""
        self._group_desc = ""

    @property
    def _group(self) -> Group:
        """The lane of the calling thread: see `lanes`."""
        return self._first_lane.lane()

    # -- what it is -------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """The name that torch.distributed knows this backend by."""
        return "mpi"

    def name(self) -> str:
        """The backend's name."""
        return "mpi"

    _get_backend_name = name

    def getGroupName(self) -> str:
        """The c10d name of the group."""
        return self._group_name

    def setGroupName(self, name: str) -> None:
        """Set by torch when the group is registered."""
        self._group_name = name

    def getGroupDesc(self) -> str:
        """The c10d description of the group."""
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:
        """Set by torch when the group is registered."""
        self._group_desc = description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *(torch.device(kind) for kind in self._others)]

    def get_group_store(self) -> dist.Store | None:
        """The store the group was made with; `init_process_group("mpi")` alone makes none."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """How long an operation may wait from now on."""
        self._first_lane.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Finish what is under way and give the communicator back."""
        for other in self._others.values():
            other.shutdown()
        self._first_lane.close()

    def abort(self) -> None:
        """Give up what is under way."""
        for other in self._others.values():
            other.abort()
        self._first_lane.close(RuntimeError("the process group was aborted"))

    def _elsewhere(self, tensors: Tensors) -> Any:
        """The group that serves these tensors' device, if it is not this one."""
        if not self._others or not tensors:
            return None
        return self._others.get(tensors[0].device.type)

    # -- reductions -------------------------------------------------------------------------------

    def allreduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None
    ) -> Work:
        """Every rank ends with the reduction of all ranks' tensors."""
        tensors, opts = (
            _listed(tensors),
            _options(c10d.AllreduceOptions, opts, op=op, timeout=timeout),
        )
        if (other := self._elsewhere(tensors)) is not None:
            return cast(Work, other.allreduce(tensors, opts))
        if tensors[0].is_sparse:
            return sparse.all_reduce(self._group, tensors[0], opts)
        group, reduction = self._group, types.reduction(opts.reduceOp, tensors[0].dtype)

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
        tensors, opts = _listed(tensors), _options(c10d.ReduceOptions, opts, rootRank=root, op=op)
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
        outputs, opts = _listed(outputs), _options(c10d.ReduceScatterOptions, opts, op=op)
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
        opts = _options(c10d.ReduceScatterOptions, opts)
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

    # -- copies -----------------------------------------------------------------------------------

    def broadcast(
        self, tensors: Any, opts: Any = None, root: Any = None, timeout: Any = None
    ) -> Work:
        """Root's tensor becomes everyone's."""
        tensors = _listed(tensors)
        opts = _options(c10d.BroadcastOptions, opts, rootRank=root, timeout=timeout)
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
        inputs, opts = _listed(inputs), _options(c10d.AllgatherOptions, opts, timeout=timeout)
        lists = outputs if outputs and isinstance(outputs[0], (list, tuple)) else [outputs]
        if (other := self._elsewhere(inputs)) is not None:
            return cast(Work, other.allgather(lists, inputs, opts))
        self._check_parts("all_gather", lists[0])
        return self._all_gather("all_gather", [lists[0]], inputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The same for several tensors in one call; `outputs[r][i]` is rank r's `inputs[i]`."""
        opts = _options(c10d.AllgatherOptions, opts)
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
        opts = _options(c10d.AllgatherOptions, opts)
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
        inputs, opts = _listed(inputs), _options(c10d.GatherOptions, opts, rootRank=root)
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
        outputs, opts = _listed(outputs), _options(c10d.ScatterOptions, opts, rootRank=root)
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
        opts = _options(c10d.AllToAllOptions, opts)
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
        opts = _options(c10d.AllToAllOptions, opts)
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

    # -- order ------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        """Nobody goes on before everyone has come."""
        opts = _options(c10d.BarrierOptions, opts, timeout=timeout)
        group = self._group
        return group.collective("barrier", [], [], group.transport.barrier, opts, what="", same="")

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier that names the ranks that do not come; see torch.distributed.monitored_barrier."""
        group = self._first_lane
        timeout_s = group.timeout_s if timeout is None else timeout.total_seconds()
        monitored.barrier(group, timeout_s, wait_all_ranks)

    # -- messages ---------------------------------------------------------------------------------

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Work:
        """A message to a rank of the group."""
        (tensor,) = _listed(tensors)
        if (other := self._elsewhere([tensor])) is not None:
            return cast(Work, other.send([tensor], destination, tag))
        return messages.send(self._first_lane, tensor, destination, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """A message from a rank of the group."""
        (tensor,) = _listed(tensors)
        if (other := self._elsewhere([tensor])) is not None:
            return cast(Work, other.recv([tensor], source, tag))
        return messages.receive(self._first_lane, tensor, source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """A message from whichever rank of the group sends one."""
        (tensor,) = _listed(tensors)
        return messages.receive(self._first_lane, tensor, None, tag)

    # -- several at once --------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:  # noqa: ARG002
        self._group.start_together()

    def _end_coalescing(self, device: torch.device) -> Together:  # noqa: ARG002
        return Together(self._group.end_together())

    # -- checks -----------------------------------------------------------------------------------

    def _root(self, name: str, opts: Any) -> int:
        root = int(opts.rootRank)
        if not 0 <= root < self._first_lane.world_size:
            raise UnsupportedError(
                f"{name}: there is no rank {root} in group {self._first_lane.name!r} of "
                f"{self._first_lane.world_size} ranks",
                f"name a root from 0 to {self._first_lane.world_size - 1}",
            )
        return root

    def _check_parts(self, name: str, parts: Tensors) -> None:
        if len(parts) != self._group.world_size:
            raise UnsupportedError(
                f"{name} got {len(parts)} tensors for a group of {self._group.world_size} ranks",
                "pass one tensor for each rank of the group",
            )

    def _check_whole(self, name: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        if whole.numel() != part.numel() * self._group.world_size or whole.dtype != part.dtype:
            raise UnsupportedError(
                f"{name}: {describe([whole])} is not {self._group.world_size} times {describe([part])}",
                "the large tensor holds one part for each rank, of the same dtype",
            )

    def _splits(self, name: str, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """Elements for each rank, from splits along dim 0."""
        size = self._group.world_size
        rows = tensor.shape[0] if tensor.dim() else 0
        counts = list(splits) or [rows // size] * size
        if len(counts) != size or sum(counts) != rows:
            raise UnsupportedError(
                f"{name}: splits {list(splits)} do not divide dim 0 of {describe([tensor])} among "
                f"{size} ranks",
                f"pass {size} split sizes that add up to {rows}, or none where {size} divides it",
            )
        width = tensor.numel() // rows if rows else 0
        return [count * width for count in counts]


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _options(kind: Any, opts: Any, **given: Any) -> Any:
    """The options object of a call; torch also allows single options in its place."""
    if isinstance(opts, kind) or hasattr(opts, "asyncOp"):
        return opts
    made = kind()
    if opts is not None:
        first = "rootRank" if hasattr(made, "rootRank") and isinstance(opts, int) else "reduceOp"
        setattr(made, first, opts)
    for name, value in given.items():
        if value is not None:
            setattr(made, "reduceOp" if name == "op" else name, value)
    return made
