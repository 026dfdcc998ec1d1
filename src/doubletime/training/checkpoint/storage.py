"""Checkpoints by torch's DCP: who writes what, writing it, and reading it on any number of ranks.

Writing takes three steps, of which only the first needs other ranks: a plan, made anew where names or
shapes change; a copy of what this rank is to write; and files, written by a thread while training goes
on. DCP's own `async_save` talks to the other ranks from that thread instead. It needs a process group
of its own for that, which over the mpi backend would be one more thread that competes for the cores,
and it copies on every rank what one of them writes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from doubletime.errors import CheckpointError
from doubletime.training import session

_RESULTS = ".results"


@dataclass
class Share:
    """What this rank writes of a checkpoint.

    Attributes:
        plan: the items.
        metadata: of the whole checkpoint; None but on rank 0.
        signature: names and shapes of this rank's part; the plan holds as long as all ranks' do.
        copies: the tensors' room, used again for the next checkpoint.
    """

    plan: SavePlan
    metadata: Metadata | None
    signature: tuple[Any, ...]
    copies: dict[MetadataIndex, Tensor] = field(default_factory=dict)


def signature(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a plan depends on."""
    return tuple(
        (key, value.shape, value.dtype) if isinstance(value, Tensor) else (key,)
        for key, value in state.items()
    )


def plan(state: Mapping[str, Any]) -> Share:
    """Divide what all ranks have to save; collective.

    What several ranks have under the same name is written by one of them, whoever has less to write.

    Args:
        state: this rank's tensors and objects, by name.

    Raises:
        CheckpointError: if the ranks' parts do not fit together.
    """
    joined = session.current()
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(state), is_coordinator=joined.rank == 0)
    plans: list[Any] = [planner.create_local_plan()]
    metadata: Metadata | None = None
    if joined.world_size > 1:
        mine, plans = plans[0], [None] * joined.world_size
        dist.gather_object(mine, plans if joined.rank == 0 else None)
    if joined.rank == 0:
        try:
            plans, metadata = planner.create_global_plan(plans)
            plans = FileSystemWriter(".").prepare_global_plan(plans)
        except (AssertionError, ValueError) as error:
            plans = [str(error)] * joined.world_size
    if joined.world_size > 1:
        received: list[Any] = [None]
        dist.scatter_object_list(received, plans if joined.rank == 0 else None)
        plans = received
    if isinstance(plans[0], str):
        raise CheckpointError(f"the ranks' parts of a checkpoint do not fit: {plans[0]}")
    return Share(plans[0], metadata, signature(state))


@dataclass(frozen=True)
class Copied:
    """What this rank is to write, as it was at one moment.

    Attributes:
        share: of which checkpoint.
        data: tensors in this process's memory, and objects as bytes.
        later: of these tensors, what is not copied yet: where to, where from, and how often that had
            been changed.
    """

    share: Share
    data: Mapping[MetadataIndex, Tensor | io.BytesIO]
    later: list[tuple[Tensor, Tensor, int]]

    def complete(self) -> None:
        """Copy the rest; by any thread, as long as nothing changes it.

        Raises:
            CheckpointError: if something has.
        """
        if not self.later:
            return
        torch._foreach_copy_(
            [room for room, _, _ in self.later], [each for _, each, _ in self.later]
        )
        if any(source._version != version for _, source, version in self.later):
            raise CheckpointError("parameters were changed outside of optimizer.step()")
        self.later.clear()


def copy(share: Share, state: Mapping[str, Any], may_wait: Callable[[str], bool]) -> Copied:
    """Copy what this rank writes.

    Args:
        share: what that is.
        state: this rank's tensors and objects, by name.
        may_wait: whether a tensor of this name may be copied later, by `Copied.complete`.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(state))
    data: dict[MetadataIndex, Tensor | io.BytesIO] = {}
    later: list[tuple[Tensor, Tensor, int]] = []
    for item in share.plan.items:
        value = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO or not isinstance(value, Tensor):
            data[item.index] = value
            continue
        source = value.detach()
        room = share.copies.get(item.index)
        if room is None:
            room = torch.empty(source.shape, dtype=source.dtype, device="cpu")
            share.copies[item.index] = room
        data[item.index] = room
        if may_wait(item.index.fqn):
            later.append((room, source, source._version))
        else:
            room.copy_(source)
    return Copied(share, data, later)


class _FromCopies(DefaultSavePlanner):
    """Finds what is written among the copies."""

    def __init__(self, data: Mapping[MetadataIndex, Tensor | io.BytesIO]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._data = data

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        return self._data[write_item.index]


def write(copied: Copied, folder: Path, rank: int) -> None:
    """Write this rank's file, and what rank 0 must know of it; on the disk when this returns.

    Talks to no other rank, so that a thread may do it.

    Raises:
        OSError, RuntimeError: if it cannot be written, as on a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = FileSystemWriter(folder)
    results = writer.write_data(copied.share.plan, _FromCopies(copied.data)).value()
    (folder / f"__{rank}{_RESULTS}").write_bytes(pickle.dumps(results))


def finish(share: Share, folder: Path, world_size: int) -> int:
    """On rank 0, once all ranks have written: describe the whole; returns its bytes.

    Raises:
        OSError: if that cannot be written.
    """
    parts = [folder / f"__{rank}{_RESULTS}" for rank in range(world_size)]
    results = [pickle.loads(part.read_bytes()) for part in parts]
    metadata = Metadata(share.metadata.state_dict_metadata) if share.metadata else Metadata({})
    FileSystemWriter(folder).finish(metadata, results)
    for part in parts:
        part.unlink()
    return sum(result.size_in_bytes for each in results for result in each)


def describe(folder: Path) -> Metadata:
    """What a checkpoint holds.

    Raises:
        CheckpointError: if it is damaged: a file is missing or too short, or cannot be read.
    """
    try:
        metadata = FileSystemReader(folder).read_metadata()
        ends: dict[str, int] = {}
        for stored in metadata.storage_data.values():
            end = stored.offset + stored.length
            ends[stored.relative_path] = max(end, ends.get(stored.relative_path, 0))
    except Exception as error:  # whatever a pickle of garbage comes to
        raise CheckpointError(f"{folder} is damaged: .metadata cannot be read ({error})") from error
    for name, least in ends.items():
        path = folder / name
        nbytes = path.stat().st_size if path.exists() else None
        if nbytes is None or nbytes < least:
            has = "is missing" if nbytes is None else f"has {nbytes} of {least} bytes"
            raise CheckpointError(f"{folder} is damaged: {name} {has}")
    return metadata


def read(folder: Path, metadata: Metadata, targets: Mapping[str, Any]) -> dict[str, Any]:
    """Read tensors into their room, and objects; each rank by itself.

    Args:
        folder: of one checkpoint.
        metadata: as `describe` gives it.
        targets: fresh tensors by name, None for an object.

    Returns:
        The same names, with what was read.

    Raises:
        CheckpointError: if it cannot be read.
    """
    state = dict(targets)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    reader = FileSystemReader(folder)
    try:
        planner.set_up_planner(state, metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        local = reader.prepare_local_plan(planner.create_local_plan())
        [whole] = reader.prepare_global_plan(planner.create_global_plan([local]))
        reader.read_data(planner.finish_plan(whole), planner).wait()
    except Exception as error:  # whatever an archive of garbage comes to
        raise CheckpointError(f"{folder} is damaged: {error}") from error
    return state
