"""Signals that would end this process, noted instead, so that it can end its job first."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Received:
    """The ending signals that have come.

    Attributes:
        numbers: in the order in which they came.
        descriptor: becomes readable with each.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.descriptor, self._writing = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._writing, False)

    def note(self, number: int, _frame: FrameType | None = None) -> None:
        """Add one; a signal handler."""
        self.numbers.append(number)
        with contextlib.suppress(BlockingIOError):  # full of earlier ones: readable as it is
            os.write(self._writing, b"\0")

    def drain(self) -> None:
        """Make the descriptor unreadable until the next one."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.descriptor)
        os.close(self._writing)


@contextlib.contextmanager
def received() -> Iterator[Received]:
    """Within, SIGINT, SIGTERM and SIGHUP are noted; in the main thread, as Python wants it."""
    signals = Received()
    handlers = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    handlers[number] = signal.signal(number, signals.note)
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signals.close()
