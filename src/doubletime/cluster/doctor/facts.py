"""What is known of hosts before it is judged: what their agents told, and how links did."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from doubletime.cluster import implementations
from doubletime.cluster.ssh import Reply, Trouble

# As MPI_Get_library_version answers.
_LIBRARIES = (
    ("Open MPI", re.compile(r"Open MPI v(\d[\w.]*)")),
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library (\d[\w.]*)")),
    ("MVAPICH", re.compile(r"MVAPICH\d*\s+Version\s*:\s*(\d[\w.]*)")),
    ("MPICH", re.compile(r"MPICH Version:\s*(\d[\w.]*)")),
)
# Interfaces that lead to containers and virtual machines of the same host.
_INWARD = re.compile(r"(?:docker|virbr|veth|br-|cni|flannel|cali|lxc|lxd|podman|tun|tap)")
NFS = ("nfs", "nfs4")


@dataclass(frozen=True)
class Mpi:
    """An MPI, by its launcher or its library.

    Attributes:
        name: such as "MPICH"; a key of `implementations.DIALECTS`.
        version: as it tells.
    """

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def is_like(self, other: Mpi) -> bool:
        """Whether both are of one implementation and, by their first two numbers, one version."""
        return self.name == other.name and _two(self.version) == _two(other.version)


@dataclass(frozen=True)
class Interface:
    """A network interface that is up and has an IPv4 address.

    Attributes:
        name: such as `eth0`.
        address: this host's own on it.
        network: which it reaches directly, such as `10.0.0.0/24`.
        mbit_per_s: as the card tells; None where it does not.
        mtu: the longest packet in bytes, 0 where unknown.
        is_inward: whether it leads to this host's own containers, or to itself.
    """

    name: str
    address: str
    network: str
    mbit_per_s: int | None = None
    mtu: int = 0
    is_inward: bool = False


@dataclass(frozen=True)
class Busy:
    """A process that keeps cores busy: of whom, and how many."""

    pid: int
    user: str
    command: str
    cores: float


@dataclass(frozen=True)
class HostFacts:
    """What a host's agent told of it.

    Attributes:
        host: the name that it was asked by.
        record: all that it told, as `probe.facts` gives it.
        slots: how many ranks it is to take; None where nobody said.
        noise: what its login shell printed before anything was asked.
        clock_s: its clock less ours, in seconds; and how far that may be off.
        clock_error_s: see `clock_s`.
        seen_after_s: after how long it saw a file that another host wrote into the job's folder;
            None where it never did, or there is only one host.
        is_file_seen: whether it saw that file; None where that was not tried.
    """

    host: str
    record: Mapping[str, Any]
    slots: int | None = None
    noise: str = ""
    clock_s: float = 0.0
    clock_error_s: float = 0.0
    seen_after_s: float | None = None
    is_file_seen: bool | None = None

    @property
    def mpi(self) -> Mpi | None:
        """Of its mpiexec; None where there is none that we know."""
        found = self.record.get("mpiexec")
        known = implementations.parse(found["said"] or "") if found else None
        return Mpi(*known) if known else None

    @property
    def library(self) -> Mpi | None:
        """Of the library that mpi4py loads."""
        return library(str((self.record.get("library") or {}).get("text", "")))

    @property
    def packages(self) -> Mapping[str, str | None]:
        """Versions of Python packages; None for what is not there."""
        found: Mapping[str, str | None] = self.record["packages"]
        return found

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """Those that are up, loopback too."""
        return tuple(_interface(each) for each in self.record["interfaces"])

    @property
    def cores(self) -> int:
        """How many a job may use here."""
        found = self.record["cores"]
        own = int(found["own"])
        return max(1, min(own, int(found["quota"]))) if found["quota"] else own

    @property
    def busy(self) -> tuple[Busy, ...]:
        """Processes that keep cores busy, the greediest first."""
        return tuple(
            Busy(each["pid"], each["user"] or "?", each["command"], each["cores"])
            for each in self.record["busy"]
        )

    def address(self, others: Sequence[str]) -> str | None:
        """Its own address on the way to most of the others; None where no route leads to any."""
        routes = self.record["routes"]
        votes = Counter(routes[name] for name in others if routes.get(name))
        return votes.most_common(1)[0][0] if votes else None

    def interface(self, address: str | None) -> Interface | None:
        """The interface with an address."""
        return next((each for each in self.interfaces if each.address == address), None)


@dataclass(frozen=True)
class Connection:
    """How a TCP connection between two hosts went.

    Attributes:
        source, target: their names.
        address: that the target was reached at.
        network: which that is on.
        error: why it did not come about; None where it did.
        round_trip_s: the shortest of some; None where it did not come about.
        is_chosen: whether this is the way that jobs take, or merely another.
    """

    source: str
    target: str
    address: str
    network: str
    error: str | None = None
    round_trip_s: float | None = None
    is_chosen: bool = True


@dataclass(frozen=True)
class Rate:
    """What one host's TCP connection to another carried.

    Attributes:
        source, target: their names.
        bytes_per_s: in this direction.
        good_bytes_per_s: what good links of this cluster carry; 0 where that is not known.
    """

    source: str
    target: str
    bytes_per_s: float
    good_bytes_per_s: float = 0.0


@dataclass(frozen=True)
class Refused:
    """A login that led to no agent.

    Attributes:
        reply: exit code, what came on stdout and stderr.
        trouble: why ssh failed; None where it did not, but what it was to run.
        has_python: whether there is a Python at all, for all we know.
        is_locked: whether the host would take our key, were it not locked by a passphrase.
        is_inside: whether it let us in.
    """

    reply: Reply
    trouble: Trouble | None = None
    has_python: bool = True
    is_locked: bool = False
    is_inside: bool = False


@dataclass(frozen=True)
class Survey:
    """All that is known when checks begin.

    Attributes:
        here: of this machine, which starts jobs; among `hosts` or not.
        hosts: of all hosts that answered.
        refused: by host that let nobody in, what came of it.
        names: of all hosts that were asked for, in order.
        local: the name among them that is this machine; None where none is.
        known_hosts: by host, the file in which its host key belongs.
        ssh_lines: by host, a login by hand, to copy.
        folder, script, checkpoints: whole paths; the script may be None.
        connections, rates: between hosts.
        lost: by host, what was asked when it answered no more.
    """

    here: HostFacts
    hosts: tuple[HostFacts, ...]
    names: tuple[str, ...]
    folder: Path
    checkpoints: Path
    local: str | None = None
    script: Path | None = None
    refused: Mapping[str, Refused] = field(default_factory=dict)
    ssh_lines: Mapping[str, str] = field(default_factory=dict)
    known_hosts: Mapping[str, str] = field(default_factory=dict)
    connections: tuple[Connection, ...] = ()
    rates: tuple[Rate, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)

    @property
    def everywhere(self) -> tuple[HostFacts, ...]:
        """All machines: the hosts, and this one where it is none of them."""
        return self.hosts if self.local is not None else (self.here, *self.hosts)

    def at(self, host: str, command: str) -> str:
        """The line that runs a shell command on a host, from this machine."""
        if host in (self.local, self.here.host):
            return command
        return f"{self.ssh_lines.get(host, f'ssh {host}')} {shlex.quote(command)}"

    def is_looped(self, host: str) -> bool:
        """Whether this machine takes a host's name for itself."""
        known = self.here.record["names"].get(host, ())
        return host != self.local and any(is_loopback(each) for each in known)


def is_loopback(address: str) -> bool:
    """Whether an address means the host itself, such as Debian's 127.0.1.1."""
    return address.startswith("127.") or address == "::1"


def library(text: str) -> Mpi | None:
    """Which MPI a library says it is."""
    for name, pattern in _LIBRARIES:
        match = pattern.search(text)
        if match is not None:
            return Mpi(name, match[1])
    return None


def _two(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _interface(record: Mapping[str, Any]) -> Interface:
    address = ipaddress.ip_address(record["address"])
    network = ipaddress.ip_network(f"{address}/{record['width']}", strict=False)
    speed = record.get("mbit_per_s")
    return Interface(
        record["name"],
        str(address),
        str(network),
        speed if speed and speed > 0 else None,
        record.get("mtu") or 0,
        address.is_loopback
        or bool(record.get("is_virtual"))
        or _INWARD.match(record["name"]) is not None,
    )
