"""Start ranks: the only way in which tests start a job, and the promise that it ends.

A job runs under a real `mpiexec` (or any command that starts one). Every process of it carries a
mark in its environment, so that whatever is left of it, orphans too, can be found and killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
MPIS = ("mpich", "openmpi", "intel")

_MARK = "DOUBLETIME_TEST_JOB"
_GRACE_S = 5.0  # what a job may take to vanish after its mpiexec has returned
_LOOK_EVERY_S = 0.25
_SHM = "/dev/shm/"

# Under a bare mpiexec MPICH leaves its own file behind when a rank is killed, as no launcher of ours
# is there to remove it: nothing to blame a test for.
# What an MPI itself leaves of a killed job.
MPI_SHM = ("mpich_shm_", "Intel_MPI_")

# Names in /dev/shm that a process of some job was seen to map: the leak police asks for them.
shm_seen: set[str] = set()

# More ranks than cores, in a container, as root: what each MPI wants to hear.
_SETTINGS = {
    "mpich": {},
    "openmpi": {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    },
    "intel": {},
}


@dataclass(frozen=True)
class Ranks:
    """How a job ended.

    Attributes:
        exit_code: of the command that started it; minus the signal's number where one killed it.
        stdout, stderr: of all its ranks together.
        seconds: from its start until its last process had ended.
    """

    exit_code: int
    stdout: str
    stderr: str
    seconds: float

    def check(self) -> Ranks:
        """Assert that the job succeeded."""
        assert self.exit_code == 0, f"the job ended with exit code {self.exit_code}\n{self.show()}"
        return self

    def show(self) -> str:
        """All that it wrote."""
        return f"--- stdout ---\n{self.stdout}\n--- stderr ---\n{self.stderr}"


def venv(mpi: str | None = None) -> Path:
    """The virtual environment that holds this MPI.

    Raises:
        pytest's skip where it has not been made (`make test` makes all), a failure where CI is set.
    """
    if mpi in (None, "mpich"):
        return Path(sys.prefix)
    assert mpi in MPIS, f"{mpi!r} is none of {MPIS}"
    folder = ROOT / f".venv-{mpi}"
    if not (folder / "bin" / "mpiexec").exists():
        reason = f"no {folder.name}: run `make {folder.name}`"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


def run_ranks(
    program: Path | str,
    n: int,
    *,
    mpi: str | None = None,
    timeout: float = 60,
    env: Mapping[str, str | None] | None = None,
    args: Sequence[str] = (),
) -> Ranks:
    """Run a program on n ranks under `mpiexec` and wait for it.

    Args:
        program: the path of a script, or a source text.
        n: how many ranks.
        mpi: one of `MPIS`; None is MPICH.
        timeout: seconds; past it the job is killed and the test fails, showing what it wrote.
        env: variables that differ from this process's; None removes one.
        args: what the program finds in sys.argv[1:].
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        if isinstance(program, str):
            script = Path(folder, "program.py")
            script.write_text(textwrap.dedent(program))
        else:
            script = program
        python = venv(mpi) / "bin" / "python"
        command = ["mpiexec", "-n", str(n), str(python), str(script), *args]
        return run_command(command, mpi=mpi, timeout=timeout, env=env)


def run_command(
    command: Sequence[str],
    *,
    mpi: str | None = None,
    timeout: float = 60,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> Ranks:
    """Run any command that starts a job, such as `doubletime run`, and wait for it."""
    with start_command(command, mpi=mpi, env=env, cwd=cwd) as job:
        return job.wait(timeout)


@dataclass(frozen=True)
class Job:
    """A job that runs: signal it, look at its processes, wait for it."""

    process: subprocess.Popen[bytes]
    mark: str
    folder: Path
    started: float
    shm: set[str] = field(default_factory=set)

    def processes(self) -> list[psutil.Process]:
        """Every live process of the job, orphans among them."""
        found = []
        for process in psutil.process_iter(["environ"]):
            environ = process.info["environ"] or {}
            if environ.get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def output(self) -> tuple[str, str]:
        """What it has written so far: stdout, stderr."""
        stdout, stderr = (self.folder / name for name in ("stdout", "stderr"))
        return stdout.read_text(errors="replace"), stderr.read_text(errors="replace")

    def interrupt(self) -> None:
        """What Ctrl-C does: SIGINT to the command's process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, timeout: float) -> Ranks:
        """Wait for the command, then for every process of the job to be gone.

        Raises:
            AssertionError: on timeout, or where a process outlives its command.
        """
        while (exit_code := self._poll(_LOOK_EVERY_S)) is None:
            if time.monotonic() - self.started > timeout:
                self.kill()
                raise AssertionError(f"still running after {timeout} s\n{self._show()}")
            self.shm.update(_shm_mapped(self.process.pid))
        returned = time.monotonic()
        left = self.processes()
        while left and time.monotonic() - returned < _GRACE_S:
            time.sleep(0.02)
            left = self.processes()
        seconds = time.monotonic() - self.started
        if left:
            names = ", ".join(str(process) for process in left)
            self.kill()
            raise AssertionError(f"{names} outlived the job by {_GRACE_S} s\n{self._show()}")
        return Ranks(exit_code, *self.output(), seconds)

    def kill(self) -> None:
        """End every process of the job, whatever session or parent it has moved to."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            left = self.processes()
            if not left and self.process.poll() is not None:
                return
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            time.sleep(0.02)
        raise AssertionError(f"cannot kill {self.processes()}")

    def _poll(self, timeout_s: float) -> int | None:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def _show(self) -> str:
        return Ranks(-1, *self.output(), 0.0).show()


@contextmanager
def start_command(
    command: Sequence[str],
    *,
    mpi: str | None = None,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> Iterator[Job]:
    """Start any command that starts a job; whatever still runs at the block's end is killed."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="job-") as name:
        folder = Path(name)
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
            started = time.monotonic()
            # Files rather than pipes: an orphan that holds a pipe open cannot hang the test.
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=_environment(mpi, mark, env or {}),
                start_new_session=True,
            )
        job = Job(process, mark, folder, started)
        try:
            yield job
        finally:
            job.kill()
            if Path(command[0]).name == "mpiexec":
                for name in {name for name in job.shm if name.startswith(MPI_SHM)}:
                    Path(_SHM, name).unlink(missing_ok=True)
                    job.shm.remove(name)
            shm_seen.update(job.shm)


def descendants(pid: int | str) -> list[int]:
    """Process ids of all children of a process and theirs, zombies too; none where it is gone."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended while we looked: what was found stands
    return found


def _shm_mapped(pid: int) -> set[str]:
    """Names of the files in /dev/shm that a process and its descendants map."""
    found = set()
    for process in (pid, *descendants(pid)):
        try:
            lines = Path(f"/proc/{process}/maps").read_text().splitlines()
        except OSError:
            continue  # it ended
        for line in lines:
            _, at, name = line.partition(_SHM)
            if at:
                found.add(name.removesuffix(" (deleted)"))
    return found


def _environment(mpi: str | None, mark: str, changes: Mapping[str, str | None]) -> dict[str, str]:
    folder = venv(mpi)
    environment = dict(os.environ)
    # Unbuffered, the lines of several ranks are torn apart.
    for name in ("PYTEST_CURRENT_TEST", "PYTHONUNBUFFERED"):
        environment.pop(name, None)
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
    environment["VIRTUAL_ENV"] = str(folder)
    environment["PYTHONFAULTHANDLER"] = "1"
    environment["OMP_NUM_THREADS"] = "1"
    environment["DOUBLETIME_LOGS"] = ""  # no folder for each job that a test starts
    environment.update(_SETTINGS[mpi or "mpich"])
    environment[_MARK] = mark
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment
