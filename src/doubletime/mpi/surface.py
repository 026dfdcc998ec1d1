"""What all calls of the c10d surface share: the group's identity, and the checks of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from doubletime.errors import UnsupportedError
from doubletime.mpi.calls import describe
from doubletime.mpi.group import Group

_Base: Any = dist.ProcessGroup
Tensors = Sequence[torch.Tensor]


class Surface(_Base):  # type: ignore[misc]
    """A process group as torch.distributed knows it, without its operations.

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
        # Carries an all_reduce of one tensor out in another way than the backend's own, or answers
        # NotImplemented; from a floor above, which knows other ways.
        self.instead: Callable[[torch.Tensor, Any], Any] | None = None
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


def listed(tensors: Any) -> list[torch.Tensor]:
    """Tensors as torch hands them over: one, or a sequence."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def options(kind: Any, opts: Any, **given: Any) -> Any:
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
