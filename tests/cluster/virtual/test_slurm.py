"""A real Slurm on the hosts of a virtual cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vcluster import slurm
from vcluster.cluster import VirtualCluster

_PROGRAM = """
    import os
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    print(world.allreduce(world.rank + 1), "on", os.uname().nodename, flush=True)
"""


@pytest.fixture
def slurm_cluster(own_cluster: VirtualCluster, require_slurm: None) -> Iterator[VirtualCluster]:
    """Two hosts with Slurm."""
    slurm.start(own_cluster)
    yield own_cluster
    assert own_cluster.settle() == []


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_srun_starts_ranks_on_all_hosts(slurm_cluster: VirtualCluster, mpi: str) -> None:
    done = slurm.srun(slurm_cluster, mpi, _PROGRAM, ranks=4, ranks_per_host=2).check()
    assert sorted(done.stdout.splitlines()) == [*["10 on node1"] * 2, *["10 on node2"] * 2]
