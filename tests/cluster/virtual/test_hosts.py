"""The hosts of a virtual cluster: apart from each other, reachable, breakable, and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from vcluster import state
from vcluster.cluster import VirtualCluster


def test_every_host_reaches_every_host_by_name(cluster: VirtualCluster) -> None:
    for host, following in zip(cluster.hosts, cluster.hosts[1:] + cluster.hosts[:1], strict=True):
        done = cluster.exec(host, [str(cluster.ssh), following, "hostname"])
        assert done.stdout == f"{following}\n", done.stderr
        ports = "".join(f"exec 3<>/dev/tcp/{name}/22 && echo {name};" for name in cluster.hosts)
        assert cluster.exec(host, ["bash", "-c", ports]).stdout.split() == cluster.hosts


def test_hosts_are_apart(cluster: VirtualCluster) -> None:
    def out(host: str, script: str) -> str:
        done = cluster.exec(host, ["sh", "-c", script])
        assert not done.returncode, done.stderr
        return done.stdout.strip()

    assert out("node1", "ls -d /proc/[0-9]* | wc -l") != "0"
    assert int(out("node1", "echo $$")) < 1000
    out("node1", "touch /dev/shm/mine")
    assert out("node1", "ls /dev/shm") == "mine"
    assert out("node2", "ls /dev/shm") == ""
    out("node1", "rm /dev/shm/mine")
    assert out("node1", "pwd") == str(Path.cwd())
    own = str(cluster.folder / "node2" / "tmp")
    assert out("node2", "echo $TMPDIR") == own
    assert out("node1", f"{cluster.ssh} node2 'echo $TMPDIR'") == own
    interfaces = {
        line.split(":")[0].strip() for line in out("node1", "cat /proc/net/dev").splitlines()[2:]
    }
    assert {"lo", "eth0"} <= interfaces
    namespaces = {
        out(host, f"readlink /proc/self/ns/{kind}")
        for host in cluster.hosts
        for kind in ("net", "pid", "ipc", "uts", "mnt")
    }
    assert len(namespaces) == 5 * len(cluster.hosts)


def test_a_login_reads_nothing_of_the_user(cluster: VirtualCluster) -> None:
    if not Path("~/.bashrc").expanduser().exists():
        pytest.skip("this user has no ~/.bashrc to stand aside")
    (cluster.folder / "node2" / "bashrc").write_text("echo noise")
    command = [str(cluster.ssh), "node2", "cat ~/.bashrc"]
    assert cluster.exec("node1", command).stdout == "noise\necho noise"
    (cluster.folder / "node2" / "bashrc").write_text("")
    assert cluster.exec("node1", command).stdout == ""


def test_orphans_leave_no_zombies(cluster: VirtualCluster) -> None:
    cluster.exec("node1", ["sh", "-c", "for i in 1 2 3; do (sleep 0.1 &) ; done"])
    time.sleep(0.3)
    states = cluster.exec("node1", ["sh", "-c", "cat /proc/[0-9]*/stat"]).stdout.splitlines()
    assert not [line for line in states if ") Z " in line]


def test_a_command_past_its_time_is_killed(cluster: VirtualCluster) -> None:
    with pytest.raises(TimeoutError, match=r"on node2 still ran after 0\.2 s"):
        cluster.exec("node2", ["sleep", "600"], timeout=0.2)
    end_s = time.monotonic() + 5  # a killed process has to be given time to die
    while cluster.job_processes("node2"):
        assert time.monotonic() < end_s, cluster.job_processes("node2")
        time.sleep(0.02)


def test_a_hidden_folder_is_empty_on_its_host_only(cluster: VirtualCluster, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    cluster.hide("node2", tmp_path)
    assert cluster.exec("node2", ["ls", str(tmp_path)]).stdout == ""
    assert cluster.exec("node1", ["ls", str(tmp_path)]).stdout == "data\n"
    cluster.reveal("node2", tmp_path)
    assert cluster.exec("node2", ["ls", str(tmp_path)]).stdout == "data\n"


def test_a_frozen_host_answers_again_when_thawed(cluster: VirtualCluster) -> None:
    login = [str(cluster.ssh), "node2", "echo", "here"]
    cluster.freeze("node2")
    with pytest.raises(TimeoutError):
        cluster.exec("node1", login, timeout=0.7)
    cluster.thaw("node2")
    assert cluster.exec("node1", login).stdout == "here\n"


def test_a_killed_host_is_gone_and_the_others_stay(own_cluster: VirtualCluster) -> None:
    with subprocess.Popen([*own_cluster.enter("node2"), "sleep", "600"]) as running:
        own_cluster.kill("node2")
        assert running.wait(5) != 0
    assert own_cluster.host("node2").machine.processes() == []
    login = [str(own_cluster.ssh), "-o", "ConnectTimeout=1", "node2", "true"]
    assert own_cluster.exec("node1", login).returncode == 255
    with pytest.raises(ProcessLookupError):
        own_cluster.enter("node2")
    own_cluster.shape("1gbit")
    own_cluster.lan()
    with pytest.raises(LookupError, match="has been killed"):
        own_cluster.cut("node2")
    with pytest.raises(LookupError, match="no host node3"):
        own_cluster.kill("node3")


def _traces(folder: Path) -> list[str]:
    """All that a cluster leaves in this machine: processes that name its folder, the folder itself."""
    found = [str(folder)] if folder.exists() else []
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or []):
            found.append(str(process))
    return found


def _interfaces() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir())


def test_nothing_is_left_after_down() -> None:
    interfaces = _interfaces()
    with VirtualCluster(hosts=2) as cluster:
        folder = cluster.folder
        pids = [process.pid for host in cluster.state.hosts for process in host.machine.processes()]
        cluster.wan("1gbit", "1ms")
        with subprocess.Popen([*cluster.enter("node1"), "sleep", "600"]) as running:
            assert _interfaces() == interfaces
            assert _traces(folder)
            cluster.down()
            assert running.wait(5) != 0
    assert _traces(folder) == []
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert _interfaces() == interfaces


def test_two_clusters_do_not_meet(cluster: VirtualCluster, own_cluster: VirtualCluster) -> None:
    assert cluster.folder != own_cluster.folder
    own_cluster.shape("10mbit")
    own_cluster.cut("node2")
    done = cluster.exec("node1", [str(cluster.ssh), "node2", "hostname"])
    assert done.stdout == "node2\n", done.stderr


def test_nothing_is_left_when_its_process_is_killed(own_cluster: VirtualCluster) -> None:
    program = (
        "import time; from vcluster.cluster import VirtualCluster\n"
        "with VirtualCluster(2) as cluster:\n"
        "    cluster.wan('1gbit', '1ms'); print(cluster.folder, flush=True); time.sleep(600)"
    )
    with _tests_python("-c", program) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().decode().strip())
        assert len(_traces(folder)) > 4
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    end_s = time.monotonic() + 5
    while left := _traces(folder):
        assert time.monotonic() < end_s, left
        time.sleep(0.02)


def test_what_a_dead_cluster_left_is_removed_by_the_next() -> None:
    with VirtualCluster(hosts=1) as cluster:
        dead = state.new_folder()
        state.write(dead, cluster.state)
        assert state.new_folder().rmdir() is None
        assert dead.exists()  # what it describes runs
    state.new_folder().rmdir()
    assert not dead.exists()


def test_the_command_keeps_a_cluster_between_calls(
    own_cluster: VirtualCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "cluster"

    def call(*words: str) -> str:
        with _tests_python("-m", "vcluster", *words, "--folder", str(folder)) as process:
            out, _ = process.communicate(timeout=30)
        assert not process.returncode, out
        return out.decode()

    try:
        assert call("up", "2").startswith("node1 10.77.0.11\nnode2 10.77.0.12\n")
        with pytest.raises(FileExistsError):
            VirtualCluster(2, folder).up()
        call("wan", "1gbit", "2ms")
        assert "round trip 4" in call("measure", "--nbytes", "1000000")
        call("kill", "node2")
        assert call("hosts") == "node1 10.77.0.11 up\nnode2 10.77.0.12 killed\n"
    finally:
        call("down")
    assert _traces(folder) == []
    with pytest.raises(LookupError, match="no virtual cluster is up"):
        VirtualCluster.at(folder)


def _tests_python(*words: str) -> subprocess.Popen[bytes]:
    """Python that finds what the tests find."""
    tests = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": tests},
    )


@pytest.mark.parametrize("count", [0, 65])
def test_a_number_of_hosts_that_cannot_be(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        VirtualCluster(count)
