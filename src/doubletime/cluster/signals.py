"""Signals that would end or stop this process, noted instead, so that its job comes first."""

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
        has_pause: whether this process is to stop, as by Ctrl-Z, until it is continued.
        descriptor: becomes readable with each.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.has_pause = False
        self.descriptor, self._writing = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._writing, False)

    def note(self, number: int, _frame: FrameType | None = None) -> None:
        """Add one; a signal handler."""
        self.numbers.append(number)
        self._tell()

    def note_pause(self, _number: int, _frame: FrameType | None = None) -> None:
        """Note that this process is to stop; a signal handler."""
        self.has_pause = True
        self._tell()

    def pause(self) -> None:
        """Stop this process, as was asked for; returns when it is continued."""
        self.has_pause = False
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # Not SIGSTOP: where no shell could continue it, the system leaves it running.
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)

    def _tell(self) -> None:
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
def received(*, with_pause: bool = False) -> Iterator[Received]:
    """Within, SIGINT, SIGTERM and SIGHUP are noted; in the main thread, as Python wants it.

    Args:
        with_pause: SIGTSTP as well.
    """
    signals = Received()
    handlers = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    handlers[number] = signal.signal(number, signals.note)
            if with_pause and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
                handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signals.note_pause)
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signals.close()
