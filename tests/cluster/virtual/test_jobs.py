"""Each MPI over real ssh between hosts: right sums, the right paths, nothing left behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vcluster import jobs
from vcluster.cluster import VirtualCluster

_PROGRAM = Path(__file__).with_name("all_reduce_job.py")
_TMP = Path("/tmp")
_ENDLESS = """
    import time
    from mpi4py import MPI
    print("here", flush=True)
    time.sleep(600)
"""


def test_all_reduce_over_hosts(cluster: VirtualCluster, mpi: str) -> None:
    done = jobs.mpiexec(cluster, mpi, _PROGRAM, ranks=4, ranks_per_host=2, timeout=90).check()
    assert sorted(done.stdout.split("\n")[:-1]) == [
        "0 on node1", "1 on node1", "2 on node2", "3 on node2"
    ], done.show()  # fmt: skip


@pytest.mark.alone  # every file of an MPI in /tmp is to be its own
def test_a_job_that_is_left_ends_on_all_hosts(cluster: VirtualCluster, mpi: str) -> None:
    files = set(_TMP.iterdir())
    with jobs.start_mpiexec(cluster, mpi, _ENDLESS, ranks=3) as job:
        _wait_for(job, "here\n" * 3)
        assert all(cluster.job_processes(host) for host in cluster.hosts[:3])
    assert [cluster.job_processes(host) for host in cluster.hosts] == [[], [], [], []]
    new = {path.name for path in set(_TMP.iterdir()) - files}
    assert not [name for name in new if name.startswith(("hydra", "ompi", "prte", "pmix"))]


def test_a_job_past_its_time_fails_and_ends(cluster: VirtualCluster) -> None:
    with pytest.raises(AssertionError, match=r"still running after 0\.5 s"):
        jobs.mpiexec(cluster, "mpich", _ENDLESS, ranks=2, timeout=0.5)
    assert [cluster.job_processes(host) for host in cluster.hosts] == [[], [], [], []]


def test_hosts_are_taken_in_the_order_given(cluster: VirtualCluster) -> None:
    program = """
        import os, sys
        from mpi4py import MPI
        print(MPI.COMM_WORLD.gather(os.uname().nodename), sys.argv[1:], os.environ["SAID"])
    """
    done = jobs.mpiexec(
        cluster, "mpich", program, 2, hosts=["node3", "node1"], args=["a", "b"], env={"SAID": "so"}
    ).check()
    assert "['node3', 'node1'] ['a', 'b'] so" in done.stdout


@pytest.mark.parametrize("hosts", [["node1"], ["node1", "elsewhere"]])
def test_wrong_hosts_are_refused(cluster: VirtualCluster, hosts: list[str]) -> None:
    with pytest.raises(ValueError, match="need 2 hosts"):
        jobs.mpiexec(cluster, "mpich", _PROGRAM, 2, hosts=hosts)


def _wait_for(job: jobs.Job, output: str, timeout_s: float = 30) -> None:
    end_s = time.monotonic() + timeout_s
    while job.output()[0] != output:
        assert time.monotonic() < end_s, job.output()
        time.sleep(0.05)
