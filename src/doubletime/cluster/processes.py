"""Every process of a job, orphans too: find them, end them, and remove what they leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_SHM = Path("/dev/shm")
_KILL_S = 5.0  # a process in an uninterruptible wait (a dead disk) does not end even so
_MAPPED_WITHIN_S = 1.0  # who makes a file maps it at once


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Within, a descendant whose parent ends becomes this process's child, not init's.

    So that no process of a job is out of sight, whatever session it has moved to.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


class Descendants:
    """This process's descendants, but for children that it had before.

    Attributes:
        spared: a child whose end another part of this process waits for, so that it must not be reaped.
    """

    def __init__(self, before: Iterable[psutil.Process], spared: int | None = None) -> None:
        self._before = set(before)
        self.spared = spared

    @classmethod
    def from_now_on(cls) -> Descendants:
        """Those that are yet to come."""
        return cls(psutil.Process().children())

    def alive(self) -> list[psutil.Process]:
        """Those that still run; adopted ones that have ended are reaped."""
        found = []
        for child in psutil.Process().children():
            if child in self._before:
                continue
            try:
                found += [child, *child.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        return [process for process in found if not has_ended(process, self.spared)]

    def signal(self, number: int) -> None:
        """Send a signal to each."""
        for process in self.alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def end(self, patience_s: Sequence[float]) -> None:
        """Wait, ask, and kill, until none is left.

        Args:
            patience_s: how long to wait for them to end by themselves, and then after SIGTERM.
        """
        steps: tuple[Callable[[], None], ...] = (
            lambda: None,
            lambda: self.signal(signal.SIGTERM),
        )
        for step, time_s in zip(steps, patience_s, strict=True):
            step()
            deadline = time.monotonic() + time_s
            while self.alive():
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
        # A process may be forking while it is killed; so look again.
        deadline = time.monotonic() + _KILL_S
        while self.alive() and time.monotonic() < deadline:
            self.signal(signal.SIGKILL)
            time.sleep(0.01)


def has_ended(process: psutil.Process, spared: int | None = None) -> bool:
    """Whether it runs no more; a child of this process is then reaped, but for one that is spared."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return False
        if process.ppid() == os.getpid() and process.pid != spared:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
    except psutil.NoSuchProcess:
        pass
    return True


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

    def watch(self, processes: Callable[[], list[psutil.Process]]) -> None:
        """Look whether new files are there, and which of them the job's processes map."""
        now = time.monotonic()
        new = {
            name: inode
            for name, inode in _listing().items()
            if name not in self._before | self._ours
            and now - self._first_seen.setdefault(name, now) < _MAPPED_WITHIN_S
        }
        if new:
            for process in processes():
                mapped = _mapped(process.pid)
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
    for pid in psutil.pids():
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
