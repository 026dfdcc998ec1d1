"""Where a launcher listens, and which hosts answer when they are called."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable, Sequence

from doubletime.cluster import interfaces, network

_ANSWERS_WITHIN_S = 1.0
_SSH_PORT = 22
_BACKLOG = 1024
_ASKED = 8  # hosts of a job are reached alike, and asking may be slow


def listen(*, is_within_host: bool) -> socket.socket:
    """A socket that others can connect to, from this host alone or from everywhere."""
    if is_within_host:
        return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    return socket.create_server(("", 0), backlog=_BACKLOG)


def addresses(hosts: Sequence[str]) -> tuple[str, ...]:
    """This host's addresses, those first by which the others are reached; all are tried at once."""
    if not hosts:
        return ("127.0.0.1",)
    towards = [network.source_address(host) for host in list(dict.fromkeys(hosts))[:_ASKED]]
    every = [
        address for address in interfaces.own() if not address.startswith(("127.", "::1", "fe80:"))
    ]
    found = [*(each for each in towards if each is not None), *every, os.uname().nodename]
    return tuple(dict.fromkeys(["127.0.0.1", *found]))


def answering(peers: Iterable[str]) -> set[str]:
    """Which hosts answer, if only to say that nobody listens."""
    calls: dict[socket.socket, str] = {}
    found = set()
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            family = socket.AF_INET6 if ":" in peer else socket.AF_INET
            call = socket.socket(family, socket.SOCK_STREAM)
            call.setblocking(False)
            call.connect_ex((peer, _SSH_PORT))
            calls[call] = peer
            selector.register(call, selectors.EVENT_WRITE)
        end_s = time.monotonic() + _ANSWERS_WITHIN_S
        while selector.get_map() and time.monotonic() < end_s:
            for key, _ in selector.select(max(0.0, end_s - time.monotonic())):
                call = key.fileobj  # type: ignore[assignment]
                code = call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code in (0, errno.ECONNREFUSED):
                    found.add(calls[call])
                selector.unregister(call)
    for call in calls:
        call.close()
    return found
