"""Whether something can be started on a host: asked of all at once, in seconds."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace

from doubletime.cluster import allocation, beginning, network, ssh
from doubletime.cluster.restart import Health
from doubletime.cluster.ssh import Reply, Ssh

_CONNECT_S = 5
_TIMEOUT_S = 20.0  # of a login and a Python that starts from a disk that is busy
_NO_FOLDER = 101  # an exit code that neither shells nor Python use
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
    start = shlex.join([sys.executable, "-c", say])
    line = f"cd {shlex.quote(folder)} || exit {_NO_FOLDER}; exec {start}"
    others = [host for host in hosts if not network.is_here(host)]
    reach = replace(reach, connect_timeout_s=_CONNECT_S)
    replies = ssh.run_on(others, line, reach, _TIMEOUT_S)
    return tuple(
        Health(host, _trouble(replies[host], folder) if host in replies else None) for host in hosts
    )


def why_not_begun(hosts: Sequence[str], reach: Ssh, folder: str) -> str | None:
    """Why hosts did not start their ranks, with a remedy; None where they could; as of `examine`."""
    sick = [health for health in examine(hosts, reach, folder) if health.trouble is not None]
    lacking = [health.host for health in sick if health.trouble == _lacks(folder)]
    told = [beginning.no_folder(lacking, folder)] if lacking else []
    for health in sick:
        if health.host not in lacking:
            told.append(
                f"host {health.host}: {health.trouble}\n"
                f"  remedy: doubletime doctor --hosts {health.host}\n"
            )
    return "".join(told) or None


def reach(chosen: Ssh | None, hosts: Sequence[str]) -> Ssh:
    """How hosts are asked: within a batch system's allocation by its own way."""
    allotted = {host.name for host in allocation.from_slurm(os.environ) or ()}
    if chosen is None and allotted >= set(hosts) and shutil.which("srun"):
        return Srun()
    return chosen or Ssh()


def _lacks(folder: str) -> str:
    return f"there is no folder {folder}"


def _trouble(reply: Reply, folder: str) -> str | None:
    """Why nothing can be started; None where it can."""
    if reply.exit_code == _NO_FOLDER:
        return _lacks(folder)
    if reply.exit_code == 0 and _ANSWER in reply.stdout:
        return None
    said = reply.stderr.decode(errors="replace").strip().splitlines()
    last = f" ({said[-1].strip()})" if said else ""
    trouble = ssh.trouble(reply.exit_code, reply.stderr)
    if trouble is not None:
        return f"{trouble.value}{last}"
    return f"{sys.executable} does not start there: exit code {reply.exit_code}{last}"
