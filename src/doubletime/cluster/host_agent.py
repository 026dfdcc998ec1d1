"""A host's part of a job that `cluster.sshexec` starts: its ranks, their output, and their end.

It reads its orders from stdin and writes frames (`cluster.frames`) to stdout. Stdin is its lifeline
too: when it ends, or nothing comes over it for a while, the launcher is gone and the ranks end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import IO, NoReturn

import psutil

from doubletime.cluster import frames, network
from doubletime.cluster.frames import Frame
from doubletime.cluster.orphans import adopting_orphans
from doubletime.cluster.processes import Descendants

BEAT_S = 1.0
START, STILL_HERE = b"start", b"."
LENGTH_DIGITS = 8

_PR_SET_PDEATHSIG = 1
_HELD_S = 0.1  # an unfinished line: so that those of two ranks do not mingle
_CHUNK = 1 << 16
_ASK_FIRST_S = (0.0, 1.0)  # what ranks get after SIGTERM, where the job is to end
_LEFT_OVER_S = (0.3, 0.3)  # what processes get that outlive the last rank

_is_cut_off = threading.Event()


@dataclass(frozen=True)
class Order:
    """What a host is to start.

    Attributes:
        command: what each rank runs.
        folder: where.
        hosts: all of the job; ranks meet on the first.
        index: of this host among them.
        first_rank: the rank of the first of its ranks.
        ranks: how many here; `world_size` on all hosts.
        silence_s: seconds without a word after which the launcher is lost.
    """

    command: Sequence[str]
    folder: str
    hosts: Sequence[str]
    index: int
    first_rank: int
    ranks: int
    world_size: int
    silence_s: float

    def encode(self) -> bytes:
        """The bytes that stand for it."""
        return with_length(json.dumps(asdict(self)).encode())

    def environment(self, local_rank: int, address: str, port: str) -> dict[str, str]:
        """What torch's `env://` wants to find, as torchrun sets it."""
        return {
            "RANK": str(self.first_rank + local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }


def with_length(text: bytes) -> bytes:
    """A text behind its length, so that its reader takes no byte too many."""
    return b"%0*d" % (LENGTH_DIGITS, len(text)) + text


def main() -> NoReturn:
    """Carry out the orders on stdin."""
    order = Order(**json.loads(_take(int(_take(LENGTH_DIGITS)))))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end_by_signal)
    with adopting_orphans():
        try:
            _write(frames.MAGIC)
            _serve(order)
        except BrokenPipeError:  # the launcher is gone
            _end()
        finally:
            Descendants(before=()).end(_LEFT_OVER_S)
    _end_login()  # the lifeline's thread may have ended the ranks, and come no further
    os._exit(0)


def _serve(order: Order) -> None:
    try:
        os.chdir(order.folder)
    except OSError as error:
        _send(frames.REFUSAL, 0, f"{order.folder}: {error.strerror}".encode())
        return
    _send(frames.BEAT)  # ready to start
    starts: queue.Queue[tuple[str, str]] = queue.Queue()
    threading.Thread(target=_hold_lifeline, args=(starts, order.silence_s), daemon=True).start()
    with contextlib.ExitStack() as held:
        if order.index == 0:
            reserved = held.enter_context(reserve_port())
            meeting = f"{_own_address(order)} {reserved.getsockname()[1]}"
            _send(frames.MEETING, 0, meeting.encode())
        while True:
            try:
                address, port = starts.get(timeout=BEAT_S)
                break
            except queue.Empty:
                _send(frames.BEAT)
        _Ranks(order, address, port).watch()


def reserve_port() -> socket.socket:
    """A bound socket, whose port nobody gets by chance while it is open.

    Who asks for it by its number can have it, as torch's store does: both sockets allow to share
    the address, and this one does not listen.
    """
    try:
        reserved = socket.socket(socket.AF_INET6)
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        any_address = "::"
    except OSError:  # a host without IPv6
        reserved = socket.socket(socket.AF_INET)
        any_address = "0.0.0.0"
    try:
        reserved.bind((any_address, 0))
        # Only now: a port from the kernel shall not be one that is shared already.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except BaseException:
        reserved.close()
        raise
    return reserved


class _Ranks:
    """The ranks of this host that run."""

    def __init__(self, order: Order, address: str, port: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._streams: list[_Stream] = []
        shared = {**os.environ, **_network(order.hosts)}
        libc = ctypes.CDLL(None)  # loaded before the fork

        def end_with_us() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

        for local_rank in range(order.ranks):
            rank = order.first_rank + local_rank
            try:
                process = subprocess.Popen(
                    order.command,
                    env={**shared, **order.environment(local_rank, address, port)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    preexec_fn=end_with_us,
                )
            except OSError as error:
                said = f"{order.command[0]} cannot be started: {error.strerror}\n"
                _send(frames.STDERR, rank, said.encode())
                _send(frames.EXIT, rank, b"127")
                return
            assert process.stdout is not None  # noqa: S101 (both are pipes)
            assert process.stderr is not None  # noqa: S101
            for kind, pipe in ((frames.STDOUT, process.stdout), (frames.STDERR, process.stderr)):
                self._add(_Stream(kind, rank, pipe))
            self._running[rank] = process
            self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, rank)

    def watch(self) -> None:
        """Hand on what the ranks write, until the last has ended."""
        beat_s = time.monotonic()
        while self._running:
            is_holding = any(stream.held for stream in self._streams)
            for key, _ in self._selector.select(_HELD_S if is_holding else BEAT_S):
                if isinstance(key.data, _Stream):
                    self._relay(key.data)
                else:
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
                    self._note_end(key.data)
            for stream in self._streams:
                stream.release_held()
            if time.monotonic() - beat_s >= BEAT_S:
                beat_s = time.monotonic()
                _send(frames.BEAT)
        for stream in self._streams:  # of what outlived its rank
            self._drain(stream)

    def _add(self, stream: _Stream) -> None:
        self._streams.append(stream)
        self._selector.register(stream.descriptor, selectors.EVENT_READ, stream)

    def _relay(self, stream: _Stream) -> None:
        if not stream.read() and stream in self._streams:
            self._streams.remove(stream)
            self._selector.unregister(stream.descriptor)
            stream.close()

    def _drain(self, stream: _Stream) -> None:
        """Hand on what a stream holds now, without waiting for more."""
        while select.select([stream.descriptor], [], [], 0)[0] and stream.read():
            pass
        stream.flush()

    def _note_end(self, rank: int) -> None:
        code = self._running[rank].wait()
        for stream in self._streams:
            if stream.rank == rank:
                self._drain(stream)
        del self._running[rank]
        _send(frames.EXIT, rank, str(128 - code if code < 0 else code).encode())


class _Stream:
    """What one rank writes to stdout, or to stderr.

    Attributes:
        held: the beginning of a line, not handed on yet.
    """

    def __init__(self, kind: bytes, rank: int, pipe: IO[bytes]) -> None:
        self.kind, self.rank, self.descriptor = kind, rank, pipe.fileno()
        self._pipe = pipe  # may outlive the rank's Popen, which would close it
        self.held = b""
        self._read_s = 0.0

    def read(self) -> bool:
        """Hand on the whole lines of what is there; False where the stream has ended."""
        chunk = os.read(self.descriptor, _CHUNK)
        if not chunk:
            self.flush()
            return False
        self._read_s = time.monotonic()
        lines, end, rest = (self.held + chunk).rpartition(b"\n")
        self.held = rest
        if end:
            _send(self.kind, self.rank, lines + end)
        if len(rest) > _CHUNK:
            self.flush()
        return True

    def release_held(self) -> None:
        """Hand on the beginning of a line whose rest does not come."""
        if self.held and time.monotonic() - self._read_s > _HELD_S:
            self.flush()

    def close(self) -> None:
        """Let go of it, once it has ended."""
        self._pipe.close()

    def flush(self) -> None:
        """Hand on what is held."""
        held, self.held = self.held, b""
        if held:
            _send(self.kind, self.rank, held)


def _hold_lifeline(starts: queue.Queue[tuple[str, str]], silence_s: float) -> None:
    """In a thread of its own, as the main one may wait for the launcher to read: never returns."""
    for line in _lines(silence_s):
        if line.startswith(START):
            _, address, port = line.decode().split()
            starts.put((address, port))
    _end()


def _lines(silence_s: float) -> Iterator[bytes]:
    """The lines on stdin, until it ends or is silent for too long."""
    data = b""
    # A host that was frozen reads first what came meanwhile.
    while True:
        if not select.select([0], [], [], silence_s)[0]:
            _is_cut_off.set()
            return
        chunk = os.read(0, _CHUNK)
        if not chunk:
            return
        *lines, data = (data + chunk).split(b"\n")
        yield from lines


def _end_by_signal(_number: int, _frame: FrameType | None) -> None:
    _end()


def _end() -> NoReturn:
    """End all ranks and this process, whatever its threads do."""
    Descendants(before=()).end(_ASK_FIRST_S)
    _end_login()
    os._exit(1)


def _end_login() -> None:
    """Where the launcher is out of reach: its sshd would wait for a quarter of an hour to be rid of its last words."""
    if not _is_cut_off.is_set():
        return
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process().parent()
        if parent is not None and parent.name().startswith("sshd"):
            parent.terminate()


def _own_address(order: Order) -> str:
    """Where the others reach this host; by address, as its name may lead elsewhere on them."""
    if len(order.hosts) == 1:
        return "127.0.0.1"
    found = network.interface_to(order.hosts)
    return order.hosts[0] if found is None else found.address


def _network(hosts: Sequence[str]) -> Mapping[str, str]:
    return network.settings(hosts) if len(hosts) > 1 else {}


def _send(kind: bytes, rank: int = 0, payload: bytes = b"") -> None:
    _write(Frame(kind, rank, payload).encode())


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _take(count: int) -> bytes:
    """So many bytes of stdin."""
    data = b""
    while len(data) < count:
        chunk = os.read(0, count - len(data))
        if not chunk:
            sys.exit(1)
        data += chunk
    return data


if __name__ == "__main__":
    main()
