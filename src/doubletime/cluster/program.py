"""A rank's program, run in this process as `python` would, and told of when it fails."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import os
import re
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from doubletime import environment, failure

_EXIT_HANDLERS_S = 1.0  # what a failed rank's exit handlers may take: they may wait for other ranks
# What gloo, NCCL and c10d say where another rank has died.
_PEER_IS_GONE = re.compile(r"onnection (closed by|reset by|refused)|Broken pipe|ncclRemoteError")
_PACKAGE = str(Path(failure.__file__).parent)
_OURS = str(Path(__file__).parent)


def run(arguments: Sequence[str]) -> None:
    """Run `script.py`, `-m module` or `-- executable` with arguments; returns where it ends well."""
    if arguments[0] == "--":
        _run_executable(list(arguments[1:]))
    _run_python(arguments)


def record(exit_code: int, text: str) -> None:
    """Leave a record to the watch; where none wants it, show it here."""
    written = failure.now(rank(), exit_code, text)
    if not failure.write(written):
        sys.stderr.write(written.show())
        sys.stderr.flush()


def rank() -> int:
    """This rank."""
    place = environment.place()
    return 0 if place is None else place.rank


def _run_executable(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        record(127, f"{command[0]} cannot be started: {error.strerror}\n")
        os._exit(127)


def _run_python(arguments: Sequence[str]) -> None:
    """Run a script or a module in this interpreter, as `python` would."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A launcher's pipe would hold lines back. Under PYTHONUNBUFFERED, which container images set,
            # each piece of a line would be a write of its own, with other ranks' between.
            stream.reconfigure(line_buffering=True, write_through=False)
    try:
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            _run_script(arguments)
    except SystemExit as end:
        if end.code is not None and end.code != 0:
            _fail(*_exit_story(end))
    except KeyboardInterrupt:
        _leave(128 + signal.SIGINT)
    except BaseException as error:
        text = _traceback_text(error)
        if _PEER_IS_GONE.search(text):
            time.sleep(failure.PEER_IS_KNOWN_S)
        _fail(1, text)


def _run_script(arguments: Sequence[str]) -> None:
    # The module stays in sys.modules until the interpreter ends: exit handlers, threads and
    # pickles find their names in it, which runpy.run_path would have taken away.
    script = arguments[0]
    if not Path(script).is_file():
        where = f"on host {os.uname().nodename} (looked in {Path.cwd()})"
        _fail(
            1,
            f"there is no script {script} {where}\n"
            "  remedy: put it into a folder that all hosts share (doubletime doctor --script tells)\n",
        )
    module = ModuleType("__main__")
    module.__dict__.update(__file__=script, __builtins__=builtins, __cached__=None)
    sys.argv = list(arguments)
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11
        sys.path[0] = str(Path(script).resolve().parent)
    sys.modules["__main__"] = module
    exec(compile(Path(script).read_bytes(), script, "exec", dont_inherit=True), module.__dict__)


def _exit_story(end: SystemExit) -> tuple[int, str]:
    """Exit code and text of a `sys.exit` with something else than 0."""
    if not isinstance(end.code, int):
        return 1, f"{end.code}\n"
    frames = [
        frame
        for frame in traceback.extract_tb(end.__traceback__)
        if not frame.filename.startswith((_PACKAGE, "<frozen runpy>"))
    ]
    place = f" at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    return end.code & 0xFF, f"exited with code {end.code}{place}\n"


def _traceback_text(error: BaseException) -> str:
    """The traceback as the program's own hook shows it, without our frames."""
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
        try:
            # The hook shows the error's own traceback, whatever it is handed besides.
            error.__traceback__ = _own_part(error.__traceback__)
            sys.excepthook(type(error), error, error.__traceback__)
        except BaseException:
            traceback.print_exc()
    return shown.getvalue() or "".join(traceback.format_exception(error))


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """What comes after our frames and those of runpy; the whole where nothing does."""
    rest = trace
    while rest is not None and _is_ours(rest.tb_frame.f_code.co_filename):
        rest = rest.tb_next
    return rest


def _is_ours(file: str) -> bool:
    return file in (runpy.__file__, "<frozen runpy>") or file.startswith(_OURS)


def _fail(exit_code: int, text: str) -> NoReturn:
    record(exit_code, text)
    _leave(exit_code)


def _leave(exit_code: int) -> NoReturn:
    """End this process without MPI_Finalize, which would wait for the other ranks."""
    timer = threading.Timer(_EXIT_HANDLERS_S, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed by the program, or by its reader
            stream.flush()
    os._exit(exit_code)
