"""Where checkpoints lie: `step-N` is whole, `step-N.partial` is not; and which of them are kept."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from doubletime.errors import CheckpointError
from doubletime.training import session
from doubletime.training.checkpoint.exchange import of_all, on_rank_0

_WHOLE = re.compile(r"step-(\d+)")
_PARTIAL = ".partial"
_DAMAGED = ".damaged"


def partial(folder: Path, step: int) -> Path:
    """Where a checkpoint is written before it is whole.

    Args:
        folder: of all checkpoints of a run.
        step: since the run's begin, over all epochs.
    """
    return folder / f"step-{step:08d}{_PARTIAL}"


def whole(folder: Path) -> list[Path]:
    """The whole checkpoints, the newest first; none where there is no such folder."""
    return sorted(
        (path for path in _entries(folder) if _WHOLE.fullmatch(path.name) and path.is_dir()),
        key=step_of,
        reverse=True,
    )


def step_of(path: Path) -> int:
    """The step after which a checkpoint was made."""
    found = _WHOLE.match(path.name)
    return int(found[1]) if found else 0


def commit(partial: Path) -> Path:
    """Give a checkpoint that is whole the name of one; when this returns, that is on the disk.

    A name is changed at once or not at all, so no one ever sees half of it under that name. One of
    an earlier run of the same step gives way.

    Raises:
        OSError: if the file system refuses.
    """
    path = partial.with_name(partial.name.removesuffix(_PARTIAL))
    _sync(partial)
    before = path.with_name(f"{path.name}.before{_PARTIAL}")
    if path.exists():
        path.rename(before)
    partial.rename(path)
    _sync(path.parent)
    shutil.rmtree(before, ignore_errors=True)
    return path


def keep_last(folder: Path, count: int) -> None:
    """Remove all whole checkpoints but the newest `count`."""
    for path in whole(folder)[count:]:
        # Not whole any more from the first file that goes: so its name goes first.
        going = path.with_name(f"{path.name}{_PARTIAL}")
        path.rename(going)
        shutil.rmtree(going, ignore_errors=True)


def discard(partial: Path) -> None:
    """Remove what was written of a checkpoint that will not be whole."""
    shutil.rmtree(partial, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Remove what a run has left that ended while it saved."""
    for path in _entries(folder):
        if path.name.endswith(_PARTIAL):
            discard(path)


def set_aside(path: Path) -> Path:
    """Take a damaged checkpoint out of the row, so that it is not tried again; returns where it lies."""
    aside = path.with_name(path.name + _DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


def prepare(folder: Path) -> None:
    """Make the folder and write into it: better refused now than after an hour of training.

    Raises:
        CheckpointError: if it cannot be written.
    """
    probe = folder / f"probe{_PARTIAL}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
        probe.mkdir()
        (probe / "probe").write_bytes(b"\0")
        shutil.rmtree(probe)
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written: {error.strerror}",
            "--runs another folder, or --checkpoint-every 0 for no checkpoints",
        ) from error


def share(folder: Path) -> None:
    """Make the folder on rank 0, and see that all ranks write into that same one; collective.

    Raises:
        CheckpointError: if rank 0 cannot write it, or a host has none of that name, or another.
    """

    def mark() -> str:
        prepare(folder)
        name = f"shared-{os.urandom(8).hex()}{_PARTIAL}"
        (folder / name).mkdir()
        return name

    marked = folder / on_rank_0(mark)
    is_there = marked.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    troubles = of_all(None if is_there else os.uname().nodename)
    if session.current().rank == 0:
        marked.rmdir()
    for trouble in troubles:
        if trouble is not None:
            raise CheckpointError(
                f"host {trouble} does not share {folder.absolute()} with rank 0, or cannot write it",
                "--runs a folder that all hosts share, or --checkpoint-every 0 for no checkpoints",
            )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
