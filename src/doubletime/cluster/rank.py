"""One rank under watch: run its program, and leave a record of how it failed.

`python -m doubletime.cluster.rank (script.py | -m module | -- executable) args…` splits in two:
the child runs the program, the parent waits for it. Only so is a rank's end known under every
launcher. A rank that fails before MPI_Init does not end a job of MPICH's or Intel MPI's launcher;
one that calls sys.exit(3) would first wait in MPI_Finalize for ranks that wait for it; and no
launcher tells reliably which rank a signal killed first.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
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
from types import FrameType, ModuleType, TracebackType
from typing import NoReturn

from doubletime import environment, failure

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_EXIT_HANDLERS_S = 1.0  # what a failed rank's exit handlers may take: they may wait for other ranks
# What a rank's own processes get once it has ended: to end by themselves, and after SIGTERM.
_GOOD_END_S, _BAD_END_S = (0.3, 0.3), (0.0, 0.0)
# What gloo, NCCL and c10d say where another rank has died.
_PEER_IS_GONE = re.compile(r"onnection (closed by|reset by|refused)|Broken pipe|ncclRemoteError")
_PACKAGE = str(Path(failure.__file__).parent)
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(arguments: Sequence[str]) -> None:
    """Split; the child returns from here only when its program has ended well."""
    # Empty, as promised: some launchers leave ranks a pipe that never ends.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans come to the parent
    os.environ.update(_settings_of_this_host())
    child = os.fork()
    if child:
        os._exit(_watch(child))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if arguments[0] == "--":
        _run_executable(list(arguments[1:]))
    _run_python(arguments)


def _settings_of_this_host() -> dict[str, str]:
    """Of a job across hosts: the interface to the others, and this rank's share of the cores."""
    hosts = os.environ.get(environment.HOSTS_VARIABLE)
    if not hosts:
        return {}
    from doubletime.cluster import cores, network  # a job on one host starts without them

    return {**network.settings(hosts.split(",")), **cores.take_share()}


def _watch(child: int) -> int:
    """Wait for the child; returns what this process is to exit with."""
    from doubletime.cluster.processes import Descendants  # the child has started without it

    was_told_to_end = False

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal was_told_to_end
        was_told_to_end = was_told_to_end or number in (signal.SIGTERM, signal.SIGHUP)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _FORWARDED:
        signal.signal(number, forward)
    code = os.waitstatus_to_exitcode(_wait(child))
    exit_code = 128 - code if code < 0 else code
    if code == 0 and failure.is_inside(_rank()) and not was_told_to_end and not _has_record():
        exit_code = 1
        _record(
            exit_code,
            "left with exit code 0 in the midst of its MPI job, as by os._exit(0): other ranks may wait\n",
        )
    # Who was told to end is not the cause; who has told its own story needs no second one.
    if code != 0 and code != 128 + signal.SIGINT and not was_told_to_end and not _has_record():
        if code < 0:
            _record(exit_code, f"died by signal {-code} ({_signal_name(-code)})\n")
        elif os.environ.get(failure.FOLDER_VARIABLE):
            _record(exit_code, f"exited with code {code}\n")
    if _has_children():  # a launcher waits as long as they hold the rank's output
        Descendants(before=()).end(_GOOD_END_S if code == 0 else _BAD_END_S)
    return exit_code


def _wait(child: int) -> int:
    """Reap whatever ends until the child does; returns its status."""
    while True:
        ended, status = os.wait()
        if ended == child:
            return status


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _run_executable(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _record(127, f"{command[0]} cannot be started: {error.strerror}\n")
        os._exit(127)


def _run_python(arguments: Sequence[str]) -> None:
    """Run a script or a module in this interpreter, as `python` would."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a launcher's pipe would hold lines back
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
    """What comes after the frames of this file and of runpy; the whole where nothing does."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        rest = rest.tb_next
    return rest


def _fail(exit_code: int, text: str) -> NoReturn:
    if not _has_record():
        _record(exit_code, text)
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


def _record(exit_code: int, text: str) -> None:
    """Leave the record to the launcher; where none wants it, show it here."""
    record = failure.now(_rank(), exit_code, text)
    if not failure.write(record):
        sys.stderr.write(record.show())
        sys.stderr.flush()


def _has_record() -> bool:
    folder = os.environ.get(failure.FOLDER_VARIABLE)
    return bool(folder) and any(f.rank == _rank() for f in failure.read(Path(str(folder))))


def _rank() -> int:
    place = environment.place()
    return 0 if place is None else place.rank


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


if __name__ == "__main__":
    main(sys.argv[1:])
