"""A virtual cluster: bring it up, reach its hosts, break them, take it down."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import psutil

from vcluster import links, namespaces, requirements, ssh, state
from vcluster.links import Port
from vcluster.namespaces import Machine
from vcluster.state import Host, State

# First processes. Both reap what is orphaned: `wait` does, for all children of the shell.
# $1 is what to wait for: `cat` ends with whoever holds its stdin, `sleep infinity` by being killed.
# What one connection may have in a host's queue is what Linux 4.20 to 6.16 let it: of the 4 MiB of newer
# ones, several connections would fill this one queue (tbf's) for so long that they wait for each other,
# which a network card's fair queues do not let happen.
_SWITCH = """
exec 3<&0
echo ready
exec >/dev/null
$1 <&3 & wait $! || true
kill -9 -1 2>/dev/null || true
rm -rf -- "$2"
"""
_HOST = """
hostname "$1"
mount -t proc proc /proc
mount -t tmpfs -o mode=1777 shm /dev/shm
mount --bind "$2" /etc/hosts
if [ -e "$4" ]; then mount --bind "$3" "$4"; fi
if [ -w /proc/sys/net/ipv4/tcp_limit_output_bytes ]; then
    echo 1048576 >/proc/sys/net/ipv4/tcp_limit_output_bytes
fi
echo ready
exec >/dev/null
sleep infinity & wait $!
"""
_SETTLE_S = 5.0  # what a job's last processes may take to end
_LARGEST = 64


class VirtualCluster:
    """Several hosts on this machine: node1, node2, … with names, addresses, sshd and links of their own.

    They share this machine's files, cores and memory; networks, processes, /dev/shm and host names are
    apart. As a context manager it ends with the block, and with this process however that ends.

    Args:
        hosts: how many, 1 to 64.
        folder: where its files go; None makes one that no other cluster has. All hosts see it.
        outlives_us: whether it stays when this process ends; someone then has to call `down`.
    """

    def __init__(
        self, hosts: int, folder: Path | None = None, *, outlives_us: bool = False
    ) -> None:
        if not 1 <= hosts <= _LARGEST:
            raise ValueError(f"{hosts} hosts: a virtual cluster has 1 to {_LARGEST}")
        self._count = hosts
        self._given_folder = folder
        self._outlives_us = outlives_us
        self._folder: Path | None = None
        self._state: State | None = None
        # What to wait for once it has ended, and the pipe that keeps it up.
        self._children: list[subprocess.Popen[bytes]] = []
        self._wan: subprocess.Popen[bytes] | None = None

    @classmethod
    def at(cls, folder: Path) -> VirtualCluster:
        """The cluster that another process brought up in this folder.

        Raises:
            LookupError: if there is none.
        """
        found = state.read(folder)
        if found is None:
            raise LookupError(f"no virtual cluster is up in {folder}")
        cluster = cls(len(found.hosts), folder, outlives_us=True)
        cluster._folder, cluster._state = folder, found
        return cluster

    # -- up and down ------------------------------------------------------------------------------

    def up(self) -> None:
        """Make all hosts; when this returns each reaches each by ssh.

        Raises:
            PermissionError: if this process may not make namespaces.
            FileNotFoundError: if a program is missing; names its package.
            FileExistsError: if a cluster is up in the folder.
        """
        refusal = requirements.refusal()
        if refusal:
            raise PermissionError(refusal)
        missing = requirements.missing_packages()
        if missing:
            raise FileNotFoundError(f"apt-get install {' '.join(missing)}")
        self._folder = self._new_folder()
        try:
            self._build()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End all processes of all hosts and remove links and files; nothing is left when this returns."""
        if self._state is not None:
            self._state.switch.end()
            self._state = None
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()
            child.wait()
        self._children.clear()
        if self._wan is not None:
            self._wan.wait()
            self._wan = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> VirtualCluster:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.down()

    def _new_folder(self) -> Path:
        if self._given_folder is None:
            return state.new_folder()
        if state.read(self._given_folder) is not None:
            raise FileExistsError(f"a virtual cluster is up in {self._given_folder}: end it first")
        shutil.rmtree(self._given_folder, ignore_errors=True)
        self._given_folder.mkdir(parents=True)
        return self._given_folder

    def _build(self) -> None:
        names = [f"node{index + 1}" for index in range(self._count)]
        addresses = [links.address(index) for index in range(self._count)]
        named = list(zip(names, addresses, strict=True))
        ssh.prepare(self.folder, named)
        lines = ["127.0.0.1 localhost", *(f"{where} {name}" for name, where in named)]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")

        switch, parent = namespaces.start(
            _SWITCH,
            ["sleep infinity" if self._outlives_us else "cat", str(self.folder)],
            ["net"],
            self.folder / "switch.log",
            stdin=subprocess.DEVNULL if self._outlives_us else subprocess.PIPE,
        )
        self._children.append(parent)
        self._keep(State(switch, ()))
        links.make_bridge(switch)
        machines = [self._start_host(switch, name) for name in names]
        ports = [
            Port(name, index, machine)
            for index, (name, machine) in enumerate(zip(names, machines, strict=True))
        ]
        links.plug(switch, ports)
        hosts = []
        for port in ports:
            temporary = ssh.temporary(self.folder, port.name)
            ssh.start_server(self.folder, port, _enter(port.machine, temporary))
            own = tuple(process.pid for process in port.machine.processes())
            hosts.append(Host(port.name, port.address, port.machine, own))
        self._keep(State(switch, tuple(hosts)))

    def _start_host(self, switch: Machine, name: str) -> Machine:
        own = self.folder / name
        own.mkdir()
        # A login reads this file instead of the user's: that one may be slow, talk, or be hurt when
        # a job is killed in the middle of it. A test may write something to it.
        (own / "bashrc").touch()
        (own / "tmp").mkdir()
        machine, parent = namespaces.start(
            _HOST,
            [
                name,
                str(self.folder / "hosts"),
                str(own / "bashrc"),
                str(Path("~/.bashrc").expanduser()),
            ],
            ["net", "mount", "uts", "ipc"],
            own / "init.log",
            within=switch,
        )
        self._children.append(parent)
        return machine

    def _keep(self, new: State) -> None:
        self._state = new
        state.write(self.folder, new)

    # -- what it is -------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Its files; every host sees them under the same path."""
        if self._folder is None:
            raise LookupError("this virtual cluster is not up")
        return self._folder

    @property
    def ssh(self) -> Path:
        """A command like `ssh` that reaches every host from every host; to give to mpiexec."""
        return self.folder / "ssh"

    @property
    def state(self) -> State:
        """Its machines."""
        if self._state is None:
            raise LookupError("this virtual cluster is not up")
        return self._state

    @property
    def hosts(self) -> list[str]:
        """The names of all hosts, in order."""
        return [host.name for host in self.state.hosts]

    def host(self, name: str) -> Host:
        """One host by its name.

        Raises:
            LookupError: if there is none of this name.
        """
        for host in self.state.hosts:
            if host.name == name:
                return host
        raise LookupError(f"no host {name}: there are {', '.join(self.hosts)}")

    # -- programs on hosts ------------------------------------------------------------------------

    def enter(self, host: str, folder: Path | None = None) -> list[str]:
        """The words that go before a command to run it on a host, in a folder (None: the current one)."""
        return _enter(self.host(host).machine, ssh.temporary(self.folder, host), folder)

    def exec(
        self,
        host: str,
        command: Sequence[str],
        *,
        timeout: float = 30,
        env: Mapping[str, str] | None = None,
        text: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host and wait for it.

        Args:
            host: its name.
            command: the program and its arguments.
            timeout: seconds; past it the command is killed.
            env: variables to add.
            text: what it reads.

        Raises:
            TimeoutError: if it does not end in time; with what it wrote.
        """
        process = subprocess.Popen(
            [*self.enter(host), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(text, timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            message = f"{' '.join(command)} on {host} still ran after {timeout} s\n{stdout}{stderr}"
            raise TimeoutError(message) from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return subprocess.CompletedProcess(list(command), process.returncode, stdout, stderr)

    def job_processes(self, host: str) -> list[psutil.Process]:
        """What runs on a host and is not the host's own: ranks, proxies of mpiexec, logins."""
        found = self.host(host)
        return [each for each in found.machine.processes() if each.pid not in found.own_pids]

    def adopt(self) -> None:
        """Count all that runs on the hosts now, such as a batch system's daemons, as the hosts' own."""
        hosts = (
            replace(host, own_pids=tuple(each.pid for each in host.machine.processes()))
            for host in self.state.hosts
        )
        self._keep(State(self.state.switch, tuple(hosts)))

    def settle(self) -> list[str]:
        """Wait until no host runs anything of a job; kill what does not end by itself.

        Returns:
            What had to be killed: host and process.
        """
        end_s = time.monotonic() + _SETTLE_S
        while self._left():
            if time.monotonic() > end_s:
                return self.end_jobs()
            time.sleep(0.05)
        return []

    def end_jobs(self) -> list[str]:
        """Kill all that runs on any host and is not the host's own.

        Returns:
            What was killed: host and process.
        """
        killed: set[str] = set()
        end_s = time.monotonic() + _SETTLE_S
        while left := self._left():
            for host, process in left:
                killed.add(f"{host}: {process}")
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            if time.monotonic() > end_s:
                raise TimeoutError(f"cannot kill {left}")
            time.sleep(0.02)
        return sorted(killed)

    def _left(self) -> list[tuple[str, psutil.Process]]:
        return [(host, process) for host in self.hosts for process in self.job_processes(host)]

    # -- links ------------------------------------------------------------------------------------

    def shape(self, rate: str, hosts: Sequence[str] | None = None) -> None:
        """Limit what each host (None: every one) sends and receives to a rate such as "1gbit"; or "off"."""
        for port in self._ports(hosts):
            links.shape(self.state.switch, port, rate)

    def wan(self, rate: str, delay: str) -> None:
        """Give every link a rate in both directions and a one-way delay, until `lan`."""
        links.bytes_per_s(rate), links.microseconds(delay)  # before anything is unplugged
        self._end_wan()
        links.unplug(self.state.ports())
        ports = self.state.ports()
        self._wan = links.start_wan(self.state.switch, ports, self.folder, rate, delay)

    def lan(self) -> None:
        """Links as at the start: no delay, no rate but the machine's."""
        self._end_wan()
        links.unplug(self.state.ports())
        links.plug(self.state.switch, self.state.ports())

    def cut(self, host: str) -> None:
        """Drop every packet from and to a host, silently."""
        links.cut(*self._ports([host]))

    def heal(self, host: str) -> None:
        """Let the packets of a host pass again."""
        links.heal(*self._ports([host]))

    def _end_wan(self) -> None:
        # By its name: it may have been started by another process, which knew this cluster.
        for process in self.state.switch.processes():
            if process.name() == "wan":
                process.kill()
                process.wait(_SETTLE_S)
        if self._wan is not None:
            self._wan.wait()
            self._wan = None

    def _ports(self, hosts: Sequence[str] | None) -> list[Port]:
        if hosts is None:
            return self.state.ports()
        running = {port.name: port for port in self.state.ports()}
        for name in hosts:
            self.host(name)
            if name not in running:
                raise LookupError(f"host {name} has been killed")
        return [running[name] for name in hosts]

    # -- harm -------------------------------------------------------------------------------------

    def kill(self, host: str) -> None:
        """End a host: every process of it, sshd too, and its link. It does not come back."""
        self.host(host).machine.end()

    def freeze(self, host: str) -> None:
        """Stop every process of a host, as a machine does that swaps or whose power is saved."""
        self._signal(host, signal.SIGSTOP)

    def thaw(self, host: str) -> None:
        """Let the processes of a frozen host go on."""
        self._signal(host, signal.SIGCONT)

    def hide(self, host: str, path: Path) -> None:
        """Put an empty folder in a folder's place, on one host only."""
        mount = ["mount", "-t", "tmpfs", "hidden", str(path)]
        subprocess.run([*self.enter(host), *mount], check=True)

    def reveal(self, host: str, path: Path) -> None:
        """Undo `hide`."""
        subprocess.run([*self.enter(host), "umount", "--lazy", str(path)], check=True)

    def _signal(self, host: str, number: signal.Signals) -> None:
        for process in self.host(host).machine.processes():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue


def _enter(machine: Machine, temporary: Path, folder: Path | None = None) -> list[str]:
    # nsenter into another mount namespace ends up in its root folder.
    env = ["env", f"--chdir={folder or Path.cwd()}", f"TMPDIR={temporary}"]
    return [*machine.enter("net", "uts", "mount", "ipc", "pid"), *env]
