"""A real Slurm over the hosts of a virtual cluster: controller on the first, slurmd on each."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ranks import Ranks, start_command, venv
from vcluster import jobs
from vcluster.cluster import VirtualCluster
from vcluster.requirements import program

_START_S = 30.0
_PMI_LIBRARY = "libpmi2.so.0"  # of the package libpmi2-0
# Slurm 22.05 wants a freezer of control groups version 1, on every host its own.
_CGROUP = (
    "mount -t tmpfs cgroup /sys/fs/cgroup && mkdir /sys/fs/cgroup/freezer && "
    "mount -t cgroup -o freezer freezer /sys/fs/cgroup/freezer"
)


def start(cluster: VirtualCluster) -> Path:
    """Start Slurm on all hosts; it ends with the cluster.

    Returns:
        The configuration; `srun` and its kind want its path in SLURM_CONF.

    Raises:
        FileNotFoundError: if Slurm is not installed; names the package.
        RuntimeError: if a daemon refuses to start.
        TimeoutError: if not all hosts are idle within 30 s; with the logs' last lines.
    """
    folder = cluster.folder / "slurm"
    folder.mkdir()
    configuration = folder / "slurm.conf"
    configuration.write_text(_configuration(folder, cluster.hosts))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
    _start_munge(cluster, folder)

    environment = {"SLURM_CONF": str(configuration)}
    (folder / "controller").mkdir()
    _run(cluster.enter(cluster.hosts[0]), [program("slurmctld")], environment)
    for host in cluster.hosts:
        (folder / host).mkdir()
        _run(cluster.enter(host), ["sh", "-c", _CGROUP], environment)
        _run(cluster.enter(host), [program("slurmd"), "-N", host], environment)
    _wait_until_idle(cluster, folder, environment)
    cluster.adopt()
    return configuration


def srun(
    cluster: VirtualCluster,
    mpi: str,
    program: Path | str,
    ranks: int,
    ranks_per_host: int = 1,
    *,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> Ranks:
    """Run a job by Slurm's own launcher, with no mpiexec, and wait for it.

    Args:
        cluster: on which Slurm runs.
        mpi: "mpich" or "intel"; Open MPI's wheel does not speak to Slurm's PMI 2.
        program: the path of a script, or a source text.
        ranks: how many in all.
        ranks_per_host: how many on each host.
        args: what the program finds in sys.argv[1:].
        env: variables to add, on all ranks.
        timeout: seconds; past it everything is killed, on all hosts.

    Raises:
        AssertionError: on timeout, or where something of the job outlives it on some host.
    """
    environment = {"SLURM_CONF": str(cluster.folder / "slurm" / "slurm.conf"), **(env or {})}
    if mpi == "intel":
        environment |= {"I_MPI_PMI_LIBRARY": _PMI_LIBRARY, "I_MPI_PIN": "0", "FI_PROVIDER": "tcp"}
    words = [
        "srun", "--mpi=pmi2", "--kill-on-bad-exit", f"--nodes={-(-ranks // ranks_per_host)}",
        f"--ntasks={ranks}", f"--ntasks-per-node={ranks_per_host}",
        str(venv(mpi) / "bin" / "python"), str(jobs.script(cluster, program)), *args,
    ]  # fmt: skip
    command = [*cluster.enter(cluster.hosts[0]), *words]
    with start_command(command, mpi=mpi, env=environment) as job:
        try:
            done = job.wait(timeout)
            left = cluster.settle()
        finally:
            cluster.end_jobs()
    assert not left, f"outlived the job: {'; '.join(left)}\n{done.show()}"
    return done


def _configuration(folder: Path, hosts: Sequence[str]) -> str:
    settings = {
        "ClusterName": "vcluster",
        "SlurmctldHost": hosts[0],
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "StateSaveLocation": f"{folder}/controller",
        "SlurmdSpoolDir": f"{folder}/%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/%n/slurmd.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/%n/slurmd.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "ReturnToService": "2",
        "MpiDefault": "none",
        "KillWait": "5",
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines.append(f"NodeName={','.join(hosts)} CPUs={os.cpu_count()} State=UNKNOWN")
    lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def _start_munge(cluster: VirtualCluster, folder: Path) -> None:
    """Start the daemon that vouches for users; its socket lies in a folder that all hosts see."""
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = {
        "--key-file": key,
        "--socket": folder / "munge.socket",
        "--pid-file": folder / "munge.pid",
        "--log-file": folder / "munge.log",
        "--seed-file": folder / "munge.seed",
    }
    options = [f"{name}={path}" for name, path in files.items()]
    # By force, as it would have the whole way to its socket open to all users.
    _run(cluster.enter(cluster.hosts[0]), [program("munged"), "--force", *options], {})


def _wait_until_idle(cluster: VirtualCluster, folder: Path, environment: dict[str, str]) -> None:
    ask = ["sinfo", "-h", "-N", "-o", "%t"]
    end_s = time.monotonic() + _START_S
    states: list[str] = []
    while states != ["idle"] * len(cluster.hosts):
        if time.monotonic() > end_s:
            logs = sorted(folder.glob("**/*.log"))
            last = "\n".join(f"{log}: {log.read_text()[-500:]}" for log in logs)
            raise TimeoutError(f"hosts are {states or 'unknown'} to Slurm\n{last}")
        time.sleep(0.1)
        states = cluster.exec(cluster.hosts[0], ask, env=environment).stdout.split()


def _run(enter: Sequence[str], command: Sequence[str], environment: dict[str, str]) -> None:
    # Daemons keep what they inherit: a pipe of ours would never end.
    done = subprocess.run(
        [*enter, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}")
