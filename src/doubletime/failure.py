"""The record of one failed rank: told by the rank to its watch, which hands it to the launcher.

A watch that takes records names a socket in the environment variable `DOUBLETIME_FAILURES`, for
the rank and all that the rank starts; the rank then leaves showing the record to the launcher,
which can put it last. A socket without a file: it needs no disk, which may be full, and leaves
nothing behind, however all end.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

VARIABLE = "DOUBLETIME_FAILURES"
# Who fails since a peer is gone waits so long, in seconds, before it says so: the peer's own end, which
# is noticed within this time, is the story.
PEER_IS_KNOWN_S = 1.0
_ANSWER_S = 2.0  # what the watch may take


class Failure(NamedTuple):
    """Why one rank ended.

    Attributes:
        rank: its rank in the job.
        host: the name of its host.
        exit_code: what the job is to exit with, 1 to 255.
        text: the traceback, or one line that says how it ended; ends in a newline.
        time_s: when, in seconds since the epoch.
        signal: that it died by; None where it did not, or has told its own story.
        is_bare: whether an exit code is all that is known.
        is_shown: whether the rank has shown it already, as an answer that was asked for: the job
            has failed, and there is nothing to add.
    """

    rank: int
    host: str
    exit_code: int
    text: str
    time_s: float
    signal: int | None = None
    is_bare: bool = False
    is_shown: bool = False

    def show(self) -> str:
        """The lines that a person reads: which rank, where, and its traceback."""
        if self.is_shown:
            return ""
        return f"doubletime: rank {self.rank} on host {self.host} failed:\n{self.text}"


def now(
    rank: int,
    exit_code: int,
    text: str,
    *,
    signal: int | None = None,
    is_bare: bool = False,
    is_shown: bool = False,
) -> Failure:
    """A record of this process failing at this moment; see `Failure`."""
    host = os.uname().nodename
    return Failure(rank, host, exit_code, text, time.time(), signal, is_bare, is_shown)


def write(failure: Failure) -> bool:
    """Leave the record to this rank's watch.

    A rank's first record stands: what it says later is about how it ended, not why.

    Returns:
        False where nobody takes records: the caller then shows the failure itself.
    """
    return _tell({"failure": failure._asdict()})


def enter() -> None:
    """Note that this rank has begun something that it must not leave without a word: its MPI job."""
    _tell({"inside": True})


def leave() -> None:
    """Note that it has left that in order."""
    _tell({"inside": False})


def address(name: str) -> str:
    """What a socket of this name is called to the kernel: in the space of names without files."""
    return f"\0{name}"


def _tell(message: Mapping[str, object]) -> bool:
    """Tell the watch and wait until it has heard; False where there is none, or it is gone."""
    name = os.environ.get(VARIABLE)
    if not name:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(address(name))
            connection.sendall(json.dumps(message).encode() + b"\n")
            return connection.recv(1) != b""
    except OSError:
        return False
