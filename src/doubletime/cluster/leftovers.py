"""The files in /dev/shm that a job leaves behind when its ranks are killed: find them, and remove them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_SHM = Path("/dev/shm")
_MAPPED_WITHIN_S = 1.0  # who makes a file maps it at once


class SharedMemoryFiles:
    """The files in /dev/shm that a job makes: a rank that is killed cannot remove its own."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        """Note what is there already.

        Args:
            prefixes: how the names begin that the job's MPI gives to its files.
        """
        self._prefixes = tuple(prefixes)
        self._before = set(_listing())
        self._ours: set[str] = set()
        self._first_seen: dict[str, float] = {}

    def watch(self, processes: Callable[[], Iterable[int]]) -> None:
        """Look whether new files are there, and which of them the job's processes map.

        Args:
            processes: tells their pids, where that is asked for.
        """
        now = time.monotonic()
        new = {
            name: inode
            for name, inode in _listing().items()
            if name not in self._before | self._ours
            and now - self._first_seen.setdefault(name, now) < _MAPPED_WITHIN_S
        }
        if new:
            for process in processes():
                mapped = _mapped(process)
                self._ours |= {name for name, inode in new.items() if inode in mapped}

    def remove(self) -> None:
        """Remove what the job made and no live process uses."""
        left = {
            name: inode
            for name, inode in _listing().items()
            if name not in self._before and (name in self._ours or name.startswith(self._prefixes))
        }
        _remove_unused(left)


def remove_shared_memory(prefixes: Sequence[str], since_s: float) -> None:
    """Remove this user's files in /dev/shm that no live process uses.

    Args:
        prefixes: how their names begin.
        since_s: that they are no older than, in seconds since the epoch.
    """
    left = {}
    for name, inode in _listing().items():
        if name.startswith(tuple(prefixes)):
            with contextlib.suppress(FileNotFoundError):
                if (_SHM / name).stat().st_ctime >= since_s:
                    left[name] = inode
    _remove_unused(left)


def _remove_unused(files: dict[str, int]) -> None:
    """Remove those that no process maps: name and inode."""
    if not files:
        return
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    for pid in pids:
        mapped = _mapped(pid)
        files = {name: inode for name, inode in files.items() if inode not in mapped}
    for name in files:
        with contextlib.suppress(FileNotFoundError):
            (_SHM / name).unlink()


def _listing() -> dict[str, int]:
    """This user's files: the inode of each name."""
    inodes = {}
    try:
        with os.scandir(_SHM) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == os.geteuid():
                        inodes[entry.name] = status.st_ino
    except FileNotFoundError:  # a container without it
        return {}
    return inodes


def _mapped(pid: int) -> set[int]:
    """Inodes in /dev/shm that a process maps; none where it has ended or is another user's.

    Not names: a semaphore gets its name after it has been mapped under another.
    """
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    # address, permissions, offset, device, inode, path
    return {int(line.split(maxsplit=5)[4]) for line in lines if f"{_SHM}/" in line}
