"""Faults of single hosts: their sshd, files, names, clock and firewall; they last as long as the cluster."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from vcluster import ssh
from vcluster.cluster import VirtualCluster
from vcluster.requirements import program

_CLOCK_SOURCE = Path(__file__).with_name("clock.c")


def stop_sshd(cluster: VirtualCluster, host: str) -> None:
    """End the sshd of a host; nothing listens on its port when this returns."""
    pid_file = cluster.folder / host / "sshd.pid"
    sshd = [p for p in cluster.host(host).machine.processes() if p.name() == "sshd"]
    for process in sshd:
        process.send_signal(signal.SIGKILL)
    for process in sshd:
        process.wait(5)
    pid_file.unlink()


def restart_sshd(cluster: VirtualCluster, host: str, settings: Mapping[str, str]) -> None:
    """Let the sshd of a host have other settings, such as {"PasswordAuthentication": "yes"}."""
    stop_sshd(cluster, host)
    port = next(port for port in cluster.state.ports() if port.name == host)
    ssh.start_server(cluster.folder, port, cluster.enter(host), settings)
    cluster.adopt()


def set_environment(cluster: VirtualCluster, host: str, variables: Mapping[str, str]) -> None:
    """Give logins to a host these variables."""
    words = {"TMPDIR": str(ssh.temporary(cluster.folder, host)), **variables}
    restart_sshd(cluster, host, {"SetEnv": " ".join(f"{k}={v}" for k, v in words.items())})


def set_clock(cluster: VirtualCluster, host: str, offset_s: int) -> None:
    """Let whatever logs in to a host see a clock that is so many seconds ahead."""
    library = cluster.folder / "clock.so"
    if not library.exists():
        compiler = [program("cc"), "-shared", "-fPIC", "-O1", "-o", str(library)]
        subprocess.run([*compiler, str(_CLOCK_SOURCE)], check=True)
    variables = {"LD_PRELOAD": str(library), "CLOCK_OFFSET_S": str(offset_s)}
    set_environment(cluster, host, variables)


def replace_file(
    cluster: VirtualCluster, host: str, path: Path, text: str, mode: int = 0o644
) -> None:
    """Put another file in a file's place, on one host only."""
    other = cluster.folder / host / f"other-{path.name}"
    other.write_text(text)
    other.chmod(mode)
    bind(cluster, host, other, path)


def bind(cluster: VirtualCluster, host: str, source: Path, target: Path) -> None:
    """Let a path of one host show what lies under another path."""
    run(cluster, host, "mount", "--bind", str(source), str(target))


def rename_entry(cluster: VirtualCluster, host: str, folder: Path, old: str, new: str) -> None:
    """Let an entry of a folder have another name, on one host only."""
    real, shown = (cluster.folder / host / f"{which}-{folder.name}" for which in ("real", "shown"))
    real.mkdir()
    shown.mkdir()
    for entry in folder.iterdir():
        (shown / (new if entry.name == old else entry.name)).symlink_to(real / entry.name)
    bind(cluster, host, folder, real)
    bind(cluster, host, shown, folder)


def hide_files(
    cluster: VirtualCluster, host: str, paths: Sequence[Path], path: str | None = None
) -> None:
    """Let files be no programs and folders be empty, on one host only; give its logins another PATH."""
    for each in paths:
        if each.is_dir():
            cluster.hide(host, each)
        elif each.exists():
            replace_file(cluster, host, each.resolve(), "")
    if path is not None:
        set_environment(cluster, host, {"PATH": path})


def set_names(cluster: VirtualCluster, host: str, changes: Mapping[str, str | None]) -> None:
    """Let a host know names by other addresses, or (None) not at all."""
    lines = []
    for line in (cluster.folder / "hosts").read_text().splitlines():
        address, name = line.split()
        changed = changes.get(name, address)
        lines += [f"{changed} {name}\n"] if changed else []
    replace_file(cluster, host, Path("/etc/hosts"), "".join(lines))


def drop_new_connections(cluster: VirtualCluster, host: str) -> None:
    """A firewall that lets in nothing but ssh, and says nothing about it."""
    rules = [
        "add table inet firewall",
        "add chain inet firewall input { type filter hook input priority 0 ; }",
        "add rule inet firewall input iifname eth0 tcp dport != 22 "
        "tcp flags & (syn | ack) == syn drop",
    ]
    run(cluster, host, program("nft"), "\n".join(rules))


def add_dead_interface(cluster: VirtualCluster, host: str, address: str) -> None:
    """An interface eth1 that is up and leads nowhere."""
    ip = program("ip")
    run(cluster, host, ip, "link", "add", "eth1", "type", "veth", "peer", "name", "nowhere")
    run(cluster, host, ip, "link", "set", "nowhere", "up")
    run(cluster, host, ip, "addr", "add", address, "dev", "eth1")
    run(cluster, host, ip, "link", "set", "eth1", "up")


def occupy(cluster: VirtualCluster, host: str) -> subprocess.Popen[bytes]:
    """Another job that keeps a core busy; ends with the host, or by whoever waits for it."""
    command = [*cluster.enter(host), "sh", "-c", "while :; do :; done"]
    busy = subprocess.Popen(command, start_new_session=True)
    end_s = time.monotonic() + 5
    while not any(p.cpu_times().user > 0.05 for p in cluster.job_processes(host)):
        if time.monotonic() > end_s:
            raise TimeoutError("nothing is busy")
        time.sleep(0.02)
    return busy


def run(cluster: VirtualCluster, host: str, *command: str) -> None:
    """Run a command on a host.

    Raises:
        RuntimeError: if it fails; with what it said.
    """
    done = cluster.exec(host, list(command))
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} on {host}: {done.stderr.strip()}")
