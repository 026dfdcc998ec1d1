"""An end to a start of MPI that waits in vain: MPI_Init knows no timeout, and holds the interpreter."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from doubletime import environment, failure

_EXIT_CODE = 1
_ENDS_WITHIN_S = 1.0  # after SIGTERM


@contextmanager
def within(timeout_s: float) -> Iterator[None]:
    """End this process, and say why, if the block takes longer than `timeout_s` seconds.

    A fork watches, since no thread of this process runs while MPI_Init waits for other ranks.
    """
    told, teller = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        os.close(teller)
        _watch(os.getppid(), told, timeout_s)
    os.close(told)
    try:
        yield
    finally:
        os.close(teller)
        os.waitpid(watcher, 0)


def _watch(starter: int, told: int, timeout_s: float) -> NoReturn:
    """Wait for the end of the block, or of the process; never returns."""
    try:
        if not select.select([told], [], [], timeout_s)[0] and os.getppid() == starter:
            place = environment.place()
            text = (
                f"MPI did not start within {timeout_s:g} s: not every rank has called "
                "init_process_group (MPI itself cannot tell which)\n  remedy: let every rank call it, "
                "before anything that takes long, or raise init_process_group(timeout=…)\n"
            )
            record = failure.now(place.rank if place else 0, _EXIT_CODE, text)
            if not failure.write(record):
                os.write(2, record.show().encode())
            os.kill(starter, signal.SIGTERM)
            time.sleep(_ENDS_WITHIN_S)
            with suppress(ProcessLookupError):
                os.kill(starter, signal.SIGKILL)
    finally:
        os._exit(0)
