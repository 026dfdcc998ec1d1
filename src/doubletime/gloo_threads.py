"""Gloo's threads at the end of the interpreter.

They drop the last tensors of a collective a moment after the program has gone on. A tensor that
Python knows needs the interpreter's lock for that, and Python before 3.14 ends a thread that asks for
the lock once the interpreter is ending; C++ then calls std::terminate, and a rank whose work is done
dies by SIGABRT ("terminate called without an active exception").
"""

from __future__ import annotations

import time
from pathlib import Path

_TASKS = Path("/proc/self/task")
_NAME = "pt_gloo_runloop"
_PATIENCE_S = 2.0  # on a crowded host; a thread that still transfers then waits for a lost peer
_PAUSE_S = 0.002


def await_idle() -> None:
    """Wait until none of them has anything left to do; for 2 s at most. At once where there are none."""
    end_s = time.monotonic() + _PATIENCE_S
    before = _states()
    # Asleep twice with nothing done in between: once alone may be a wait for the lock.
    while before and time.monotonic() < end_s:
        time.sleep(_PAUSE_S)
        now = _states()
        if now == before and all("\nState:\tS" in state for state in now):
            return
        before = now


def _states() -> list[str]:
    """What the kernel tells of each: among it, whether it sleeps and how often it has been switched."""
    states = []
    try:
        for task in _TASKS.iterdir():
            if (task / "comm").read_text().rstrip("\n") == _NAME:
                states.append((task / "status").read_text())
    except OSError:  # one has ended meanwhile, or there is no such folder
        return states
    return states
