"""How a thread waits for another rank: briefly at full speed, then yielding the core, then asleep.

MPI libraries busy-poll, which starves the computing threads when ranks outnumber cores. Here an operation
is a generator that yields conditions (true when it may go on), and whoever drives it decides how to wait.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Generator

Condition = Callable[[], bool]
Operation = Generator[Condition, None, None]

_FREE_LOOKS = 20
_SLEEP_S = 50e-6
_LONG_SLEEP_S = 1e-3
_LONG_AFTER_S = 2.0
_PR_SET_TIMERSLACK = 29


class Pause:
    """What to do between two looks at a condition; one per wait.

    Args:
        spin_s: how long to look again at once, giving up the core between looks, before sleeping.
    """

    __slots__ = ("_looks", "_spin_s", "_start_s", "waited_s")

    def __init__(self, spin_s: float) -> None:
        self._spin_s = spin_s
        self._looks = 0
        self._start_s = 0.0
        self.waited_s = 0.0

    def once(self) -> None:
        """Pause before the next look."""
        self._looks += 1
        if self._looks < _FREE_LOOKS:
            return
        if self._looks == _FREE_LOOKS:
            self._start_s = time.monotonic()
        self.waited_s = time.monotonic() - self._start_s
        if self.waited_s < self._spin_s:
            os.sched_yield()
        elif self.waited_s < _LONG_AFTER_S:
            time.sleep(_SLEEP_S)
        else:
            time.sleep(_LONG_SLEEP_S)

    def reset(self) -> None:
        """Something has moved: look at full speed again."""
        self._looks = 0
        self.waited_s = 0.0


def drive(operation: Operation, spin_s: float, on_wait: Callable[[float], None]) -> None:
    """Carry an operation out in this thread.

    Args:
        operation: the generator; left where it stands if `on_wait` raises.
        spin_s: see `Pause`.
        on_wait: called now and then with the seconds waited since something last moved; raises to give up.
    """
    for condition in operation:
        if condition():
            continue
        pause = Pause(spin_s)
        while not condition():
            pause.once()
            if pause.waited_s > 0.0:
                on_wait(pause.waited_s)


def sharpen_timers() -> None:
    """Let this thread's short sleeps be short: the kernel's default adds 50 µs to each."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
