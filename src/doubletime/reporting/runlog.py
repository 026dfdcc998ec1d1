"""A run's record on disk: its configuration, and every figure as one JSON line."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from doubletime.errors import DataError, TrainingError
from doubletime.training.events import Event, RunDone, RunStarted

CONFIG = "config.json"
METRICS = "metrics.jsonl"


class RunLog:
    """Writes events into a folder of its own, made anew; a context manager.

    `config.json` says what ran, with which versions; `metrics.jsonl` holds one line per event,
    its kind under "event", seconds since the start under "time_s".

    Args:
        folder: `runs/NAME`; must not hold a run yet.
        goes_on: it may hold one, to which this one is added.

    Raises:
        TrainingError: if the folder holds a run, or cannot be written.
    """

    def __init__(self, folder: Path, *, goes_on: bool = False) -> None:
        self.folder = folder
        if not goes_on and (folder / METRICS).exists():
            raise TrainingError(
                f"{folder} holds a run already",
                "--resume auto to go on with it, --name another, or delete it",
            )
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            self._lines = (folder / METRICS).open("a", encoding="utf-8")
        self._started_s = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Write the event; a line is whole as soon as this returns, also if the run dies.

        Raises:
            TrainingError: if it cannot be written, as on a disk that is full.
        """
        if isinstance(event, RunStarted):
            with self._writing():
                self._write_config(event)
        line = {
            "event": type(event).__name__,
            "time_s": round(time.monotonic() - self._started_s, 4),
            **asdict(event),
        }
        with self._writing():
            self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # what it could not write has been told
            self._lines.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"{self.folder} cannot be written: {error.strerror}", "--runs another folder"
            ) from error

    def _write_config(self, started: RunStarted) -> None:
        config = {
            "command": sys.argv,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "host": platform.node(),
            "versions": versions(),
            **asdict(started),
        }
        (self.folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Of Python and of the packages that a run's figures depend on."""
    found = {"python": platform.python_version()}
    for package in ("doubletime", "torch", "mpi4py", "numpy"):
        found[package] = metadata.version(package)
    return found


def new_folder(runs: Path, task: str) -> Path:
    """A name for a run that no run has yet: `runs/TASK-20260131-235959`."""
    stem = f"{task}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (stem if count == 1 else f"{stem}-{count}" for count in range(1, 1000))
    return next(runs / name for name in names if not (runs / name).exists())


def read_events(folder: Path) -> list[dict[str, Any]]:
    """All lines of a run's metrics, in order.

    Raises:
        DataError: if there is no such run.
    """
    path = folder / METRICS
    if not path.is_file():
        raise DataError(f"there is no run in {folder}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_result(folder: Path) -> RunDone:
    """How a run ended.

    Raises:
        DataError: if there is no such run, or it did not come to its end.
    """
    for line in reversed(read_events(folder)):
        if line["event"] == RunDone.__name__:
            return _run_done(line)
    raise DataError(f"the run in {folder} did not come to its end")


def _run_done(line: Mapping[str, Any]) -> RunDone:
    return RunDone(**{name: line[name] for name in RunDone.__dataclass_fields__ if name in line})
