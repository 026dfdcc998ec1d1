"""The files that a job leaves behind when its processes are killed: find them, and remove them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_SHM = Path("/dev/shm")
_TMP = Path("/tmp")  # hydra asks no TMPDIR
_PROXY = "hydra_pmi_proxy"
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


def remove_topologies(since_s: float, folder: Path = _TMP, proxy: str = _PROXY) -> None:
    """Remove this user's files in which proxies of MPICH told their ranks of the host's cores, and that are dead.

    A proxy removes its file at its own end, unless it is killed. Which is whose nothing tells: what is
    older than all proxies that live is nobody's.

    Args:
        since_s: that they are no older than, in seconds since the epoch.
        folder: where they are.
        proxy: what such a process is called.
    """
    left = {}
    for file in folder.glob("hydra_hwloc_xmlfile_*"):
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            if status.st_uid == os.geteuid() and status.st_ctime >= since_s:
                left[file] = status.st_ctime
    if not left:
        return
    oldest_s = _oldest_s(proxy)
    for file, made_s in left.items():
        if made_s < oldest_s:
            with contextlib.suppress(FileNotFoundError):
                file.unlink()


def _oldest_s(name: str) -> float:
    """When this user's oldest process of a name began, in seconds since the epoch; infinite where there is none."""
    import psutil

    began = [float("inf")]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == name and process.uids().effective == os.geteuid():
                began.append(process.create_time())
    return min(began)


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
