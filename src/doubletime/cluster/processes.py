"""Every process of a job on this host, orphans too: find them, and end them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence

import psutil

_KILL_S = 5.0  # a process in an uninterruptible wait (a dead disk) does not end even so


class Descendants:
    """This process's descendants, but for children that it had before.

    Attributes:
        spared: a child whose end another part of this process waits for, so that it must not be reaped.
    """

    def __init__(self, before: Iterable[psutil.Process], spared: int | None = None) -> None:
        self._before = set(before)
        self.spared = spared

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
