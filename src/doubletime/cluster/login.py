"""A login to a host of a job that `cluster.sshexec` starts, and what goes along with it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from doubletime.cluster import network, ssh
from doubletime.cluster.descriptors import ManyDescriptors
from doubletime.cluster.frames import Decoder
from doubletime.cluster.host_agent import STILL_HERE, Order, with_length
from doubletime.cluster.ssh import Ssh

# Reads the environment from stdin, where `ps` does not show it, and becomes the agent.
_BEGIN = (
    "import json,os;"
    'r=lambda n,b=b"":b if len(b)>=n else r(n,b+(os.read(0,n-len(b)) or exit(1)));'
    "d=json.loads(r(int(r(8))));p=d.pop(str());"
    'os.execve(p,[p,"-m","doubletime.cluster.host_agent"],{**os.environ,**d})'
)
# What tells of this host and login, and means nothing elsewhere.
_OF_THIS_HOST = frozenset(
    (
        *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "HOST", "PWD", "OLDPWD", "SHLVL"),
        *("_", "TMPDIR", "TMP", "TEMP", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "TERM"),
        *("INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "DBUS_SESSION_BUS_ADDRESS"),
    )
)
_OF_THIS_HOST_PREFIXES = ("SSH_", "XDG_", "SYSTEMD_", "BASH_FUNC_", "TMUX", "STY")
# This process's place in another job, which started it.
_OF_ANOTHER_JOB = frozenset(
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
)
_OF_ANOTHER_JOB_PREFIXES = (
    *("PMI_", "PMIX_", "MPI_LOCAL", "OMPI_COMM_WORLD_", "PRTE_", "HYDRA_", "HYDI_", "MPIEXEC_"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP", "TORCHELASTIC_"),
)
_TOLD = 4096  # bytes of ssh's complaints that are kept


def argv(host: str, reach: Ssh) -> list[str]:
    """The words that start the agent of a host, this one or another."""
    begin = [sys.executable, "-c", _BEGIN]
    return begin if network.is_here(host) else reach.argv(host, f"exec {shlex.join(begin)}")


def handed_over(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that ranks on other hosts get: all but those that tell of this one. Pure."""
    taken = {
        name: value
        for name, value in without_another_job(environ).items()
        if name not in _OF_THIS_HOST and not name.startswith(_OF_THIS_HOST_PREFIXES)
    }
    if "PYTHONPATH" in taken:  # the agent starts in another folder
        parts = taken["PYTHONPATH"].split(os.pathsep)
        taken["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in parts if part)
    return taken


def without_another_job(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables, but for those that tell of a place in a job: pure."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _OF_ANOTHER_JOB and not name.startswith(_OF_ANOTHER_JOB_PREFIXES)
    }


class Login:
    """One host of a job, and the login that starts its ranks.

    Attributes:
        name: of the host.
        process: the login; on this host the agent itself.
        decoder: of what the agent says.
        running: ranks that have not ended.
        told: the end of what ssh and the agent complained about.
        heard_s: when it last said something.
        is_open: whether it may still say something.
        is_ready: whether its agent is there, in the right folder.
    """

    def __init__(
        self, name: str, argv: Sequence[str], running: set[int], descriptors: ManyDescriptors
    ) -> None:
        self.name = name
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=without_another_job(os.environ),
            start_new_session=True,  # Ctrl-C comes to us alone, and we end the job
            preexec_fn=descriptors.give_back,
        )
        self.decoder = Decoder()
        self.running = running
        self.told = b""
        self.heard_s = time.monotonic()
        self.is_open = True
        self.is_ready = False
        self._lock = threading.Lock()  # of what goes out: beats come from a thread
        self._outgoing = bytearray()
        if self.process.stdin is not None:
            os.set_blocking(self.process.stdin.fileno(), False)

    @property
    def stdout(self) -> int:
        """What its agent says."""
        return _descriptor(self.process.stdout)

    @property
    def stderr(self) -> int:
        """What ssh and the agent complain about."""
        return _descriptor(self.process.stderr)

    def begin(self, order: Order, environ: Mapping[str, str]) -> None:
        """Send the orders, and the environment of the ranks."""
        self.tell(with_length(json.dumps({"": sys.executable, **environ}).encode()))
        self.tell(order.encode())

    def tell(self, data: bytes) -> None:
        """Send without waiting; what does not fit goes with the next beat."""
        stdin = self.process.stdin
        with self._lock:
            if stdin is None or stdin.closed:
                return
            self._outgoing += data
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # its end shows elsewhere
                while self._outgoing:
                    del self._outgoing[: os.write(stdin.fileno(), self._outgoing)]

    def beat(self) -> None:
        """Say that we are still here, unless it has not taken what was said before."""
        self.tell(b"" if self._outgoing else STILL_HERE + b"\n")

    def let_go(self) -> None:
        """End its stdin: its ranks end."""
        with self._lock:
            if self.process.stdin is not None:
                self.process.stdin.close()

    def cut(self) -> None:
        """End the login."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def note(self, complaint: bytes) -> None:
        """Keep what it complained about."""
        self.told = (self.told + complaint)[-_TOLD:]

    def why(self, exit_code: int) -> str:
        """Why its login ended, in words."""
        said = self.told.decode(errors="replace").strip().splitlines()
        last = f" ({said[-1].strip()})" if said else ""
        trouble = ssh.trouble(exit_code, self.told)
        if self.decoder.has_begun:
            return f"the connection to it broke{last}"
        if trouble is not None:
            return f"{trouble.value}{last}"
        return f"its ranks could not be started: exit code {exit_code}{last}"


def _descriptor(pipe: object) -> int:
    return pipe.fileno()  # type: ignore[attr-defined,no-any-return]
