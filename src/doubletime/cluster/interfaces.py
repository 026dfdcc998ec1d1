"""This host's network interfaces, as the C library lists them.

psutil knows them too, but to load it would take each rank of a job half as long again as all else
that it loads before its program.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
from typing import NamedTuple

# Where an address stands in its sockaddr, of each family.
_ADDRESS = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}


class Interface(NamedTuple):
    """A network interface of this host.

    Attributes:
        name: such as `eth0`.
        address: this host's own on it.
        network: the network that it reaches directly, such as `10.0.0.0/24`.
    """

    name: str
    address: str
    network: str


class _IfAddrs(ctypes.Structure):
    """One address, as of getifaddrs(3)."""


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("target", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def own() -> dict[str, Interface]:
    """This host's interfaces by their addresses, IPv4 and IPv6.

    Raises:
        OSError: if the kernel does not tell.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "getifaddrs")
    found = {}
    try:
        entry = first
        while entry:
            each = entry.contents
            address, netmask = _packed(each.address), _packed(each.netmask)
            if address and netmask:
                known = _interface(each.name.decode(errors="surrogateescape"), address, netmask)
                found[known.address] = known
            entry = each.next
    finally:
        libc.freeifaddrs(first)
    return found


def _packed(sockaddr: int | None) -> bytes | None:
    """The address in a sockaddr; None where it is of another kind."""
    if not sockaddr:
        return None
    family = ctypes.c_ushort.from_address(sockaddr).value
    place = _ADDRESS.get(family)  # type: ignore[call-overload]
    return None if place is None else ctypes.string_at(sockaddr, place.stop)[place]


def _interface(name: str, address: bytes, netmask: bytes) -> Interface:
    own = ipaddress.ip_address(address)
    width = bin(int.from_bytes(netmask, "big")).count("1")
    return Interface(name, str(own), str(ipaddress.ip_network((address, width), strict=False)))
