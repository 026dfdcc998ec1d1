"""The record of one failed rank: written by the rank as it ends, read by the launcher.

A launcher that reads records names a folder in the environment variable `DOUBLETIME_FAILURES`;
the rank then writes its record there and leaves showing it to the launcher, which can put it last.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER_VARIABLE = "DOUBLETIME_FAILURES"
# Who fails since a peer is gone waits so long, in seconds, before it says so: the peer's own end, which
# is noticed within this time, is the story.
PEER_IS_KNOWN_S = 1.0


@dataclass(frozen=True)
class Failure:
    """Why one rank ended.

    Attributes:
        rank: its rank in the job.
        host: the name of its host.
        exit_code: what the job is to exit with, 1 to 255.
        text: the traceback, or one line that says how it ended; ends in a newline.
        time_s: when, in seconds since the epoch.
    """

    rank: int
    host: str
    exit_code: int
    text: str
    time_s: float

    def show(self) -> str:
        """The lines that a person reads: which rank, where, and its traceback."""
        return f"doubletime: rank {self.rank} on host {self.host} failed:\n{self.text}"


def now(rank: int, exit_code: int, text: str) -> Failure:
    """A record of this process failing at this moment."""
    return Failure(rank, os.uname().nodename, exit_code, text, time.time())


def write(failure: Failure) -> bool:
    """Leave the record in the launcher's folder, whole or not at all.

    A rank's first record stands: what it says later is about how it ended, not why.

    Returns:
        False where no launcher asks for records or its folder cannot be written:
        the caller then shows the failure itself.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return False
    target = Path(folder) / f"rank-{failure.rank}.json"
    partial = target.with_suffix(".partial")
    try:
        if target.exists():
            return True
        partial.write_text(json.dumps(asdict(failure)))
        partial.rename(target)
    except OSError:
        return False
    return True


def enter(rank: int) -> None:
    """Note that a rank has begun something that it must not leave without a word: its MPI job."""
    _note(rank, is_inside=True)


def leave(rank: int) -> None:
    """Note that it has left that in order."""
    _note(rank, is_inside=False)


def is_inside(rank: int) -> bool:
    """Whether a rank has entered and not left; False where no launcher asks for records."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return bool(folder) and (Path(str(folder)) / f"inside-{rank}").exists()


def _note(rank: int, *, is_inside: bool) -> None:
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    with contextlib.suppress(OSError):  # the folder may be full, or gone with its launcher
        mark = Path(folder) / f"inside-{rank}"
        if is_inside:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)


def read(folder: Path) -> list[Failure]:
    """All records in the folder, the earliest first."""
    found = [Failure(**json.loads(path.read_text())) for path in folder.glob("rank-*.json")]
    return sorted(found, key=lambda failure: failure.time_s)
