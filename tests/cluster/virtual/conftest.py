"""One virtual cluster for all tests here; what a test changes about it is undone after the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from vcluster import requirements
from vcluster.cluster import VirtualCluster


def _require(*, slurm: bool = False) -> None:
    """Skip where this machine can have no virtual cluster; fail in CI where only programs are missing."""
    refusal = requirements.refusal()
    if refusal:
        pytest.skip(refusal)
    missing = requirements.missing_packages(slurm=slurm)
    if missing:
        reason = f"a virtual cluster needs: apt-get install {' '.join(missing)}"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def require_slurm() -> None:
    """Skip or fail where Slurm is not installed."""
    _require(slurm=True)


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[VirtualCluster]:
    """Four hosts, for the whole session."""
    _require()
    with VirtualCluster(hosts=4) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: VirtualCluster) -> Iterator[VirtualCluster]:
    """Four hosts that are whole, whose links are as fast as the machine and that run nothing."""
    yield running_cluster
    running_cluster.end_jobs()
    for host in running_cluster.hosts:
        running_cluster.heal(host)
    running_cluster.lan()


@pytest.fixture
def make_cluster() -> Iterator[Callable[[int], VirtualCluster]]:
    """Makes a cluster of so many hosts for one test, which may break them for good."""
    _require()
    with ExitStack() as stack:
        yield lambda hosts: stack.enter_context(VirtualCluster(hosts))


@pytest.fixture
def own_cluster() -> Iterator[VirtualCluster]:
    """Two hosts for one test, which may break them for good."""
    _require()
    with VirtualCluster(hosts=2) as cluster:
        yield cluster
