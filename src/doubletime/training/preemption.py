"""SIGTERM while training: noted, so that the state is saved before the process ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM  # as if the signal had ended the process: what launchers expect


class Preempted(Exception):
    """All ranks were told to end, and have saved what they could.

    Attributes:
        step: since the run's begin; the checkpoint's.
        is_saved: whether there is one of that step.
    """

    def __init__(self, step: int, *, is_saved: bool) -> None:
        super().__init__(f"ended by SIGTERM after step {step}")
        self.step = step
        self.is_saved = is_saved


class Told:
    """Whether this process was told to end."""

    def __init__(self) -> None:
        self.is_told = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """A signal handler."""
        self.is_told = True


@contextmanager
def noted() -> Iterator[Told]:
    """Within, SIGTERM is noted instead of ending the process; in the main thread, as Python wants it."""
    told = Told()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = signal.signal(signal.SIGTERM, told.note)
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
