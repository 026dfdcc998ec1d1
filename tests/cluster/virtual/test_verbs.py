"""`doubletime bench` and `train` over real hosts, and what they, and `run`, know of these hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ranks import Ranks, start_command, venv
from vcluster.cluster import VirtualCluster

_HOSTS = ["--hosts", "node[1-2]:1"]
_QUICK = ["--sizes", "4,64K", "--seconds", "0.002"]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Where the cluster's profile is to be."""
    return tmp_path / "known" / "profile.toml"


def _doubletime(
    cluster: VirtualCluster,
    arguments: list[str],
    *,
    mpi: str | None = None,
    profile: Path | None = None,
    timeout: float = 60,
) -> Ranks:
    """A verb, called on node1; nothing of it outlives it on any host."""
    python = str(venv(mpi) / "bin" / "python")
    reach = ["--ssh-config", str(cluster.folder / "ssh_config")]
    command = [*cluster.enter("node1"), python, "-m", "doubletime", *arguments, *reach]
    env = {} if profile is None else {"DOUBLETIME_PROFILE": str(profile)}
    with start_command(command, mpi=mpi, env={"COLUMNS": "140", **env}) as job:
        try:
            done = job.wait(timeout)
            left = cluster.settle()
        finally:
            cluster.end_jobs()
    assert not left, f"outlived the job: {'; '.join(left)}\n{done.show()}"
    return done.check()


def test_all_reduce_is_timed_between_hosts(
    cluster: VirtualCluster, mpi: str, tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    bench = ["bench", "allreduce", *_QUICK, "--algorithms", "ring,auto", "--json", str(file)]
    cluster.hide("node2", tmp_path)
    try:
        done = _doubletime(cluster, [*bench, *_HOSTS], mpi=mpi)
    finally:
        cluster.reveal("node2", tmp_path)
    assert done.stdout.count("2 ranks") == 1
    rows = json.loads(file.read_text())["timings"]
    peers = ("mpi", "ring", "auto", "gloo", "raw")
    assert [(row["nbytes"], row["peer"]) for row in rows] == [
        (nbytes, peer) for nbytes in (4, 65536) for peer in peers
    ]


def test_what_is_measured_of_a_cluster_is_used_for_it_alone(
    cluster: VirtualCluster, profile: Path
) -> None:
    """Links, then the best algorithms, then all_reduce beside the bound that the links set."""
    profile.parent.mkdir()
    profile.write_text(
        'hosts = ["node8"]\nranks_per_host = [2]\nmpi = "MPICH"\nbackend = "mpi"\n'
        "gamma_s_per_byte = 1e-10\n"
    )
    cluster.hide("node2", profile.parents[1])
    try:
        links = ["bench", "links", "--seconds", "0.002", *_HOSTS]
        done = _doubletime(cluster, links, profile=profile)
        assert f"what {profile} held is replaced: it was measured on node8" in done.stderr
        tune = ["bench", "tune", *_QUICK, "-n", "2", "--hosts", "node[1-3]"]
        done = _doubletime(cluster, tune, profile=profile)
        table = profile.with_name("profile.table.toml")
        assert f"decision table written to {table}" in done.stdout
        bench = ["bench", "allreduce", *_QUICK, "--against", "", "--algorithms", "auto"]
        here = _doubletime(cluster, [*bench, *_HOSTS], profile=profile)
        assert "of bound" in here.stdout
        assert "is not used" not in here.stderr
        elsewhere = _doubletime(cluster, [*bench, "--hosts", "node1:1,node4:1"], profile=profile)
        assert "of bound" not in elsewhere.stdout
        assert "no bound is shown: of the profile, " in elsewhere.stdout
        for file in (profile, table):
            assert f"{file} is not used" in elsewhere.stderr
    finally:
        cluster.reveal("node2", profile.parents[1])


def test_a_task_is_trained_on_two_hosts_and_compared_with_one(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    quick = ["train", "digits", "--epochs", "1", "--limit", "120", "--runs", str(tmp_path)]
    (tmp_path / "hosts").write_text("node2 slots=1\nnode1:1\n")
    hostfile = ["--hostfile", str(tmp_path / "hosts")]
    done = _doubletime(cluster, [*quick, "--name", "it", *hostfile, "--compare"], timeout=110)
    assert "2 ranks on 2 hosts" in done.stdout
    assert "speed" in done.stdout
    for ranks in (1, 2):
        folder = tmp_path / f"it-n{ranks}"
        assert json.loads((folder / "config.json").read_text())["host"] == "node2"
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["world_size"] == ranks


def test_what_the_doctor_found_is_told_before_a_job_starts(
    cluster: VirtualCluster, tmp_path: Path, profile: Path
) -> None:
    script = cluster.folder / "program.py"
    script.write_text("import os\nprint('ran on', os.uname().nodename, flush=True)\n")
    options = ["--ssh-config", str(cluster.folder / "ssh_config")]
    cluster.hide("node2", tmp_path)
    try:
        look = [
            *cluster.enter("node1"),
            str(venv() / "bin" / "python"),
            "-m",
            "doubletime",
            "doctor",
        ]
        folder = ["--script", str(tmp_path / "train.py"), "--no-bandwidth"]
        (tmp_path / "train.py").touch()
        env = {"DOUBLETIME_PROFILE": str(profile)}
        with start_command([*look, *options, "--hosts", "node[1-2]:9", *folder], env=env) as job:
            assert job.wait(60).exit_code == 1
    finally:
        cluster.reveal("node2", tmp_path)

    def start(*hosts: str) -> Ranks:
        python = str(venv() / "bin" / "python")
        words = [*cluster.enter("node1"), python, "-m", "doubletime", "run", *options, *hosts]
        with start_command([*words, str(script)], env=env) as job:
            return job.wait(60).check()

    told = start("--hosts", "node[1-2]:1").stderr
    assert "doubletime: the doctor found on node2 (" in told
    assert "doubletime: doubletime doctor --hosts node1,node2 looks again" in told
    assert "the doctor" not in start("--hosts", "node1:1,node3:1").stderr
