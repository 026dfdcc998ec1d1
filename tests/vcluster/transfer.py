"""What a link gives to a bare TCP connection: round trip and rate. Runs as a program on two hosts.

`python transfer.py serve ADDRESS` prints its port; `python transfer.py send ADDRESS PORT NBYTES`
prints the measurement as JSON. Standard library only.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time

_PINGS = 21
_PIECE_NBYTES = 1 << 16
# What a shaped link lets through at once does not count.
_WARM_UP_NBYTES = 1 << 20


def serve(address: str) -> None:
    """Answer one sender."""
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PINGS):
            connection.sendall(_receive(connection, 1))
        nbytes = int.from_bytes(_receive(connection, 8), "big")
        _drain(connection, _WARM_UP_NBYTES)
        began_s = time.monotonic()
        _drain(connection, nbytes)
        microseconds = round((time.monotonic() - began_s) * 1e6)
        connection.sendall(microseconds.to_bytes(8, "big"))


def send(address: str, port: int, nbytes: int) -> dict[str, float]:
    """Measure the link to one server.

    Args:
        address: of the server.
        port: that it printed.
        nbytes: how much to send.

    Returns:
        round_trip_s: the median of 1 byte there and back; bytes_per_s: as the receiver saw it.
    """
    with socket.create_connection((address, port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times_s = []
        for _ in range(_PINGS):
            began_s = time.monotonic()
            connection.sendall(b"x")
            _receive(connection, 1)
            times_s.append(time.monotonic() - began_s)
        connection.sendall(nbytes.to_bytes(8, "big"))
        piece = bytes(_PIECE_NBYTES)
        for start in range(0, _WARM_UP_NBYTES + nbytes, _PIECE_NBYTES):
            connection.sendall(piece[: _WARM_UP_NBYTES + nbytes - start])
        took_s = int.from_bytes(_receive(connection, 8), "big") / 1e6
    return {"round_trip_s": statistics.median(times_s), "bytes_per_s": nbytes / took_s}


def _receive(connection: socket.socket, nbytes: int) -> bytes:
    received = b""
    while len(received) < nbytes:
        part = connection.recv(nbytes - len(received))
        if not part:
            raise ConnectionError("the other end closed the connection")
        received += part
    return received


def _drain(connection: socket.socket, nbytes: int) -> None:
    room = bytearray(_PIECE_NBYTES)
    while nbytes:
        got = connection.recv_into(room, min(nbytes, len(room)))
        if not got:
            raise ConnectionError("the other end closed the connection")
        nbytes -= got


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        print(json.dumps(send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
