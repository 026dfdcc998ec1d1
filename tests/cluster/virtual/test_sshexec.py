"""Our own launcher over real ssh: sums over gloo, and jobs that end on every host whatever breaks."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ranks import Job, start_command
from vcluster.cluster import VirtualCluster

_ALL_REDUCE = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1000)
dist.all_reduce(total)
row = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SECRET")]
row += [os.uname().nodename, str(total.sum().item()), os.getcwd(), *sys.argv[1:]]
os.write(1, (" ".join(row) + "\\n").encode())
dist.destroy_process_group()
"""
# As long, without torch: for faults that do not concern it.
_PATIENT = """
import os, pathlib, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
(folder / f"at-work-{rank}").touch()
while not (folder / f"fail-{rank}").exists():
    time.sleep(0.01)
os._exit(5)
"""
# Steps until somebody ends it; a file tells that all are at work, another makes one rank fail.
_ENDLESS = """
import os, pathlib, sys, time, torch
import torch.distributed as dist
folder = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.ones(1)
for step in range(100000):
    dist.all_reduce(total)
    total.fill_(1)
    if step == 3:
        (folder / f"at-work-{rank}").touch()
    if (folder / f"fail-{rank}").exists():
        os._exit(5)
    time.sleep(0.01)
"""


@pytest.fixture
def folder(cluster: VirtualCluster, tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(_ENDLESS)
    (tmp_path / "patient.py").write_text(_PATIENT)
    return tmp_path


def _command(
    cluster: VirtualCluster, on: str, hosts: str, program: Sequence[str], how: str = "command"
) -> list[str]:
    reach = {"command": ["--ssh-command", str(cluster.ssh)]}.get(
        how, ["--ssh-config", str(cluster.folder / "ssh_config")]
    )
    launcher = [sys.executable, "-m", "doubletime.cluster.sshexec", "--hosts", hosts, *reach]
    return [*cluster.enter(on), *launcher, "--", sys.executable, *program]


@pytest.mark.parametrize(
    ("on", "hosts", "how"),
    [("node1", "node1:1,node2:2", "command"), ("node4", "node2:1,node3:1", "config")],
    ids=["from-a-host-of-the-job", "from-another"],
)
def test_all_reduce_over_hosts(
    cluster: VirtualCluster, folder: Path, on: str, hosts: str, how: str
) -> None:
    script = folder / "sum.py"
    script.write_text(_ALL_REDUCE)
    words = _command(cluster, on, hosts, [str(script), "a b"], how)
    with start_command(words, env={"SECRET": "sesame"}) as job:
        seen = _command_lines(cluster, job)
        done = job.wait(60).check()
    assert cluster.settle() == []
    assert "sesame" not in seen
    places = [entry.split(":") for entry in hosts.split(",")]
    expected = [(name, local, int(count)) for name, count in places for local in range(int(count))]
    total = float(1000 * len(expected))
    assert sorted(done.stdout.splitlines()) == [
        f"{rank} {local} {count} sesame {name} {total} {Path.cwd()} a b"
        for rank, (name, local, count) in enumerate(expected)
    ]


def _command_lines(cluster: VirtualCluster, job: Job) -> str:
    """What `ps` shows on all hosts while the job runs."""
    seen = ""
    while job.process.poll() is None:
        seen += cluster.exec("node2", ["ps", "axww", "-o", "args"]).stdout
        time.sleep(0.2)
    assert "host_agent" in seen
    return seen


def _fail_rank(cluster: VirtualCluster, job: Job, folder: Path) -> None:
    (folder / "fail-1").touch()


def _kill_rank(cluster: VirtualCluster, job: Job, folder: Path) -> None:
    ranks = [each for each in cluster.job_processes("node2") if "patient.py" in each.cmdline()[-2]]
    ranks[0].kill()


def _kill_launcher(cluster: VirtualCluster, job: Job, folder: Path) -> None:
    _launcher(job).kill()


def _cut(cluster: VirtualCluster, job: Job, folder: Path) -> None:
    cluster.cut("node2")


def _terminate(cluster: VirtualCluster, job: Job, folder: Path) -> None:
    _launcher(job).send_signal(signal.SIGTERM)


def _launcher(job: Job):  # type: ignore[no-untyped-def]
    """On a virtual host the job's first process is another's child."""
    return next(
        each
        for each in job.processes()
        if "doubletime.cluster.sshexec" in each.cmdline() and "nsenter" not in each.name()
    )


@pytest.mark.parametrize(
    ("script", "harm", "exit_codes", "said"),
    [
        ("job.py", _fail_rank, {5}, "rank 1 on host node2 ended with exit code 5"),
        ("patient.py", _kill_rank, {137}, "exit code 137"),
        ("job.py", _kill_launcher, {-9, 137}, ""),
        ("patient.py", _terminate, {143}, ""),
        ("job.py", _cut, {1}, "host node2: nothing has come from it for 7 s"),
    ],
    ids=["a-rank-fails", "a-rank-is-killed", "launcher-killed", "launcher-told-to-end", "cut"],
)
def test_within_10_s_of_a_fault_nothing_is_left_on_any_host(
    cluster: VirtualCluster,
    folder: Path,
    script: str,
    harm: Callable[[VirtualCluster, Job, Path], None],
    exit_codes: set[int],
    said: str,
) -> None:
    words = _command(cluster, "node1", "node1:1,node2:1", [str(folder / script), str(folder)])
    with start_command(words) as job:
        _wait_until_at_work(folder, job, 2)
        start_s = time.monotonic()
        harm(cluster, job, folder)
        while job.process.poll() is None or any(map(cluster.job_processes, cluster.hosts)):
            assert time.monotonic() - start_s < 10, (
                job.output(),
                {host: cluster.job_processes(host) for host in cluster.hosts},
            )
            time.sleep(0.05)
        assert job.process.returncode in exit_codes, job.output()
        assert said in job.output()[1]


def test_both_ends_of_a_cut_link_keep_to_the_limit_that_was_set(
    cluster: VirtualCluster, folder: Path
) -> None:
    words = _command(cluster, "node1", "node1:1,node2:1", [str(folder / "patient.py"), str(folder)])
    with start_command(words, env={"DOUBLETIME_SILENCE_S": "2"}) as job:
        _wait_until_at_work(folder, job, 2)
        start_s = time.monotonic()
        cluster.cut("node2")
        while job.process.poll() is None or any(map(cluster.job_processes, cluster.hosts)):
            assert time.monotonic() - start_s < 10, (
                job.output(),
                {host: cluster.job_processes(host) for host in cluster.hosts},
            )
            time.sleep(0.05)
        assert "host node2: nothing has come from it for 3 s" in job.output()[1]


def test_a_host_that_dies_ends_the_job(own_cluster: VirtualCluster, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(_PATIENT)
    words = _command(
        own_cluster, "node1", "node1:1,node2:1", [str(tmp_path / "job.py"), str(tmp_path)]
    )
    with start_command(words) as job:
        _wait_until_at_work(tmp_path, job, 2)
        start_s = time.monotonic()
        own_cluster.kill("node2")
        done = job.wait(60)
        assert own_cluster.settle() == []
        assert time.monotonic() - start_s < 10
    assert done.exit_code == 1
    assert "host node2: " in done.stderr


def test_a_link_that_is_cut_for_3_s_and_a_host_frozen_so_long_do_no_harm(
    cluster: VirtualCluster, folder: Path
) -> None:
    words = _command(cluster, "node1", "node1:1,node2:1", [str(folder / "patient.py"), str(folder)])
    with start_command(words) as job:
        _wait_until_at_work(folder, job, 2)
        cluster.cut("node2")
        time.sleep(3)
        cluster.heal("node2")
        time.sleep(3.6)  # TCP may try again so late
        cluster.freeze("node2")
        time.sleep(3)
        cluster.thaw("node2")
        time.sleep(1)
        assert job.process.poll() is None, job.output()
        (folder / "fail-1").touch()
        assert job.wait(60).exit_code == 5
    assert cluster.settle() == []


def test_a_host_that_cannot_be_reached_is_named_and_no_rank_starts(
    cluster: VirtualCluster, folder: Path
) -> None:
    words = _command(cluster, "node1", "node1:1,node9:1", [str(folder / "job.py"), str(folder)])
    with start_command(words) as job:
        done = job.wait(20)
    assert done.exit_code == 1
    assert "host node9: its name does not resolve" in done.stderr
    assert cluster.settle() == []


def test_a_folder_that_a_host_does_not_see_is_named(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    words = _command(cluster, "node1", "node1:1,node2:1", ["-c", "pass"])
    at = words.index(f"--chdir={Path.cwd()}")
    words[at] = f"--chdir={tmp_path / 'here'}"
    cluster.hide("node2", tmp_path)
    try:
        with start_command(words, env={"PWD": str(tmp_path / "here")}) as job:
            done = job.wait(20)
    finally:
        cluster.reveal("node2", tmp_path)
    assert done.exit_code == 1
    assert f"host node2: {tmp_path / 'here'}: No such file or directory" in done.stderr
    assert cluster.settle() == []


def test_what_a_login_shell_prints_is_no_output_of_ranks(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    (cluster.folder / "node2" / "bashrc").write_text("echo welcome to node2\n")
    words = _command(cluster, "node1", "node1:1,node2:1", ["-c", "print('hi')"])
    try:
        with start_command(words) as job:
            done = job.wait(20).check()
    finally:
        (cluster.folder / "node2" / "bashrc").write_text("")
    assert done.stdout == "hi\nhi\n"
    assert os.linesep not in done.stderr


def _wait_until_at_work(folder: Path, job: Job, ranks: int) -> None:
    end_s = time.monotonic() + 40
    while len(list(folder.glob("at-work-*"))) < ranks:
        assert time.monotonic() < end_s, job.output()
        assert job.process.poll() is None, job.output()
        time.sleep(0.05)
