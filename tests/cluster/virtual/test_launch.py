"""`doubletime run` over real ssh between hosts, with each MPI."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ranks import Ranks, start_command, venv
from vcluster import faults
from vcluster.cluster import VirtualCluster

_PROGRAM = """
import json, os, sys
from doubletime import environment
from mpi4py import MPI
world = MPI.COMM_WORLD
place = environment.place()
row = {
    "rank": world.rank, "sum": world.allreduce(1), "host": os.uname().nodename,
    "local": [place.local_rank, place.local_world_size], "argv": sys.argv[1:],
    "folder": os.getcwd(), "prefix": sys.prefix, "affinity": sorted(os.sched_getaffinity(0)),
    "environment": {name: value for name, value in os.environ.items() if "=" not in name},
}
# One write of one line: those of two ranks are not torn.
os.write(1, (json.dumps(row) + "\\n").encode())
"""
_INIT = """
import json, os
import torch
import doubletime as dt
session = dt.init()
total = torch.ones(1)
torch.distributed.all_reduce(total)
row = {
    "rank": session.rank, "sum": total.item(), "host": os.uname().nodename,
    "local": [session.local_rank, session.local_world_size], "hosts": session.hosts,
    "threads": session.threads, "said": session.describe(), "backend": session.backend,
}
os.write(1, (json.dumps(row) + "\\n").encode())
from doubletime.training.session import leave
leave()
"""


@pytest.fixture
def script(cluster: VirtualCluster) -> Path:
    return _write(cluster, _PROGRAM)


def _run(
    cluster: VirtualCluster,
    mpi: str | None,
    on: str,
    arguments: Sequence[str],
    *,
    env: dict[str, str | None] | None = None,
    timeout: float = 60,
    folder: Path | None = None,
) -> Ranks:
    """`doubletime run` on a host; nothing of it outlives it on any host."""
    doubletime = [str(venv(mpi) / "bin" / "python"), "-m", "doubletime", "run"]
    reach = ["--ssh-config", str(cluster.folder / "ssh_config")]
    command = [*cluster.enter(on, folder), *doubletime, *reach, *arguments]
    return _wait(cluster, command, mpi, env or {}, timeout)


def _wait(
    cluster: VirtualCluster,
    command: Sequence[str],
    mpi: str | None,
    env: dict[str, str | None],
    timeout: float = 60,
) -> Ranks:
    with start_command(command, mpi=mpi, env={"OMP_NUM_THREADS": None, **env}) as job:
        try:
            done = job.wait(timeout)
            left = cluster.settle()
        finally:
            cluster.end_jobs()
    assert not left, f"outlived the job: {'; '.join(left)}\n{done.show()}"
    return done


def _rows(done: Ranks) -> list[dict]:  # type: ignore[type-arg]
    found = [json.loads(line) for line in done.check().stdout.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda row: row["rank"])


def test_from_a_host_of_the_job(cluster: VirtualCluster, mpi: str, script: Path) -> None:
    folder = Path.cwd()
    rows = _rows(
        _run(
            cluster,
            mpi,
            "node1",
            ["--hosts", "node[1-2]:2", "--env", "SAID=a b", str(script), "-n", "--hosts", "x y"],
            env={"WANDB_MODE": "offline", "HOSTNAME": "node1"},
        )
    )
    assert [row["host"] for row in rows] == ["node1", "node1", "node2", "node2"]
    assert [row["local"] for row in rows] == [[0, 2], [1, 2], [0, 2], [1, 2]]
    for row in rows:
        assert row["sum"] == 4
        assert row["argv"] == ["-n", "--hosts", "x y"]
        assert row["folder"] == str(folder)
        assert row["prefix"] == str(venv(mpi))
        found = row["environment"]
        assert found["SAID"] == "a b"
        assert found["WANDB_MODE"] == "offline"
        assert found["DOUBLETIME_HOSTS"] == "node1,node2"
        assert found["PATH"].startswith(str(venv(mpi) / "bin"))
        if row["host"] == "node2":
            assert "HOSTNAME" not in found


def test_uneven_from_a_host_outside_whose_name_leads_nowhere(
    cluster: VirtualCluster, mpi: str, script: Path, tmp_path: Path
) -> None:
    """As from a login host that calls itself 127.0.1.1 and that the others know not at all."""
    known = [line for line in _lines(cluster.folder / "hosts") if not line.endswith("node4")]
    for host, own in (("node1", ""), ("node3", ""), ("node4", "127.0.1.1 node4\n")):
        (tmp_path / host).write_text("\n".join(known) + "\n" + own)
        bind = ["mount", "--bind", str(tmp_path / host), "/etc/hosts"]
        subprocess.run([*cluster.enter(host), *bind], check=True)
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# ours\nnode3 slots=1\n\nnode1:2\n")
    try:
        rows = _rows(
            _run(cluster, mpi, "node4", ["--hostfile", str(hostfile), "--bind", str(script)])
        )
    finally:
        for host in ("node1", "node3", "node4"):
            subprocess.run([*cluster.enter(host), "umount", "/etc/hosts"], check=True)
    assert [row["host"] for row in rows] == ["node3", "node1", "node1"]
    assert [row["local"] for row in rows] == [[0, 1], [0, 2], [1, 2]]
    assert {row["sum"] for row in rows} == {3}
    # Each host has divided its own cores.
    own = rows[0]["affinity"]
    half = max(1, len(own) // 2)
    assert [int(row["environment"]["OMP_NUM_THREADS"]) for row in rows] == [len(own), half, half]
    if len(own) > 1:
        assert not set(rows[1]["affinity"]) & set(rows[2]["affinity"])


def test_the_printed_command_does_the_same(cluster: VirtualCluster, mpi: str, script: Path) -> None:
    where = ["--hosts", "node1:1,node2:2", "-n", "3", "--env", "SAID=c d"]
    arguments = [*where, "--dry-run", str(script), "a b"]
    line = _run(cluster, mpi, "node2", arguments).check().stdout
    assert line.count("\n") == 1
    rows = _rows(_wait(cluster, [*cluster.enter("node2"), "sh", "-c", line], mpi, {}))
    assert [row["host"] for row in rows] == ["node1", "node2", "node2"]
    assert {tuple(row["argv"]) for row in rows} == {("a b",)}
    assert [row["environment"].get("SAID") for row in rows] == ["c d"] * 3


def test_init_finds_its_place(cluster: VirtualCluster, mpi: str) -> None:
    script = str(_write(cluster, _INIT))
    rows = _rows(_run(cluster, mpi, "node1", ["--hosts", "node1:1,node2:1", script]))
    assert [row["host"] for row in rows] == ["node1", "node2"]
    for row in rows:
        assert (row["sum"], row["backend"], row["hosts"]) == (2, "mpi", 2)
        assert row["local"] == [0, 1]
        assert row["said"].startswith("2 ranks on 2 hosts over mpi (")
        assert row["threads"] == len(os.sched_getaffinity(0))


def test_each_library_is_told_the_interface_that_leads_to_the_others(
    cluster: VirtualCluster,
) -> None:
    """Beside a docker0 that leads nowhere."""
    decoy = (
        "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && "
        "ip link set docker0 up"
    )
    for host in ("node1", "node2"):
        subprocess.run([*cluster.enter(host), "sh", "-c", decoy], check=True)
    program = _INIT.replace('"rank"', '"environment": dict(os.environ), "rank"')
    try:
        rows = _rows(
            _run(
                cluster,
                None,
                "node1",
                ["--hosts", "node1,node2", "--backend", "gloo", str(_write(cluster, program))],
                env={"NCCL_SOCKET_IFNAME": "mine"},
            )
        )
    finally:
        for host in ("node1", "node2"):
            subprocess.run([*cluster.enter(host), "ip", "link", "del", "docker0"], check=True)
    assert [(row["sum"], row["backend"]) for row in rows] == [(2, "gloo"), (2, "gloo")]
    for row in rows:
        found = row["environment"]
        assert found["GLOO_SOCKET_IFNAME"] == found["FI_TCP_IFACE"] == "eth0"
        assert found["OMPI_MCA_btl_tcp_if_include"] == "10.77.0.0/24"
        assert found["NCCL_SOCKET_IFNAME"] == "mine"


def test_without_mpi_over_ssh_alone(cluster: VirtualCluster) -> None:
    script = str(_write(cluster, _INIT))
    arguments = ["--hosts", "node1:1,node2:1", "--launcher", "ssh", script]
    rows = _rows(_run(cluster, None, "node2", arguments))
    assert [row["host"] for row in rows] == ["node1", "node2"]
    assert [(row["sum"], row["backend"], row["hosts"]) for row in rows] == [(2, "gloo", 2)] * 2


def test_hosts_that_are_called_alike_are_two_and_one_of_two_names_is_one(
    cluster: VirtualCluster,
) -> None:
    script = str(_write(cluster, _INIT))
    hosts = ("node1", "node2")
    for host in hosts:
        faults.run(cluster, host, "hostname", "copied")
    try:
        rows = _rows(_run(cluster, None, "node1", ["--hosts", "node1:2,node2", script]))
        address = cluster.host("node1").address
        again = _run(cluster, None, "node1", ["--hosts", f"node1,{address}", script])
    finally:
        for host in hosts:
            faults.run(cluster, host, "hostname", host)
    assert {row["host"] for row in rows} == {"copied"}
    assert [row["local"] for row in rows] == [[0, 2], [1, 2], [0, 1]]
    assert [(row["sum"], row["hosts"]) for row in rows] == [(3, 2)] * 3
    assert again.exit_code == 1
    assert f"hosts {address}, node1 are one machine: " in again.stderr, again.show()


def test_init_meets_where_own_names_lead_nowhere(cluster: VirtualCluster, tmp_path: Path) -> None:
    """Started as by torchrun; gloo by itself would take 127.0.1.1, which each host calls itself."""
    known = _lines(cluster.folder / "hosts")
    script = str(_write(cluster, _INIT))
    hosts = ("node1", "node2")
    for host in hosts:
        others = [line for line in known if not line.endswith(host)]
        (tmp_path / host).write_text("\n".join([*others, f"127.0.1.1 {host}"]) + "\n")
        bind = ["mount", "--bind", str(tmp_path / host), "/etc/hosts"]
        subprocess.run([*cluster.enter(host), *bind], check=True)
    started = []
    try:
        for rank, host in enumerate(hosts):
            place = {
                "RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
                "MASTER_ADDR": cluster.host("node1").address, "MASTER_PORT": 29507,
            }  # fmt: skip
            variables = [f"{name}={value}" for name, value in place.items()]
            python = str(venv() / "bin" / "python")
            command = [*cluster.enter(host), "env", *variables, python, script]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        said = [process.communicate(timeout=60)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
        cluster.end_jobs()
        for host in hosts:
            subprocess.run([*cluster.enter(host), "umount", "/etc/hosts"], check=True)
    assert [json.loads(text.splitlines()[-1])["sum"] for text in said] == [2, 2]


def test_links_of_hosts_are_measured_from_one_command(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    profile = tmp_path / "profile.toml"
    bench = [str(venv() / "bin" / "python"), "-m", "doubletime", "bench", "links"]
    where = ["--hosts", "node[1-2]", "--ssh-command", str(cluster.ssh), "--output", str(profile)]
    command = [*cluster.enter("node1"), *bench, *where, "--seconds", "0.002"]
    done = _wait(cluster, command, None, {}).check()
    assert "2 hosts" in done.stdout
    assert '"node1"' in profile.read_text()
    assert '"node2"' in profile.read_text()


def test_lines_are_tagged_and_kept_in_a_log_of_each_rank(
    cluster: VirtualCluster, mpi: str, tmp_path: Path
) -> None:
    """Off a terminal a job across hosts keeps logs unasked, in a folder of its own."""
    script = str(_write(cluster, "print('one\\ntwo', flush=True)"))
    arguments = ["--hosts", "node[1-2]:1", "--tag-output", script]
    done = _run(cluster, mpi, "node1", arguments, env={"DOUBLETIME_LOGS": str(tmp_path)}).check()
    lines = sorted(line for line in done.stdout.splitlines() if line.endswith(("one", "two")))
    assert [line.endswith("one") for line in lines] == [True, False, True, False]
    assert all("0" in line and "node1" in line for line in lines[:2])
    assert all("1" in line and "node2" in line for line in lines[2:])
    [folder] = tmp_path.iterdir()
    assert str(folder) in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.log", "rank-1.log"]
    assert (folder / "rank-1.log").read_text() == "one\ntwo\n"


def test_a_host_that_does_not_answer_is_named(cluster: VirtualCluster, script: Path) -> None:
    done = _run(cluster, None, "node1", ["--hosts", "node1,node9", str(script)])
    assert done.exit_code != 0
    assert "node9" in done.stderr


_LAUNCHERS = ("mpich", "openmpi", "intel", "ssh")


@pytest.mark.parametrize("how", _LAUNCHERS)
def test_no_rank_begins_unless_all_hosts_see_the_same_script(
    cluster: VirtualCluster, tmp_path: Path, how: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text("print('begun', flush=True)\n")
    cluster.hide("node2", tmp_path)
    faults.replace_file(cluster, "node3", script, "print('another', flush=True)\n")
    try:
        done = _run_by(cluster, how, ["--hosts", "node[1-3]:1", str(script)])
    finally:
        cluster.reveal("node2", tmp_path)
        cluster.reveal("node3", script)
    assert done.exit_code == 1
    assert not done.stdout.strip()
    assert done.stderr.count("doubletime: ") == 1
    *_, title, lacking, remedy, differing, _ = done.stderr.splitlines()
    assert title == "doubletime: the job has not begun:"
    assert lacking == f"there is no script {script} on host node2 (looked in {Path.cwd()})"
    assert remedy.startswith("  remedy: put it into a folder that all hosts share")
    assert differing.startswith(f"script {script} on host node3 is another file than here")


@pytest.mark.parametrize("how", _LAUNCHERS)
def test_no_rank_begins_unless_all_hosts_see_the_folder(
    cluster: VirtualCluster, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    script = cluster.folder / "program.py"
    script.write_text("print('begun', flush=True)\n")
    cluster.hide("node2", tmp_path)
    try:
        done = _run_by(cluster, how, ["--hosts", "node[1-2]:1", str(script)], folder)
    finally:
        cluster.reveal("node2", tmp_path)
    assert done.exit_code == 1
    assert not done.stdout.strip()
    remedy = "start the job from a folder that all hosts share"
    if how == "ssh":
        told = f"doubletime: host node2: {folder}: No such file or directory: {remedy}"
    else:
        assert done.stderr.count("doubletime: ") == 1
        told = (
            f"doubletime: the job has not begun:\nthere is no folder {folder} on host node2\n"
            f"  remedy: {remedy}"
        )
    assert told in done.stderr


def _run_by(
    cluster: VirtualCluster, how: str, arguments: Sequence[str], folder: Path | None = None
) -> Ranks:
    """With the launcher of an MPI, or our own."""
    mpi = None if how == "ssh" else how
    launcher = ["--launcher", "ssh"] if how == "ssh" else []
    return _run(cluster, mpi, "node1", [*launcher, *arguments], folder=folder)


def _write(cluster: VirtualCluster, program: str) -> Path:
    path = cluster.folder / "program.py"
    path.write_text(program)
    return path


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()
