"""A machine within the machine: one process that holds its namespaces, and all that runs in them.

Linux ends every process of a PID namespace with its first one. So a cluster is a tree of such
namespaces: end the first process of the outermost, and nothing of it is left, links included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

_START_S = 10.0


@dataclass(frozen=True)
class Machine:
    """The first process of a PID namespace, and with it the namespaces that it holds.

    Attributes:
        pid: as this process sees it.
        started_ticks: when it began, in the kernel's ticks since the boot: process ids are given again,
            and times of day are not kept where the clock is set right while it runs.
    """

    pid: int
    started_ticks: int

    @property
    def is_running(self) -> bool:
        """Whether its first process lives."""
        try:
            state, started_ticks = _state(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return started_ticks == self.started_ticks and state != "Z"

    def enter(self, *kinds: str) -> list[str]:
        """The words that go before a command to run it in these of its namespaces.

        Raises:
            ProcessLookupError: if the machine has ended.
        """
        if not self.is_running:
            raise ProcessLookupError(f"the machine of process {self.pid} has ended")
        return ["nsenter", "-t", str(self.pid), *(f"--{kind}" for kind in kinds), "--"]

    def processes(self) -> list[psutil.Process]:
        """All that run on it, its first one too; zombies and nested machines left out."""
        try:
            namespace = _pid_namespace(self.pid)
        except FileNotFoundError:
            return []
        found = []
        for process in psutil.process_iter():
            try:
                is_here = _pid_namespace(process.pid) == namespace
                if is_here and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (OSError, psutil.NoSuchProcess):
                continue  # it ended
        return found

    def end(self) -> None:
        """Kill all that run on it and on machines within it; they are gone when this returns."""
        if not self.is_running:
            return
        process = psutil.Process(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        # Its parent may be a process that nobody waits for: then it stays a zombie for a while.
        end_s = time.monotonic() + _START_S
        while self.is_running and time.monotonic() < end_s:
            time.sleep(0.005)
        if self.is_running:
            raise TimeoutError(f"{process} does not end")


def start(
    script: str,
    arguments: Sequence[str],
    kinds: Sequence[str],
    log: Path,
    *,
    within: Machine | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
) -> tuple[Machine, subprocess.Popen[bytes]]:
    """Start a machine whose first process is a shell script.

    Args:
        script: source for `sh`; prints `ready` when the machine is, and lives as long as it does.
            As the first process it has to reap orphans: it ends in `wait`.
        arguments: its $1 and on.
        kinds: namespaces of its own besides that of processes: "net", "mount", "uts", "ipc".
        log: file for what goes wrong.
        within: the machine with which this one ends.
        stdin: what the script reads.

    Returns:
        The machine, and the process to wait for when it has ended.

    Raises:
        RuntimeError: if it ends before it is ready; with what it said.
    """
    outside = within.enter("pid") if within else []
    own = [f"--{kind}" for kind in kinds]
    with log.open("ab") as errors:
        parent = subprocess.Popen(
            [*outside, "unshare", *own, "--pid", "--fork", "--kill-child",
             "sh", "-euc", script, "sh", *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )  # fmt: skip
    assert parent.stdout is not None
    with parent.stdout as stdout:
        if stdout.readline().strip() != b"ready":
            parent.kill()
            parent.wait()
            raise RuntimeError(f"a machine did not start: {log.read_text().strip()}")
    pid = _first_process(parent.pid)
    return Machine(pid, _state(pid)[1]), parent


def _state(pid: int) -> tuple[str, int]:
    """A process's state, such as `S` or `Z`, and when it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _first_process(pid: int) -> int:
    """The descendant of a process that is the first of its PID namespace."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, children):
        for line in Path(f"/proc/{child}/status").read_text().splitlines():
            if line.startswith("NSpid:") and line.split()[-1] == "1":
                return child
        return _first_process(child)
    raise RuntimeError(f"process {pid} holds no PID namespace")


def _pid_namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())
