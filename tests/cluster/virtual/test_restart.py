"""Jobs that start again: a host dies in the midst of an epoch, and each sample is still seen once."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ranks import MPIS, ROOT, Job, start_command, venv
from vcluster.cluster import VirtualCluster

_EXAMPLE = ROOT / "examples" / "resumable.py"
_EPOCHS = 12


@pytest.mark.parametrize("how", ["mpich", "ssh"])
def test_a_host_dies_and_the_others_go_on_in_the_same_epoch(tmp_path: Path, how: str) -> None:
    """Over an MPI, and over our own launcher and gloo."""
    launcher = ["--launcher", "ssh"] if how == "ssh" else []
    with VirtualCluster(hosts=3) as cluster:
        example = [str(_EXAMPLE), str(tmp_path), str(_EPOCHS)]
        where = ["--hosts", "node[1-3]", "--min-hosts", "2"]
        words = _run(cluster, [*where, *launcher, *example], tmp_path)
        with start_command(words) as job:
            _wait_for_checkpoint(tmp_path, job)
            cluster.kill("node3")
            killed_s = time.monotonic()
            _wait_until(lambda: "restart 1 of 3, on node1, node2" in job.output()[1], job)
            assert time.monotonic() - killed_s < 25
            done = job.wait(100).check()
        assert cluster.settle() == []
    assert "doubletime: host node3 is left out: " in done.stderr
    assert "doubletime: the job has ended well, after 1 restart\n" in done.stderr, done.stderr
    _check_epochs(done.stdout)
    (log,) = tmp_path.glob("restarts-*.log")
    assert "host node3 is left out" in log.read_text()


# Waits at the first start for what ends it, and is done at once at the second.
_ENDLESS = """
import os
from mpi4py import MPI
world, restart = MPI.COMM_WORLD, os.environ.get("DOUBLETIME_RESTART", "0")
world.Barrier()
os.write(1, f"start {restart}: {world.rank} of {world.size} on {os.uname().nodename}\\n".encode())
if restart == "0":
    world.recv(source=(world.rank + 1) % world.size)
"""


@pytest.mark.parametrize(
    ("mpi", "fault"),
    [
        *((mpi, "a rank") for mpi in MPIS),
        ("openmpi", "a host"),
        ("intel", "a host"),
    ],
)
def test_another_start_with_each_mpi(
    own_cluster: VirtualCluster, tmp_path: Path, mpi: str, fault: str
) -> None:
    (tmp_path / "endless.py").write_text(_ENDLESS)
    options = ["--hosts", "node1,node2", str(tmp_path / "endless.py")]
    with start_command(_run(own_cluster, options, tmp_path, mpi), mpi=mpi) as job:
        _wait_until(lambda: job.output()[0].count("start 0: ") == 2, job)
        if fault == "a host":
            own_cluster.kill("node2")
        else:
            ranks = [each for each in own_cluster.job_processes("node2") if not each.children()]
            next(each for each in ranks if "endless.py" in each.cmdline()[-1]).kill()
        done = job.wait(40).check()
    assert own_cluster.settle() == []
    again = sorted(line for line in done.stdout.splitlines() if line.startswith("start 1: "))
    if fault == "a host":
        assert "doubletime: restart 1 of 3, on node1 (DOUBLETIME_RESTART=1)" in done.stderr
        assert again == ["start 1: 0 of 1 on node1"]
    else:
        assert "rank 1 on host node2 failed:\ndied by signal 9 (SIGKILL)" in done.stderr
        assert again == ["start 1: 0 of 2 on node1", "start 1: 1 of 2 on node2"]


def test_hosts_that_cannot_take_ranks_are_found(cluster: VirtualCluster, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    ask = f"""
from doubletime.cluster import health
from doubletime.cluster.ssh import Ssh
for each in health.examine({cluster.hosts}, Ssh(({str(cluster.ssh)!r},)), {str(folder)!r}):
    print(each.host, each.trouble)
"""
    cluster.hide("node3", tmp_path)
    cluster.cut("node4")
    try:
        said = cluster.exec("node1", [sys.executable, "-c", ask]).stdout.splitlines()
    finally:
        cluster.reveal("node3", tmp_path)
        cluster.heal("node4")
    assert said[:2] == ["node1 None", "node2 None"]
    assert said[2] == f"node3 there is no folder {folder}"
    assert said[3].startswith("node4 it does not answer")


def test_a_disk_that_is_full_leaves_the_last_checkpoint_whole(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "small", str(small)]
    subprocess.run([*cluster.enter("node2"), *mount], check=True)

    def train(epochs: int, launcher: list[str]):  # type: ignore[no-untyped-def]
        on = "node1" if "run" in launcher else "node2"
        words = [*cluster.enter(on, tmp_path), *launcher, str(_EXAMPLE), str(small)]
        with start_command([*words, str(epochs)]) as job:
            return job.wait(60)

    python = [sys.executable]
    try:
        train(1, python).check()
        fill = f"head -c 250k /dev/zero >{small}/filler; ls {small}"
        assert "resumable.pt" in cluster.exec("node2", ["sh", "-c", fill]).stdout
        reach = ["--ssh-config", str(cluster.folder / "ssh_config")]
        # The rank that saves runs on another host than the launcher.
        failed = train(3, [*python, "-m", "doubletime", "run", *reach, "--hosts", "node2,node1"])
        assert failed.exit_code == 1
        said = f"{small}/resumable.pt: No space left on device; the checkpoint before is whole"
        assert failed.stderr.splitlines()[-1] == said
        listing = cluster.exec("node2", ["ls", str(small)]).stdout.split()
        assert listing == ["filler", "resumable.pt"]
        cluster.exec("node2", ["rm", f"{small}/filler"])
        done = train(2, python).check()
        assert "goes on in epoch 1 after step 30" in done.stdout
        assert "epoch 2: " in done.stdout
    finally:
        subprocess.run([*cluster.enter("node2"), "umount", "--lazy", str(small)], check=True)


def _run(
    cluster: VirtualCluster, arguments: list[str], folder: Path, mpi: str | None = None
) -> list[str]:
    doubletime = [str(venv(mpi) / "bin" / "python"), "-m", "doubletime", "run"]
    options = ["--max-restarts", "3", "--ssh-config", str(cluster.folder / "ssh_config")]
    return [*cluster.enter("node1", folder), *doubletime, *options, *arguments]


def _check_epochs(output: str) -> None:
    """Each epoch of the story that counts: whole, each sample once."""
    first = re.search(r"goes on in epoch (\d+) after step (\d+)", output)
    assert first is not None, output
    assert 0 < int(first[2]) < 36  # in the midst of it
    before, after = output[: first.start()], output[first.end() :]
    assert "goes on" not in after
    told = re.findall(r"epoch (\d+): .* (\d+) samples, each seen (\d+) to (\d+) times", after)
    assert told == [(str(n), "1797", "1", "1") for n in range(int(first[1]), _EPOCHS + 1)]
    told = re.findall(r"epoch (\d+): .* each seen (\d+) to (\d+) times", before)
    assert {row[1:] for row in told} <= {("1", "1")}
    assert int(first[1]) - 1 <= len(told)


def _wait_for_checkpoint(folder: Path, job: Job) -> None:
    checkpoint = folder / "resumable.pt"
    _wait_until(lambda: checkpoint.exists() and "epoch 2:" in job.output()[0], job)


def _wait_until(is_so: Callable[[], bool], job: Job) -> None:
    end_s = time.monotonic() + 40
    while not is_so():
        assert time.monotonic() < end_s, job.output()
        assert job.process.poll() is None, job.output()
        time.sleep(0.02)
