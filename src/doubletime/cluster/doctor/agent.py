"""What runs on a host while it is looked at: answers commands, one JSON line each, until its stdin ends.

Like `probe`, this file's text is sent to hosts: standard library only, Python 3.6 or later. One login
serves the whole visit, however many questions: logins are what takes time.
"""

import json
import os
import signal
import socket
import struct
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MARK = "doubletime-doctor:"  # what a login shell prints has none
_IDLE_S = 120  # whoever asks nothing for so long has gone
_CONNECT_S = 2.0
_PINGS = 2  # the first may wait for the other end's thread
_AT_ONCE = 64
_BUFFER_NBYTES = 1 << 18
# Of a transfer the beginning is not counted: there the links' queues fill and TCP starts slowly.
_UNCOUNTED = 0.3
_PING, _RATE = b"P", b"R"
_written: "set[str]" = set()  # files that are to go


def serve(facts: "Callable[[dict[str, Any]], dict[str, Any]]") -> None:
    """Say hello, then answer what comes: {"do": name, …} each."""
    listener = _Listener()
    commands: dict[str, Callable[[dict[str, Any]], Any]] = {
        "facts": facts,
        "clock": lambda _: time.time(),
        "listen": lambda _: listener.start(),
        "connect": lambda asked: _connect_all(asked["targets"]),
        "rate": lambda asked: _rate(asked["address"], asked["port"], asked["seconds"]),
        "write": lambda asked: _write(asked["path"], asked["text"]),
        "read": lambda asked: _read(asked["path"], asked["text"], asked["wait_s"]),
        "remove": lambda asked: _remove(asked["path"]),
    }
    _say({"hello": sys.version_info[:3]})
    try:
        _answer(commands)
    finally:
        for path in list(_written):
            _remove(path)


def _answer(commands: "dict[str, Callable[[dict[str, Any]], Any]]") -> None:
    while True:
        signal.alarm(_IDLE_S)
        line = sys.stdin.readline()
        if not line:
            return
        asked = json.loads(line)
        try:
            _say({"answer": commands[asked["do"]](asked)})
        except Exception as error:  # whatever it is, whoever asked is to be told
            _say({"error": f"{type(error).__name__}: {error}"})


def _say(what: "dict[str, Any]") -> None:
    # Begins a line of its own, whatever was printed before.
    sys.stdout.write("\n" + MARK + json.dumps(what) + "\n")
    sys.stdout.flush()


# -- between hosts ----------------------------------------------------------------------------------


class _Listener:
    """Takes connections of other hosts: echoes, and counts what they send."""

    def start(self) -> int:
        """Returns the port, one that the system chooses, as MPI's are."""
        try:
            server = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # of both kinds
            server.bind(("::", 0))
        except OSError:
            server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            server.bind(("", 0))
        server.listen(256)
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return int(server.getsockname()[1])

    def _accept(self, server: socket.socket) -> None:
        while True:
            connection = server.accept()[0]
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(10)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                kind = connection.recv(1)
                if kind == _RATE:
                    self._count(connection)
                while kind == _PING:
                    connection.sendall(kind)
                    kind = connection.recv(1)
        except OSError:
            return  # the other end tells what it saw

    def _count(self, connection: socket.socket) -> None:
        """Answer with the bytes per second that came in the counted part of so many seconds."""
        (seconds,) = struct.unpack("!d", connection.recv(8, socket.MSG_WAITALL))
        buffer = bytearray(_BUFFER_NBYTES)
        begin_s = now_s = time.monotonic()
        counted, since_s = 0, None
        while now_s < begin_s + seconds:
            connection.settimeout(begin_s + seconds - now_s)
            try:
                got = connection.recv_into(buffer)
            except socket.timeout:  # noqa: UP041
                break
            if not got:
                break
            now_s = time.monotonic()
            if since_s is None:
                since_s = now_s if now_s > begin_s + _UNCOUNTED * seconds else None
            else:
                counted += got
        now_s = time.monotonic()
        rate = counted / (now_s - since_s) if since_s is not None and now_s > since_s else 0.0
        connection.settimeout(10)
        connection.sendall(struct.pack("!d", rate))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv_into(buffer):
            pass  # else the answer could be lost to a reset


def _connect_all(targets: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    """Connect to each target, many at once: round trip in seconds, or why not."""
    answers: list[Any] = [None] * len(targets)
    left = list(range(len(targets)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not left:
                    return
                index = left.pop()
            target = targets[index]
            answers[index] = _connect(target["address"], target["port"])

    threads = [threading.Thread(target=work) for _ in range(min(_AT_ONCE, len(targets)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _connect(address: str, port: int) -> "dict[str, Any]":
    try:
        with socket.create_connection((address, port), _CONNECT_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = []
            for _ in range(_PINGS):
                begin_s = time.monotonic()
                connection.sendall(_PING)
                if connection.recv(1) != _PING:
                    return {"error": "closed"}
                times.append(time.monotonic() - begin_s)
    except socket.timeout:  # noqa: UP041
        return {"error": "timeout"}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"round_trip_s": min(times)}


def _rate(address: str, port: int, seconds: float) -> float:
    """Send for so many seconds; the bytes per second that arrived."""
    data = memoryview(bytes(_BUFFER_NBYTES))
    with socket.create_connection((address, port), _CONNECT_S) as connection:
        connection.sendall(_RATE + struct.pack("!d", seconds))
        end_s = time.monotonic() + seconds
        try:
            while True:
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    break
                connection.settimeout(left_s)
                connection.send(data)
        except socket.timeout:  # noqa: UP041
            pass  # the link is slower than its queue is long
        connection.settimeout(10)
        (rate,) = struct.unpack("!d", connection.recv(8, socket.MSG_WAITALL))
        # What is still to be sent is thrown away: over a slow link it would take seconds, in the way
        # of whoever is measured next.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return float(rate)


# -- files ------------------------------------------------------------------------------------------


def _write(path: str, text: str) -> "str | None":
    """Why a file cannot be written; None where it can."""
    _written.add(path)
    try:
        with open(path, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None


def _read(path: str, text: str, wait_s: float) -> "float | None":
    """After how many seconds the file says that text; None where it does not for so long."""
    begin_s = time.monotonic()
    while True:
        try:
            with open(path) as file:
                if file.read() == text:
                    return time.monotonic() - begin_s
        except OSError:
            pass  # not there yet
        if time.monotonic() - begin_s > wait_s:
            return None
        time.sleep(0.05)


def _remove(path: str) -> None:
    _written.discard(path)
    if os.path.exists(path):
        os.unlink(path)
