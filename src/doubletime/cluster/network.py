"""The network interface that leads to the other hosts, told to each library in its own setting."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from doubletime.cluster import interfaces
from doubletime.cluster.interfaces import Interface as Interface

# All hosts of a job are reached alike, as a rule: asking for so many of them tells. A name service
# that does not answer is given up after a while; one that is slow, once something is known.
_ASKED = 8
_PATIENCE_S = 15.0
_PATIENCE_KNOWN_S = 1.0
_RDMA = Path("/sys/class/infiniband")


def settings(hosts: Sequence[str]) -> dict[str, str]:
    """The variables that make MPI, gloo and NCCL use the interface that leads to the other hosts.

    Asks this host's routing table, so the answer may differ between hosts, as interfaces' names do.
    What the user has set already is left as it is.

    Args:
        hosts: names of all hosts of the job, this one among them or not.

    Returns:
        Variables to set; none where no other host is known here, or all are this one.
    """
    found = interface_to(hosts)
    return {} if found is None else _unset(found)


def settings_for(meeting_point: str) -> dict[str, str]:
    """The same, for ranks who know of each other no more than the host where they meet.

    Args:
        meeting_point: name or address of a host, this one or another.
    """
    found = interface_to([meeting_point]) or _interface_at(meeting_point)
    return {} if found is None else _unset(found)


def _unset(found: Interface) -> dict[str, str]:
    wanted = variables(found, has_rdma=_RDMA.is_dir() and any(_RDMA.iterdir()))
    if "OMPI_MCA_btl_tcp_if_exclude" in os.environ:  # Open MPI refuses to hear both
        wanted.pop("OMPI_MCA_btl_tcp_if_include")
    return {name: value for name, value in wanted.items() if name not in os.environ}


def variables(interface: Interface, *, has_rdma: bool) -> dict[str, str]:
    """Each library's own name for "use this interface": pure.

    Args:
        interface: to use.
        has_rdma: whether there are RDMA devices. UCX chooses among them and all interfaces by one
            variable, which is then left alone: to name an Ethernet interface would forbid them.
    """
    return {
        "FI_TCP_IFACE": interface.name,  # libfabric: Intel MPI, MPICH
        "FI_SOCKETS_IFACE": interface.name,
        **({} if has_rdma else {"UCX_NET_DEVICES": interface.name}),  # MPICH, Open MPI
        "OMPI_MCA_btl_tcp_if_include": interface.network,
        "GLOO_SOCKET_IFNAME": interface.name,
        "NCCL_SOCKET_IFNAME": f"={interface.name}",  # without the sign it is a prefix
    }


def interface_to(hosts: Sequence[str]) -> Interface | None:
    """The interface by which most of the hosts are reached; None where no other host is known."""
    by_address = interfaces.own()
    votes: Counter[Interface] = Counter()
    begun_s = time.monotonic()
    for host in hosts:
        passed_s = time.monotonic() - begun_s
        if votes.total() >= _ASKED or passed_s > (_PATIENCE_KNOWN_S if votes else _PATIENCE_S):
            break
        source = source_address(host)
        if source is not None and source in by_address:
            votes[by_address[source]] += 1
    return votes.most_common(1)[0][0] if votes else None


def _interface_at(host: str) -> Interface | None:
    """The interface whose address a name of this host leads to; None for loopback."""
    own = interfaces.own()
    try:
        known = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    addresses = (str(target[0]) for *_, target in sorted(known, key=lambda row: row[0]))
    at = (own[each] for each in addresses if each in own)
    return next((each for each in at if not ipaddress.ip_address(each.address).is_loopback), None)


def is_here(host: str) -> bool:
    """Whether a name means this host: its own name, or one that leads to an address of its own."""
    if host in ("localhost", socket.gethostname()):
        return True
    own = interfaces.own()
    try:
        known = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    addresses = {str(target[0]) for *_, target in known}
    return any(each in own or ipaddress.ip_address(each).is_loopback for each in addresses)


def source_address(host: str) -> str | None:
    """This host's own address on the way to another host.

    Returns:
        None where the name is not known here, no route leads there, or it names this host.
    """
    own = interfaces.own()
    try:
        known = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, target in sorted(known, key=lambda row: row[0]):
        if ipaddress.ip_address(target[0]).is_loopback or target[0] in own:
            continue  # this host, or its name in its own /etc/hosts (127.0.1.1)
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(target)  # sends nothing; the kernel looks up the route
            except OSError:
                continue
            source = str(probe.getsockname()[0])
        if not ipaddress.ip_address(source).is_loopback:
            return source
    return None
