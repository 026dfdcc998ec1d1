"""How a rank ends: in order when all do, at once and loudly when it fails while others wait for it.

Whatever ends a rank early (an uncaught exception, `sys.exit(3)`, a program that returns while others wait)
must end the whole job with that rank's exit code, and its traceback must stand once on the terminal.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from types import TracebackType
from typing import NoReturn

from doubletime import failure
from doubletime.mpi import library
from doubletime.mpi.calls import caller
from doubletime.mpi.job import joined

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

_INTERRUPTED = 130
_FORK_ENDS_WITHIN_S = 4.0
# Some launchers stop reading a rank's stderr as soon as it asks for the abort.
_LAST_WORDS_S = 0.1
_WORKERS_END_WITHIN_S = 0.5
_installed_in: int | None = None
_plain_hook: Hook | None = None


class _Exit(SystemExit):
    """The SystemExit of `sys.exit` that notices when the interpreter itself takes it."""

    def __init__(self, status: object, where: str) -> None:
        super().__init__(status)
        self._status = status
        self._where = where

    @property
    def code(self) -> object:  # type: ignore[override]
        """The status; read with no Python frame above it by the interpreter about to exit."""
        try:
            sys._getframe(1)
        except ValueError:
            _leaving(self._status, self._where)
        return self._status


def install(hook_before: Hook) -> None:
    """Watch over this process's end; once, after the job has been joined.

    Args:
        hook_before: the excepthook from before torch's own, which prefixes each line.
    """
    global _installed_in, _plain_hook
    sys.excepthook = _uncaught
    if _installed_in == os.getpid():
        return
    _installed_in, _plain_hook = os.getpid(), hook_before
    sys.exit = _exit
    atexit.register(_at_end)


def _exit(status: object = None, /) -> NoReturn:
    raise _Exit(status, caller())


def _leaving(status: object, where: str) -> None:
    """The program is about to exit with this status, by `sys.exit` called at `where`."""
    code = _exit_code(status)
    if code == 0 or _installed_in != os.getpid() or not library.is_running():
        return
    said = f"{status}\n" if isinstance(status, str) else ""
    _fail(code, f"{said}sys.exit({status!r}) called at {where}\n")


def _exit_code(status: object) -> int:
    """What the process exits with for `sys.exit(status)`."""
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Nothing has caught the exception: show it once and end the job."""
    text = _formatted(kind, error, trace)
    if _installed_in != os.getpid() or not library.is_running():
        sys.stderr.write(text)
        return
    if isinstance(error, library.load().Exception):
        # A message failed since its peer is gone: the peer's own end, if it is known, is the story.
        time.sleep(failure.PEER_IS_KNOWN_S)
    _fail(_INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1, text)


def _formatted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> str:
    """The exception as the hook shows it that the user (or Python) had installed."""
    if _plain_hook is None or _plain_hook is sys.__excepthook__:
        return "".join(traceback.format_exception(kind, error, trace))
    with redirect_stderr(io.StringIO()) as shown:
        _plain_hook(kind, error, trace)
    return shown.getvalue() or "".join(traceback.format_exception(kind, error, trace))


def _fail(exit_code: int, text: str) -> NoReturn:
    """Show why, then end every process of the job."""
    job = joined()
    record = failure.now(job.rank if job is not None else 0, exit_code, text)
    sys.stdout.flush()
    if not failure.write(record):
        # one write, so that the lines of several ranks do not mix
        sys.stderr.write(record.show())
        sys.stderr.flush()
        time.sleep(_LAST_WORDS_S)
    _end_workers()
    library.abort(exit_code)
    raise AssertionError("MPI_Abort returned")


def _end_workers() -> None:
    """Let multiprocessing end its workers and remove its files, which MPI's abort gives it no time for."""
    util = sys.modules.get("multiprocessing.util")
    if util is None:
        return
    with suppress(ValueError):  # not the main thread
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # torch's raises an error for each worker's end
    ending = threading.Thread(target=util._exit_function, daemon=True)
    ending.start()
    ending.join(_WORKERS_END_WITHIN_S)


def _at_end() -> None:
    """The program is over: wait for the other ranks' end, then end MPI."""
    job = joined()
    if job is None or _installed_in != os.getpid():
        return
    sys.stdout.flush()
    if job.leave():
        return
    asked = job.watchdog.deserted
    waits = (
        f"rank {asked.asker} waits for it in {asked.signature}" if asked else "others wait for it"
    )
    code = _own_exit_code()
    if code is not None:
        text = f"it came to the end of its program (exit code {code}) while {waits}\n"
        _fail(code or 1, text)


def _own_exit_code() -> int | None:
    """What this process is about to exit with, which Python tells nobody.

    A fork goes on to that end in its place and is asked. Returns None in the fork.
    """
    sys.stderr.flush()
    fork = os.fork()
    if fork == 0:
        return None
    end_s = time.monotonic() + _FORK_ENDS_WITHIN_S
    while time.monotonic() < end_s:
        ended, status = os.waitpid(fork, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) & 0xFF
        time.sleep(0.005)
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
    return 1
