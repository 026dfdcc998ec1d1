"""MPI jobs over the hosts of a virtual cluster: real mpiexec, real ssh, one command for each MPI."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from ranks import Job, Ranks, start_command, venv
from vcluster.cluster import VirtualCluster

# What Open MPI hands to ranks on other hosts only where it is told to; the others hand over all.
_HANDED_OVER = ("PATH", "OMP_NUM_THREADS", "PYTHONFAULTHANDLER", "DOUBLETIME_TEST_JOB")


def command(
    mpi: str,
    program: Sequence[str],
    *,
    ssh: Path,
    hosts: Sequence[str],
    ranks: int,
    ranks_per_host: int,
    variables: Sequence[str] = (),
) -> list[str]:
    """The command that starts a job, to be run on the first of its hosts.

    Nothing is bound to cores: all hosts believe that the same cores are theirs.

    Args:
        mpi: "mpich", "openmpi" or "intel".
        program: what every rank runs, with its arguments.
        ssh: the command that reaches the hosts.
        hosts: their names, in order of ranks.
        ranks: how many in all.
        ranks_per_host: how many on each.
        variables: names of variables that the ranks need, besides the usual ones.
    """
    if mpi == "openmpi":
        exported = [word for name in (*_HANDED_OVER, *variables) for word in ("-x", name)]
        return [
            "mpiexec", "--allow-run-as-root",
            "--prtemca", "plm_ssh_agent", str(ssh),
            "--prefix", str(venv(mpi)),
            "--host", ",".join(f"{host}:{ranks_per_host}" for host in hosts),
            "--map-by", f"ppr:{ranks_per_host}:node:oversubscribe", "--bind-to", "none",
            *exported, "-n", str(ranks), *program,
        ]  # fmt: skip
    hydra = ["-n", str(ranks), "-ppn", str(ranks_per_host), "-hosts", ",".join(hosts), *program]
    if mpi == "intel":
        settings = {
            "I_MPI_HYDRA_BOOTSTRAP": "ssh",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(ssh),
            "I_MPI_PIN": "0",
            "FI_PROVIDER": "tcp",
        }
        return ["env", *(f"{name}={value}" for name, value in settings.items()), "mpiexec", *hydra]
    return ["mpiexec", "-launcher", "ssh", "-launcher-exec", str(ssh), "-bind-to", "none", *hydra]


def script(cluster: VirtualCluster, program: Path | str) -> Path:
    """The path of a script that all hosts see; a source text is written to the cluster's folder."""
    if isinstance(program, Path):
        return program.resolve()
    path = cluster.folder / "program.py"
    path.write_text(textwrap.dedent(program))
    return path


@contextmanager
def start_mpiexec(
    cluster: VirtualCluster,
    mpi: str,
    program: Path | str,
    ranks: int,
    ranks_per_host: int = 1,
    *,
    hosts: Sequence[str] | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[Job]:
    """Start a job on a cluster; whatever of it still runs at the block's end is killed, on all hosts.

    Args:
        cluster: that is up.
        mpi: "mpich", "openmpi" or "intel".
        program: the path of a script, or a source text.
        ranks: how many in all.
        ranks_per_host: how many on each host.
        hosts: their names in order of ranks; None takes the first ones.
        args: what the program finds in sys.argv[1:].
        env: variables to add, on all ranks.
    """
    count = -(-ranks // ranks_per_host)
    on = list(hosts or cluster.hosts[:count])
    if len(on) != count or not set(on) <= set(cluster.hosts):
        raise ValueError(f"{ranks} ranks, {ranks_per_host} per host, need {count} hosts, not {on}")
    env = dict(env or {})
    words = command(
        mpi,
        [str(venv(mpi) / "bin" / "python"), str(script(cluster, program)), *args],
        ssh=cluster.ssh,
        hosts=on,
        ranks=ranks,
        ranks_per_host=ranks_per_host,
        variables=sorted(env),
    )
    folder = Path.cwd()
    with start_command([*cluster.enter(on[0], folder), *words], mpi=mpi, env=env) as job:
        try:
            yield job
        finally:
            topologies = _topologies(cluster)
            cluster.end_jobs()
            for path in topologies:
                path.unlink(missing_ok=True)


def mpiexec(
    cluster: VirtualCluster,
    mpi: str,
    program: Path | str,
    ranks: int,
    ranks_per_host: int = 1,
    *,
    hosts: Sequence[str] | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> Ranks:
    """Run a job on a cluster and wait for it; arguments as of `start_mpiexec`.

    Args:
        cluster, mpi, program, ranks, ranks_per_host, hosts, args, env: see `start_mpiexec`.
        timeout: seconds; past it everything is killed, on all hosts.

    Raises:
        AssertionError: on timeout, or where something of the job outlives it on some host.
    """
    started = start_mpiexec(
        cluster, mpi, program, ranks, ranks_per_host, hosts=hosts, args=args, env=env
    )
    with started as job:
        done = job.wait(timeout)
        left = cluster.settle()
        assert not left, f"outlived the job: {'; '.join(left)}\n{done.show()}"
    return done


def _topologies(cluster: VirtualCluster) -> set[Path]:
    """Files that MPICH's proxies hold open; a proxy that is killed leaves its own in /tmp."""
    found: set[Path] = set()
    for host in cluster.hosts:
        for process in cluster.job_processes(host):
            try:
                opened = [Path(file.path) for file in process.open_files()]
            except psutil.Error:
                continue  # it ended
            found.update(path for path in opened if path.name.startswith("hydra_hwloc_xmlfile_"))
    return found
