"""Jobs that start again: a host dies in the midst of an epoch, and each sample is still seen once."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ranks import ROOT, Job, start_command, venv
from vcluster.cluster import VirtualCluster

_EXAMPLE = ROOT / "examples" / "resumable.py"
_EPOCHS = 12


@pytest.mark.parametrize("how", ["mpich", "ssh"])
def test_a_host_dies_and_the_others_go_on_in_the_same_epoch(tmp_path: Path, how: str) -> None:
    """Over an MPI, and over our own launcher and gloo."""
    launcher = ["--launcher", "ssh"] if how == "ssh" else []
    with VirtualCluster(hosts=3) as cluster:
        words = _run(cluster, ["--hosts", "node[1-3]", "--min-hosts", "2", *launcher], tmp_path)
        with start_command(words) as job:
            _wait_for_checkpoint(tmp_path, job)
            cluster.kill("node3")
            killed_s = time.monotonic()
            _wait_until_told(job, "restart 1 of 3, on node1, node2")
            assert time.monotonic() - killed_s < 25
            done = job.wait(100).check()
        assert cluster.settle() == []
    assert "doubletime: host node3 is left out: " in done.stderr
    assert "doubletime: the job has ended well, after 1 restart" in done.stderr
    _check_epochs(done.stdout)
    (log,) = tmp_path.glob("restarts-*.log")
    assert "host node3 is left out" in log.read_text()


def test_hosts_that_cannot_take_ranks_are_found(cluster: VirtualCluster, tmp_path: Path) -> None:
    ask = f"""
from doubletime.cluster import health
from doubletime.cluster.ssh import Ssh
for each in health.examine({cluster.hosts}, Ssh(({str(cluster.ssh)!r},)), {str(tmp_path)!r}):
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
    assert said[3].startswith("node4 it does not answer")


def test_a_disk_that_is_full_leaves_the_last_checkpoint_whole(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "small", str(small)]
    subprocess.run([*cluster.enter("node1"), *mount], check=True)

    def train(epochs: int, launcher: list[str]):  # type: ignore[no-untyped-def]
        words = [*cluster.enter("node1", tmp_path), *launcher, str(_EXAMPLE), str(small)]
        with start_command([*words, str(epochs)]) as job:
            return job.wait(60)

    python = [sys.executable]
    try:
        train(1, python).check()
        fill = f"head -c 250k /dev/zero >{small}/filler; ls {small}"
        assert "resumable.pt" in cluster.exec("node1", ["sh", "-c", fill]).stdout
        ranks = [*python, "-m", "doubletime", "run", "-n", "2"]
        failed = train(3, ranks)
        assert failed.exit_code == 1
        said = f"{small}/resumable.pt: No space left on device; the checkpoint before is whole"
        assert failed.stderr.splitlines()[-1] == said
        listing = cluster.exec("node1", ["ls", str(small)]).stdout.split()
        assert listing == ["filler", "resumable.pt"]
        cluster.exec("node1", ["rm", f"{small}/filler"])
        done = train(2, python).check()
        assert "goes on in epoch 1 after step 30" in done.stdout
        assert "epoch 2: " in done.stdout
    finally:
        subprocess.run([*cluster.enter("node1"), "umount", "--lazy", str(small)], check=True)


def _run(cluster: VirtualCluster, options: list[str], folder: Path) -> list[str]:
    doubletime = [str(venv() / "bin" / "python"), "-m", "doubletime", "run", "--max-restarts", "3"]
    reach = ["--ssh-config", str(cluster.folder / "ssh_config")]
    example = [str(_EXAMPLE), str(folder), str(_EPOCHS)]
    return [*cluster.enter("node1", folder), *doubletime, *reach, *options, *example]


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
    end_s = time.monotonic() + 40
    while not (folder / "resumable.pt").exists() or "epoch 2:" not in job.output()[0]:
        assert time.monotonic() < end_s, job.output()
        assert job.process.poll() is None, job.output()
        time.sleep(0.02)


def _wait_until_told(job: Job, line: str) -> None:
    end_s = time.monotonic() + 40
    while line not in job.output()[1]:
        assert time.monotonic() < end_s, job.output()
        assert job.process.poll() is None, job.output()
        time.sleep(0.05)
