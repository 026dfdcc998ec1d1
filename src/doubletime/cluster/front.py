"""What the launcher takes for the rank: it hands signals on, and ends as the rank does."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def stand_for(watch: int) -> int:
    """Wait for the watch of the rank; returns what this process is to exit with.

    Should this process be killed, the watch sees that and ends the rank.
    """

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(watch, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in FORWARDED:
        signal.signal(number, forward)
    _, status = os.waitpid(watch, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
