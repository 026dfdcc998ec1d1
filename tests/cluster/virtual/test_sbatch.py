"""`doubletime slurm --submit` on a real Slurm: the job runs on all hosts, and a failed one fails."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vcluster import slurm
from vcluster.cluster import VirtualCluster

_PROGRAM = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
row = [world.rank, world.allreduce(1), os.uname().nodename, os.environ["SAID"], *sys.argv[1:]]
os.write(1, (" ".join(map(str, row)) + "\\n").encode())
if "fail" in sys.argv and world.rank == 3:
    raise ValueError("rank 3 has had enough")
world.Barrier()
"""


@pytest.fixture(scope="module")
def slurm_cluster(require_slurm: None) -> Iterator[VirtualCluster]:
    with VirtualCluster(hosts=2) as cluster:
        slurm.start(cluster)
        yield cluster
        assert cluster.settle() == []


@pytest.mark.parametrize(("last", "state"), [("a b", "COMPLETED"), ("fail", "FAILED")])
def test_a_submitted_job_runs_on_all_hosts(
    slurm_cluster: VirtualCluster, tmp_path: Path, last: str, state: str
) -> None:
    (tmp_path / "train.py").write_text(_PROGRAM)
    words = [sys.executable, "-m", "doubletime", "slurm", "-N", "2", "--per-host", "2", "--submit"]
    words += ["--time", "5", "--env", "SAID=it's so", "--option", "oversubscribe", "train.py", last]
    done = _on_first(slurm_cluster, tmp_path, words)
    assert done.returncode == 0, done.stderr
    number = re.search(r"job (\d+) is submitted", done.stderr)
    assert number is not None, done.stderr
    text = _wait(slurm_cluster, tmp_path, number[1], state)
    rows = [line for line in text.splitlines() if re.match(r"\d 4 ", line)]
    assert sorted(rows) == [f"{rank} 4 node{1 + rank // 2} it's so {last}" for rank in range(4)]
    if last == "fail":
        assert "doubletime: rank 3 on host node2 failed:" in text
        assert "ValueError: rank 3 has had enough" in text.splitlines()[-1]


def test_what_slurm_refuses_is_told(slurm_cluster: VirtualCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = [sys.executable, "-m", "doubletime", "slurm", "--partition", "no", "--submit"]
    done = _on_first(slurm_cluster, tmp_path, [*words, "train.py"])
    assert done.returncode == 1
    assert "sbatch does not take the job: sbatch: error" in done.stderr


def _on_first(cluster: VirtualCluster, folder: Path, words: list[str]):  # type: ignore[no-untyped-def]
    environment = {"SLURM_CONF": str(cluster.folder / "slurm" / "slurm.conf")}
    return cluster.exec("node1", ["env", f"--chdir={folder}", *words], env=environment)


def _wait(cluster: VirtualCluster, folder: Path, number: str, state: str) -> str:
    """Wait for the job's end; returns its output."""
    end_s = time.monotonic() + 60
    while True:
        shown = _on_first(cluster, folder, ["scontrol", "show", "job", number]).stdout
        found = re.search(r"JobState=(\w+)", shown)
        log = folder / f"train-{number}.log"
        if found and found[1] == state:
            return log.read_text()
        text = log.read_text() if log.exists() else ""
        assert found, shown
        assert found[1] in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING"), (shown, text)
        assert time.monotonic() < end_s, (shown, text)
        time.sleep(0.2)
