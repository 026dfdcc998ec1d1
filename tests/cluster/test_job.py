"""From what is asked for to what is started."""

import os
import shutil
import sys

import pytest

from doubletime.cluster import implementations, job
from doubletime.cluster.hosts import Host
from doubletime.cluster.job import Request
from doubletime.cluster.ssh import Ssh
from doubletime.environment import own_cores
from doubletime.errors import LaunchError

COMMAND = [sys.executable, "x.py"]
AWAY = (Host("192.0.2.7", 2), Host("192.0.2.8", 1))  # addresses that are nobody's
SLURM = {
    "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "192.0.2.[7-8]", "SLURM_TASKS_PER_NODE": "2,1",
    "SLURM_CONF": "/dev/null",
}  # fmt: skip


def prepared(**asked):
    return job.prepare(Request(COMMAND, **asked))


@pytest.fixture
def slurm(monkeypatch, tmp_path):
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_without_hosts_a_job_fills_this_host():
    found = prepared()
    assert not found.is_across
    assert found.placement.ranks == own_cores()
    assert "localhost" in found.plan.shell()
    assert prepared(ranks=3).placement.ranks == prepared(per_host=3).placement.ranks == 3
    assert prepared(ranks=4, per_host=4).placement.ranks == 4
    with pytest.raises(LaunchError, match="need 2 hosts; there are 1"):
        prepared(ranks=4, per_host=2)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", os.uname().nodename])
def test_a_single_host_that_is_this_one_needs_no_ssh(name):
    found = prepared(hosts=(Host(name, 2),))
    assert not found.is_across
    assert "ssh" not in found.plan.shell()
    assert found.placement.ranks == 2


def test_other_hosts_are_reached_by_ssh():
    found = prepared(hosts=AWAY)
    assert found.is_across
    assert shutil.which("ssh") in found.plan.shell()
    assert "BatchMode=yes" in found.plan.shell()
    assert found.placement.counts == (("192.0.2.7", 2), ("192.0.2.8", 1))


def test_what_the_user_has_set_for_ssh_stays_unless_an_ssh_is_named(monkeypatch):
    monkeypatch.setenv("HYDRA_LAUNCHER_EXTRA_ARGS", "-p 2222")
    assert "HYDRA_LAUNCHER_EXTRA_ARGS" not in prepared(hosts=AWAY).plan.environment
    named = prepared(hosts=AWAY, ssh=Ssh()).plan.environment
    assert "BatchMode=yes" in named["HYDRA_LAUNCHER_EXTRA_ARGS"]


def test_slurms_hosts_are_taken_unasked_and_reached_by_srun(slurm):
    found = prepared()
    assert found.is_across
    assert found.placement.counts == (("192.0.2.7", 2), ("192.0.2.8", 1))
    assert "ssh" not in found.plan.shell()
    assert prepared(per_host=1).placement.ranks == 2
    assert "BatchMode" not in prepared(hosts=AWAY[1:]).plan.shell()


def test_who_names_an_ssh_or_hosts_outside_the_allocation_gets_ssh(slurm):
    assert "BatchMode" in prepared(ssh=Ssh()).plan.shell()
    assert "BatchMode" in prepared(hosts=(*AWAY, Host("192.0.2.9"))).plan.shell()


def test_our_own_launcher_where_it_is_asked_for_or_no_mpi_is_there(monkeypatch, tmp_path):
    asked = prepared(hosts=AWAY, launcher="ssh", backend="gloo")
    assert asked.plan.argv[2] == "doubletime.cluster.sshexec"
    assert asked.plan.environment["DOUBLETIME_BACKEND"] == "gloo"
    with pytest.raises(LaunchError, match="needs one"):
        prepared(hosts=AWAY, launcher="ssh", backend="mpi")
    monkeypatch.setattr(implementations, "candidates", list)
    assert prepared(hosts=AWAY).plan.argv[2] == "doubletime.cluster.sshexec"
    for needs in ({"backend": "mpi"}, {"launcher": "mpi"}):
        with pytest.raises(LaunchError, match="no mpiexec"):
            prepared(hosts=AWAY, **needs)


def test_words_that_mean_nothing_are_refused():
    with pytest.raises(LaunchError, match="--backend 'glue' is none of mpi, gloo, nccl"):
        prepared(backend="glue")
    with pytest.raises(LaunchError, match="--launcher 'rsh' is none of mpi, ssh"):
        prepared(launcher="rsh")
    with pytest.raises(LaunchError, match="no no-such-ssh to reach hosts with"):
        prepared(hosts=AWAY, ssh=Ssh(("no-such-ssh",)))


def test_the_folder_is_named_as_the_shell_names_it(monkeypatch, tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real")
    monkeypatch.chdir(link)
    monkeypatch.setenv("PWD", str(link))
    assert str(link) in prepared(hosts=AWAY).plan.argv
    monkeypatch.setenv("PWD", "/")
    assert str(tmp_path / "real") in prepared(hosts=AWAY).plan.argv
