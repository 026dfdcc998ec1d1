"""A real Slurm on the hosts of a virtual cluster: srun, and launchers within an allocation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ranks import Ranks, start_command, venv
from vcluster import slurm
from vcluster.cluster import VirtualCluster

_PROGRAM = """
    import os
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    print(world.allreduce(world.rank + 1), "on", os.uname().nodename, flush=True)
"""
_LAUNCHED = """
import json, os
from mpi4py import MPI
from doubletime import environment
place = environment.place()
row = [MPI.COMM_WORLD.rank, os.uname().nodename, place.local_rank, MPI.COMM_WORLD.allreduce(1)]
os.write(1, (json.dumps(row) + "\\n").encode())
"""
_INIT = """
import json, os
import torch
import doubletime as dt
session = dt.init()
total = torch.ones(1)
torch.distributed.all_reduce(total)
row = [session.rank, session.local_rank, session.backend, session.hosts, total.item()]
os.write(1, (json.dumps(row) + "\\n").encode())
from doubletime.training.session import leave
leave()
"""


@pytest.fixture(scope="module")
def running_slurm(require_slurm: None) -> Iterator[VirtualCluster]:
    """Two hosts with Slurm, for all tests here."""
    with VirtualCluster(hosts=2) as cluster:
        slurm.start(cluster)
        yield cluster


@pytest.fixture
def slurm_cluster(running_slurm: VirtualCluster) -> Iterator[VirtualCluster]:
    """Two hosts with Slurm, on which nothing runs."""
    yield running_slurm
    assert running_slurm.settle() == []


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_srun_starts_ranks_on_all_hosts(slurm_cluster: VirtualCluster, mpi: str) -> None:
    done = slurm.srun(slurm_cluster, mpi, _PROGRAM, ranks=4, ranks_per_host=2).check()
    assert sorted(done.stdout.splitlines()) == [*["10 on node1"] * 2, *["10 on node2"] * 2]


def test_an_allocation_is_all_that_run_needs(slurm_cluster: VirtualCluster, mpi: str) -> None:
    """No hosts named, no ssh: the launcher goes by srun, with Slurm's tasks on each host."""
    script = _write(slurm_cluster, _LAUNCHED)
    doubletime = [str(venv(mpi) / "bin" / "python"), "-m", "doubletime", "run", str(script)]
    done = _on_first(slurm_cluster, mpi, ["salloc", "-Q", "-n3", *doubletime])
    assert _rows(done) == [[0, "node1", 0, 3], [1, "node1", 1, 3], [2, "node2", 0, 3]]


# One rank is killed at the first start.
_MORTAL = """
import os
from mpi4py import MPI
world, restart = MPI.COMM_WORLD, os.environ.get("DOUBLETIME_RESTART", "0")
world.Barrier()
if restart == "0" and world.rank == 1:
    os.kill(os.getpid(), 9)
world.Barrier()
os.write(1, f'["start {restart}", {world.rank}, "{os.uname().nodename}"]\\n'.encode())
"""


def test_hosts_of_an_allocation_are_asked_through_srun(
    slurm_cluster: VirtualCluster, tmp_path: Path
) -> None:
    """Before a job is started again on them, and when one has not started its ranks."""
    script = _write(slurm_cluster, _MORTAL)
    run = [str(venv() / "bin" / "python"), "-m", "doubletime", "run"]
    salloc = ["salloc", "-Q", "-N2", "--ntasks-per-node=1"]
    again = [*salloc, *run, "--max-restarts", "1", str(script)]
    done = _on_first(slurm_cluster, "mpich", again, folder=tmp_path)
    assert _rows(done) == [["start 1", 0, "node1"], ["start 1", 1, "node2"]]
    assert "restart 1 of 1, on node1, node2" in done.stderr
    folder = tmp_path / "here"
    folder.mkdir()
    slurm_cluster.hide("node2", tmp_path)
    try:
        done = _on_first(slurm_cluster, "mpich", [*salloc, *run, str(script)], folder=folder)
    finally:
        slurm_cluster.reveal("node2", tmp_path)
    assert done.exit_code == 1
    assert f"there is no folder {folder} on host node2" in done.stderr


def test_mpiexec_within_an_allocation(slurm_cluster: VirtualCluster, mpi: str) -> None:
    script = _write(slurm_cluster, _LAUNCHED)
    command = ["mpiexec", "-n", "2", str(venv(mpi) / "bin" / "python"), str(script)]
    salloc = ["salloc", "-Q", "-N2", "--ntasks-per-node=1"]
    # Oversubscribing, Open MPI would put both ranks on the first host.
    env = {"PRTE_MCA_rmaps_default_mapping_policy": None}
    done = _on_first(slurm_cluster, mpi, [*salloc, *command], env)
    assert _rows(done) == [[0, "node1", 0, 2], [1, "node2", 0, 2]]


def test_a_batch_script_on_its_only_host_starts_there(slurm_cluster: VirtualCluster) -> None:
    script = _write(slurm_cluster, _LAUNCHED)
    output = slurm_cluster.folder / "batch.out"
    line = f"{venv()}/bin/python -m doubletime run {script}"
    batch = ["sbatch", "--wait", "-N1", "-n2", "-w", "node2", "-o", str(output), "--wrap", line]
    _on_first(slurm_cluster, "mpich", batch).check()
    rows = [line for line in output.read_text().splitlines() if line.startswith("[")]
    assert sorted(map(json.loads, rows)) == [[0, "node2", 0, 2], [1, "node2", 1, 2]]


@pytest.mark.parametrize(
    ("flags", "env", "backend"),
    [(["--mpi=pmi2"], {}, "mpi"), ([], {"DOUBLETIME_BACKEND": "gloo"}, "gloo")],
)
def test_init_under_srun(
    slurm_cluster: VirtualCluster, flags: list[str], env: dict[str, str], backend: str
) -> None:
    """Over gloo the ranks meet with no word from MPI, at an address that follows from the step."""
    script = _write(slurm_cluster, _INIT)
    python = str(venv() / "bin" / "python")
    srun = ["srun", *flags, "-N2", "-n3", "--ntasks-per-node=2", python, str(script)]
    rows = _rows(_on_first(slurm_cluster, "mpich", srun, env))
    assert rows == [[0, 0, backend, 2, 3], [1, 1, backend, 2, 3], [2, 0, backend, 2, 3]]


def test_srun_that_does_not_speak_to_the_library_is_refused(slurm_cluster: VirtualCluster) -> None:
    python = [str(venv() / "bin" / "python"), "-c", "import doubletime as dt; dt.init()"]
    done = _on_first(slurm_cluster, "mpich", ["srun", "-n2", *python])
    assert done.exit_code != 0
    assert "Slurm started rank 1 of 2, but MPICH" in done.stderr
    assert "--mpi=pmi2 (MPICH" in done.stderr


def _on_first(
    cluster: VirtualCluster,
    mpi: str,
    command: Sequence[str],
    env: Mapping[str, str | None] | None = None,
    folder: Path | None = None,
) -> Ranks:
    """Run a command on the first host; nothing of it outlives it on any host."""
    settings = {"SLURM_CONF": str(cluster.folder / "slurm" / "slurm.conf"), **(env or {})}
    entered = [*cluster.enter(cluster.hosts[0], folder), *command]
    with start_command(entered, mpi=mpi, env=settings) as job:
        try:
            done = job.wait(60)
            left = cluster.settle()
        finally:
            cluster.end_jobs()
    assert not left, f"outlived the job: {'; '.join(left)}\n{done.show()}"
    return done


def _rows(done: Ranks) -> list[list[object]]:
    lines = [line for line in done.check().stdout.splitlines() if line.startswith("[")]
    return sorted(json.loads(line) for line in lines)


def _write(cluster: VirtualCluster, program: str) -> Path:
    path = cluster.folder / "program.py"
    path.write_text(program)
    return path
