"""Whether something can be started on a host: asked of all at once, in seconds."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

from doubletime.cluster import network, ssh
from doubletime.cluster.restart import Health
from doubletime.cluster.ssh import Reply, Ssh

_CONNECT_S = 5
_TIMEOUT_S = 20.0  # of a login and a Python that starts from a disk that is busy
_ANSWER = b"doubletime is here"


class Srun(Ssh):
    """A host of a Slurm allocation, where nobody need be let in by ssh."""

    def argv(self, host: str, remote_command: str, *, is_verbose: bool = False) -> list[str]:
        """The words that run a shell command on a host, beside what runs there."""
        level = ["-v"] if is_verbose else ["-Q"]
        step = ["--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}"]
        return ["srun", *level, *step, "sh", "-c", remote_command]


def examine(hosts: Sequence[str], reach: Ssh, folder: str) -> tuple[Health, ...]:
    """Ask each host whether this interpreter, this package and a folder are there.

    Args:
        hosts: their names; this one is not asked.
        reach: how they are reached.
        folder: in which a job would start.

    Returns:
        Of each, in order; a host that does not answer costs 20 s at most.
    """
    say = f"import doubletime.cluster; print({_ANSWER.decode()!r})"
    line = f"cd {shlex.quote(folder)} && exec {shlex.join([sys.executable, '-c', say])}"
    others = [host for host in hosts if not network.is_here(host)]
    reach = replace(reach, connect_timeout_s=_CONNECT_S)
    replies = ssh.run_on(others, line, reach, _TIMEOUT_S)
    return tuple(
        Health(host, _trouble(replies[host]) if host in replies else None) for host in hosts
    )


def _trouble(reply: Reply) -> str | None:
    """Why nothing can be started; None where it can."""
    if reply.exit_code == 0 and _ANSWER in reply.stdout:
        return None
    said = reply.stderr.decode(errors="replace").strip().splitlines()
    last = f" ({said[-1].strip()})" if said else ""
    trouble = ssh.trouble(reply.exit_code, reply.stderr)
    if trouble is not None:
        return f"{trouble.value}{last}"
    return f"{sys.executable} does not start there: exit code {reply.exit_code}{last}"
