"""What the launcher and the watches of its ranks say to each other, and how they hold the line.

Each rank's watch connects to the launcher, at one of the addresses in `DOUBLETIME_CONTROL`. A
message is one line of JSON. Nothing that is said depends on what has been said before, so that
either end can say all that matters once more when the line had to be made anew:

* a watch: `hello` (token, rank, host, pid, and what it has `seen` of the program in a job across
  hosts), `failure` (the rank's record), `end` (the rank is over);
* the launcher: `welcome` (silence_s, tag, log_folder, shm_prefixes, and the job's age_s), `begin`
  (whether all hosts are there, so that the program may start), `pause` (whether ranks are to stand
  still, as the launcher does), `orders` (all signals so far that are to end the rank);
* both, every second: `{}`.

A line that is silent for `silence_s` seconds is lost, however whole it looks: a host that is cut
off, frozen or without power closes no connection.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from doubletime.errors import LaunchError

VARIABLE = "DOUBLETIME_CONTROL"
SILENCE_VARIABLE = "DOUBLETIME_SILENCE_S"
HEARTBEAT_S = 1.0
# A link that is cut for 3 s is back before this, with a second for each end to notice; and once a host
# is given up there is time to end all of the job within 10 s.
DEFAULT_SILENCE_S = 6.0
_LEAST_SILENCE_S = 2 * HEARTBEAT_S
_LONGEST_LINE = 16 << 20  # a traceback may be long; a stranger's noise must not fill the memory

Message = Mapping[str, Any]


class Address(NamedTuple):
    """Where a launcher listens.

    Attributes:
        hosts: its host's addresses, one of which leads there from wherever a rank is.
        port: the same on all.
        token: what tells this job's watches from strangers.
    """

    hosts: tuple[str, ...]
    port: int
    token: str

    def __str__(self) -> str:
        return f"{','.join(self.hosts)}:{self.port}:{self.token}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read what `str` makes.

        Raises:
            LaunchError: if it is nothing of the kind.
        """
        try:
            hosts, port, token = text.rsplit(":", 2)
            return cls(tuple(hosts.split(",")), int(port), token)
        except ValueError as error:
            raise LaunchError(f"{VARIABLE}={text!r} is no address:port:token") from error


def silence_s(environ: Mapping[str, str] = os.environ) -> float:
    """Seconds without a word after which a host is given up.

    Raises:
        LaunchError: if the variable is set to no number, or to less than two heartbeats.
    """
    text = environ.get(SILENCE_VARIABLE)
    if not text:
        return DEFAULT_SILENCE_S
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _LEAST_SILENCE_S <= value < float("inf"):
        raise LaunchError(
            f"{SILENCE_VARIABLE}={text!r} is no number of seconds from {_LEAST_SILENCE_S:g} on",
            f"unset it ({DEFAULT_SILENCE_S:g} s), or set it to 30, say",
        )
    return value


class Line:
    """One end of a connection; nothing here ever waits.

    Attributes:
        socket: to select on.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._received = b""
        self._unsent = b""

    def fileno(self) -> int:
        """For select."""
        return self.socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether to select for writing, and then to `flush`."""
        return bool(self._unsent)

    @property
    def is_within_host(self) -> bool:
        """Whether both ends are on one host: then only an end of a process breaks the line."""
        try:
            return bool(self.socket.getpeername()[0] == self.socket.getsockname()[0])
        except OSError:
            return False

    def send(self, message: Message) -> None:
        """Send, now or in `flush`; a heartbeat that finds the line full is left out.

        Raises:
            ConnectionError: if the line is broken.
        """
        if not message and self._unsent:
            return
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what could not be sent before.

        Raises:
            ConnectionError: if the line is broken.
        """
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionError(error.errno, str(error)) from error

    def receive(self) -> Sequence[Message]:
        """The whole messages that have come.

        Raises:
            ConnectionError: if the line has been closed or is broken, or the other end talks no JSON.
        """
        try:
            chunk = self.socket.recv(1 << 16)
        except BlockingIOError:
            return ()
        except OSError as error:
            raise ConnectionError(error.errno, str(error)) from error
        if not chunk:
            raise ConnectionError("the other end closed the connection")
        *lines, self._received = (self._received + chunk).split(b"\n")
        if len(self._received) > _LONGEST_LINE:
            raise ConnectionError("a line that does not end")
        try:
            found = [json.loads(line) for line in lines]
        except ValueError as error:
            raise ConnectionError(str(error)) from error
        if not all(isinstance(each, dict) for each in found):
            raise ConnectionError("no message")
        return found

    def keep_alive(self, limit_s: float) -> None:
        """Have the system ask whether the other host is there, as its process is silent for now."""
        every_s = max(1, int(limit_s / 3))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            self.socket.setsockopt(socket.IPPROTO_TCP, option, every_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def close(self) -> None:
        """Close this end, in this process."""
        self.socket.close()


class Silence:
    """How long nothing has been heard, in seconds during which this process could have heard it.

    A process that was itself stopped (Ctrl-Z, a machine asleep) must not blame the others.
    """

    def __init__(self, now: float) -> None:
        self._looked = now
        self._length_s = 0.0

    def heard(self, now: float) -> None:
        """Something has come."""
        self._looked, self._length_s = now, 0.0

    def length_s(self, now: float) -> float:
        """How long it has been; to be asked at least every second."""
        self._length_s += min(now - self._looked, HEARTBEAT_S)
        self._looked = now
        return self._length_s
