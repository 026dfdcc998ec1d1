"""The leak police: a test leaves no thread, process, variable or /dev/shm file behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

from ranks import MPI_SHM, MPIS, descendants, shm_seen, venv

_GRACE_S = 2.0  # what is just ending may take to end
_SHM = Path("/dev/shm")

# Folders whose tests stay in one process of a parallel run: they share a virtual cluster, or a job's report.
# The longest first, as what begins last must be short; tests on a cluster mostly wait, those beside them do not.
_TOGETHER = ("tests/cluster/virtual/", "tests/contract/", "tests/multiprocess/")

# Variables that libraries set when first imported, and pytest's own.
_FOREIGN = {
    "PYTEST_CURRENT_TEST",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "TORCHINDUCTOR_CACHE_DIR",
}


def pytest_configure(config: pytest.Config) -> None:
    """A terminated test run ends as by Ctrl-C: every job that it has started goes with it."""
    is_parallel = config.getoption("dist", default="no") != "no"
    leads = is_parallel and not hasattr(config, "workerinput")
    signal.signal(signal.SIGTERM, _end_workers if leads else signal.default_int_handler)


def _end_workers(number: int, frame: FrameType | None) -> None:
    """xdist itself would let its workers go on for seconds, then kill them, but not their jobs."""
    for worker in psutil.Process().children():
        worker.terminate()
    signal.default_int_handler(number, frame)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile` keeps more together than a file, and begins with what takes longest."""
    from xdist.scheduler import LoadFileScheduling  # asked for by xdist alone

    if config.getoption("dist") != "loadfile":
        return None

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next(
                (folder for folder in _TOGETHER if folder in nodeid), nodeid.partition("::")[0]
            )

    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a parallel run: in the order of `_TOGETHER`, then all others as they were."""
    if not hasattr(config, "workerinput"):
        return
    ranks = {folder: rank for rank, folder in enumerate(_TOGETHER)}
    items.sort(
        key=lambda item: next((ranks[part] for part in ranks if part in item.nodeid), len(ranks))
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have to tell whether they pass or not: each line that one recorded as `told`."""
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, line in getattr(report, "user_properties", ()):  # a file that fails has none
            if name == "told" and report.when == "call":
                terminalreporter.write_line(line)


@pytest.fixture(params=MPIS)
def mpi(request: pytest.FixtureRequest) -> str:
    """The name of each MPI in turn, to hand to `run_ranks(mpi=…)`."""
    venv(request.param)  # skips where that MPI is absent
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def leak_police() -> Iterator[None]:
    """Fail a test after which something is there that was not there before."""
    threads, children = set(threading.enumerate()), set(_children())
    files, environment = _shm_files(), _environment()
    yield
    found = [
        *(f"thread {thread.name}" for thread in _left(threading.enumerate, threads)),
        *(f"process {_end(pid)}" for pid in _left(_children, children)),
        *(f"file {_SHM / name}" for name in _left(_shm_files, files, _abandoned)),
    ]
    after = _environment()
    for name in sorted(environment.keys() | after.keys()):
        if environment.get(name) != after.get(name):
            found.append(f"variable {name}: was {environment.get(name)!r}, is {after.get(name)!r}")
            os.environ.pop(name, None)
            if name in environment:
                os.environ[name] = environment[name]
    if found:
        pytest.fail("the test left behind: " + "; ".join(found), pytrace=False)


def _left(look, before, confirm: Callable = lambda left: left):  # type: ignore[no-untyped-def]
    """What stays new for the whole time of grace; `confirm` narrows it, and is asked only then."""
    deadline = time.monotonic() + _GRACE_S
    while left := [thing for thing in look() if thing not in before]:
        if not confirm(left):
            return []
        if time.monotonic() > deadline:
            return confirm(left)
        time.sleep(0.02)
    return []


def _children() -> list[int]:
    return [pid for pid in descendants("self") if not _is_multiprocessing_tracker(pid)]


def _is_multiprocessing_tracker(pid: int) -> bool:
    """Python keeps one such process until the interpreter's exit."""
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _end(pid: int) -> str:
    """Kill a process, so that later tests do not suffer from it; what it was."""
    try:
        process = psutil.Process(pid)
        what = f"{pid} ({' '.join(process.cmdline()) or process.name()})"
        process.kill()
        process.wait(5)
    except psutil.Error:
        return str(pid)
    return what


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _FOREIGN}


def _shm_files() -> set[str]:
    """Names of our user's files in /dev/shm."""
    found = set()
    with os.scandir(_SHM) as entries:
        for entry in entries:
            try:
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    found.add(entry.name)
            except FileNotFoundError:
                continue
    return found


def _abandoned(names: list[str]) -> list[str]:
    """Those that no other live process maps or opens, and that are this session's.

    Jobs of others may share a machine. In CI none do; elsewhere only what a job of ours was seen
    to map, or what this very process still maps, is held against the test.
    """
    is_alone = os.environ.get("CI", "").lower() in ("1", "true")
    own_maps = Path("/proc/self/maps").read_text()
    names = [
        name
        for name in names
        if name in shm_seen
        or f"{_SHM}/{name}" in own_maps
        or (is_alone and not name.startswith(MPI_SHM))
    ]
    used: set[str] = set()
    for pid in psutil.pids() if names else []:
        if pid == os.getpid():
            continue
        proc = Path(f"/proc/{pid}")
        try:
            maps = (proc / "maps").read_text()
            used.update(name for name in names if f"{_SHM}/{name}" in maps)
            targets = {str(descriptor.readlink()) for descriptor in (proc / "fd").iterdir()}
            used.update(name for name in names if f"{_SHM}/{name}" in targets)
        except OSError:
            continue  # ended, or another user's
    return [name for name in names if name not in used]
