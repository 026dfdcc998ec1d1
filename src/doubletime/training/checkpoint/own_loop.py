"""Checkpoints of a loop of one's own: `dt.save` and `dt.resume`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from doubletime.errors import CheckpointError
from doubletime.training.axes import Axes, axes_of
from doubletime.training.checkpoint import folder, randomness, restoring
from doubletime.training.checkpoint.contents import Parts
from doubletime.training.checkpoint.exchange import on_rank_0
from doubletime.training.checkpoint.saver import Lost, Saver
from doubletime.training.data import Batches


def save(
    where: str | Path,
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    lr_schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    batches: Batches | None = None,
    state: Mapping[str, Any] | None = None,
    keep: int = 3,
) -> Path:
    """Save a checkpoint; whole, and on the disk, when this returns. All ranks must call it alike.

    Call it after `optimizer.step()`: the batch at hand counts as trained on.

    Args:
        where: a folder of checkpoints, which all hosts share.
        model: as it is, or as `parallelize` returned it.
        optimizer: over the model's parameters.
        lr_schedule: that sets the optimizer's rate.
        batches: the training data; its position is saved.
        state: whatever else is to be had again; rank 0's is saved.
        keep: so many checkpoints are kept, the newest.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: if it cannot be written, on all ranks; those before are as they were.
    """
    path = Path(where)
    parts = Parts(model, optimizer, lr_schedule)

    def number() -> int:
        if batches is not None:
            epoch, step = batches.position
            return epoch * len(batches) + step
        return 1 + max(map(folder.step_of, folder.whole(path)), default=0)

    folder.share(path)
    step = on_rank_0(number)
    run = {
        "position": None if batches is None else batches.position,
        "state": dict(state or {}),
        "mesh": str(_axes(batches).mesh),
    }
    saver = Saver(path, keep)
    try:
        saver.begin(step, parts, run, {"random": randomness.capture()})
        saver.settle()
    finally:
        saver.close()

    def outcome() -> Path:
        [one] = saver.outcomes()
        if isinstance(one, Lost):
            raise CheckpointError(
                f"no checkpoint in {path}: {one.why}; those before are whole", "make room for it"
            )
        return one.path

    return on_rank_0(outcome)


def resume(
    where: str | Path,
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    lr_schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    batches: Batches | None = None,
) -> Mapping[str, Any] | None:
    """Go on from the newest whole checkpoint, on any number of ranks. All ranks must call it alike.

    Give it what `save` was given. The next iteration over `batches` begins with the first batch that was
    not trained on. With as many ranks as before, random generators go on where they were; with another
    number they are seeded anew, differently on each rank.

    Args:
        where: a folder of checkpoints, or one of them.
        model: as for `save`.
        optimizer: as for `save`.
        lr_schedule: as for `save`.
        batches: as for `save`.

    Returns:
        What `save` was given as `state`; None where there is no checkpoint, and nothing has changed.

    Raises:
        CheckpointError: if the checkpoint is of another model or other data, or all are damaged.
    """
    path = Path(where)
    parts = Parts(model, optimizer, lr_schedule)
    candidates = on_rank_0(lambda: [path] if (path / ".metadata").exists() else folder.whole(path))
    found = restoring.restore(candidates, parts)
    if found is None:
        return None
    position = found.run.get("position")
    if batches is not None and position is not None:
        if isinstance(position, Mapping):  # of `dt.train`
            position = (position["epoch"], position["step"])
        batches.resume(*position)
    mesh = found.run["mesh"]
    randomness.go_on(found.own, mesh, _axes(batches), folder.step_of(found.path))
    state: Mapping[str, Any] = found.run.get("state", {})
    return state


def _axes(batches: Batches | None) -> Axes:
    """Of the mesh that the batches are for; data parallel over all ranks by default."""
    return axes_of() if batches is None or batches.axes is None else batches.axes
