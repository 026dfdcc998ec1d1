"""Which folder a run gets, and which checkpoint it goes on from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from doubletime.errors import CheckpointError
from doubletime.reporting.runlog import METRICS, new_folder
from doubletime.training.checkpoint import folder

CHECKPOINTS = "checkpoints"
AUTO, NEVER = "auto", "never"


@dataclass(frozen=True)
class Chosen:
    """A run's folder.

    Attributes:
        folder: of the run.
        goes_on: whether it may hold the beginning of this run.
        candidates: checkpoints to go on from, the best first.
    """

    folder: Path
    goes_on: bool = False
    candidates: tuple[Path, ...] = ()


def choose(runs: Path, name: str | None, task: str, resume: str) -> Chosen:
    """Where a run is to be recorded, and what it begins with.

    Args:
        runs: where run folders are made.
        name: of the run's folder; None for a new one, or with "auto" the task's last one.
        task: its name.
        resume: "auto", "never", or the path of a checkpoint or of a run.

    Raises:
        CheckpointError: if the path holds no checkpoint.
    """
    if resume == AUTO:
        found = runs / name if name else _last(runs, task)
        if found is None:
            return Chosen(new_folder(runs, task))
        return Chosen(found, True, tuple(folder.whole(found / CHECKPOINTS)))
    own = runs / name if name else new_folder(runs, task)
    if resume == NEVER:
        return Chosen(own)
    candidates = _within(Path(resume))
    is_own = own.resolve() in candidates[0].resolve().parents
    return Chosen(own, is_own, candidates)


def _within(path: Path) -> tuple[Path, ...]:
    """The checkpoints that a path means: itself, or a run's, the newest first."""
    if (path / ".metadata").exists():
        return (path,)
    found = folder.whole(path / CHECKPOINTS) or folder.whole(path)
    if not found:
        raise CheckpointError(
            f"there is no checkpoint in {path}",
            "--resume PATH takes a run's folder, or one checkpoint of it; --resume auto finds the last",
        )
    return tuple(found)


def _last(runs: Path, task: str) -> Path | None:
    """The folder of the last run of a task that was given no name."""
    mine = re.compile(rf"{re.escape(task)}-(\d{{8}}-\d{{6}})(?:-(\d+))?")
    found = []
    for path in runs.iterdir() if runs.is_dir() else ():
        stamp = mine.fullmatch(path.name)
        if stamp and (path / METRICS).exists():
            found.append((stamp[1], int(stamp[2] or 1), path))
    return max(found)[2] if found else None
