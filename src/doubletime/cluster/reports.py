"""Where a rank, and all that it starts, tell their watch how they fare (`doubletime.failure`)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from typing import Any

from doubletime import failure
from doubletime.failure import Failure

_TELLS_WITHIN_S = 0.5  # who calls speaks at once
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Reports:
    """A watch's open ear.

    Attributes:
        name: for the rank's environment.
        record: the first one that came.
        is_inside: whether the rank is in the midst of something that it must not leave unsaid.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.name = f"doubletime-{os.getpid()}-{os.urandom(8).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(failure.address(self.name))
        self._socket.listen()
        self._socket.setblocking(False)
        self.record: Failure | None = None
        self.is_inside = False

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close, in this process."""
        self._socket.close()

    def listen(self) -> None:
        """Take all that has come."""
        while True:
            try:
                caller, _ = self._socket.accept()
            except BlockingIOError:
                return
            with (
                caller,
                contextlib.suppress(OSError, ValueError, TypeError),
            ):  # it died in the midst
                caller.settimeout(_TELLS_WITHIN_S)
                credentials = caller.getsockopt(
                    socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
                )
                if _CREDENTIALS.unpack(credentials)[1] == os.geteuid():
                    self._take(json.loads(_line(caller)))
                    caller.sendall(b"\0")

    def _take(self, message: dict[str, Any]) -> None:
        if "inside" in message:
            self.is_inside = bool(message["inside"])
        if "failure" in message and self.record is None:
            # A job within the job counts its ranks anew.
            self.record = Failure(**message["failure"])._replace(rank=self._rank)


def _line(caller: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        chunk = caller.recv(1 << 16)
        if not chunk:
            break
        received += chunk
    return received
