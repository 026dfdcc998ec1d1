"""A watch's side of the control channel: reach the launcher, hold the line, know when it is lost."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

from doubletime.cluster.channel import HEARTBEAT_S, Address, Line, Message, Silence
from doubletime.failure import Failure

_FIRST_TIME_S = (
    20.0  # a launcher that listens answers at once, but its host may be busy with others
)
_ATTEMPT_S = 1.0
# TCP repeats a lost packet after 0.2 s, 0.4 s, 0.8 s, …: a line that was cut for 3 s may stay silent for
# twice that. A new one is there at once.
_SUSPICIOUS_S = 2.0


class Contact:
    """A watch's line to the launcher.

    Attributes:
        welcome: what the launcher said first: settings for this rank.
        may_begin: whether the rank may run its program.
        is_paused: whether the rank is to stand still, as the launcher does.
        orders: signals that the launcher wants the rank ended by, in order; the reader takes them.
        is_lost: whether the launcher is out of reach for good.
    """

    def __init__(
        self, address: Address, rank: int, seen: Mapping[str, object] | None = None
    ) -> None:
        """Say hello; when this returns the launcher knows this rank.

        Args:
            address: where the launcher listens.
            rank: this one.
            seen: what this host sees of the program (`beginning.Sight`), in a job across hosts.

        Raises:
            ConnectionError: if no launcher answers within 20 s.
        """
        self._address = address
        self._hello = {
            "hello": {
                "token": address.token,
                "rank": rank,
                "host": os.uname().nodename,
                "pid": os.getpid(),
                "seen": seen,
            }
        }
        self._said: list[Message] = []
        self._line: Line | None = None
        self._reached: str | None = None  # the address that led there
        self._attempts: dict[Line, str] = {}
        self._attempted_s = float("-inf")
        self._beat_s = 0.0
        self._silence = Silence(time.monotonic())
        self._limit_s = _FIRST_TIME_S
        self.welcome: dict[str, Any] = {}
        self.may_begin = False
        self.is_paused = False
        self.orders: list[int] = []
        self._known_orders = 0
        self.is_lost = False
        while self._line is None:
            self.wait(HEARTBEAT_S / 4)
            if self.is_lost:
                raise ConnectionError(
                    f"the launcher answers at none of {', '.join(address.hosts)}, port {address.port}"
                )

    @property
    def limit_s(self) -> float:
        """Seconds of silence after which the line is lost."""
        return self._limit_s

    def say(self, message: Message) -> None:
        """Tell the launcher, again should the line be made anew."""
        self._said.append(message)
        if self._line is not None:
            try:
                self._line.send(message)
            except ConnectionError:
                self._drop()

    def tell_failure(self, record: Failure) -> None:
        """Tell the launcher how this rank has failed; by the age of it, as clocks differ."""
        message = record._asdict()
        message["age_s"] = max(0.0, time.time() - message.pop("time_s"))
        self.say({"failure": message})

    def wait(self, timeout_s: float, *others: int) -> set[int]:
        """Hold the line for so long, or until one of some other descriptors can be read.

        Returns:
            Those that can.
        """
        now = time.monotonic()
        if not self.is_lost:
            self._hold(now)
        lines = ([] if self._line is None else [self._line]) + list(self._attempts)
        unsent = [line for line in lines if line.has_unsent]
        awaited: list[Line | int] = [*lines, *others]
        ready, writable, _ = select.select(awaited, unsent, [], timeout_s)
        for line in lines:
            is_held = line is self._line or line in self._attempts  # another may have won meanwhile
            if is_held and (line in writable or line in ready):
                self._serve(line, is_writable=line in writable, is_readable=line in ready)
        return {each for each in ready if isinstance(each, int)}

    def part(self, timeout_s: float) -> None:
        """Send what is unsent, and close."""
        end_s = time.monotonic() + timeout_s
        while not self.is_lost and time.monotonic() < end_s:
            if self._line is not None and not self._line.has_unsent:
                break
            self.wait(0.05)
        self.close()

    def close(self) -> None:
        """Close, in this process: a fork's other half may go on."""
        for line in [*self._attempts, *([] if self._line is None else [self._line])]:
            line.close()
        self._attempts.clear()
        self._line = None

    def _hold(self, now: float) -> None:
        if self.is_paused and self._line is not None:
            return  # a process that stands still says nothing; its host's end breaks the line
        silence_s = self._silence.length_s(now)
        is_far = self._line is None or not self._line.is_within_host
        if is_far and silence_s > self._limit_s:
            self.is_lost = True
            return
        is_doubtful = self._line is None or (is_far and silence_s > _SUSPICIOUS_S)
        if is_doubtful and now - self._attempted_s > _ATTEMPT_S:
            self._attempt(now)
        if self._line is not None and now - self._beat_s > HEARTBEAT_S:
            self._beat_s = now
            try:
                self._line.send({})
            except ConnectionError:
                self._drop()

    def _attempt(self, now: float) -> None:
        """Try every address at once, or the one that led there before."""
        for line in self._attempts:
            line.close()
        self._attempts.clear()
        self._attempted_s = now
        for host in self._address.hosts if self._reached is None else (self._reached,):
            try:
                found = socket.getaddrinfo(host, self._address.port, type=socket.SOCK_STREAM)
            except OSError:
                continue
            family, kind, protocol, _, target = found[0]
            try:
                line = Line(socket.socket(family, kind, protocol))
            except OSError:  # no IPv6 here
                continue
            code: int | None = line.socket.connect_ex(target)
            if code in (0, errno.EINPROGRESS):
                self._attempts[line] = host
                try:
                    for message in (self._hello, *self._said):
                        line.send(message)
                    continue
                except ConnectionError as error:
                    del self._attempts[line]
                    code = error.errno
            line.close()
            self._refused(code)

    def _serve(self, line: Line, *, is_writable: bool, is_readable: bool) -> None:
        try:
            if is_writable:
                line.flush()
            messages = line.receive() if is_readable else ()
        except ConnectionError as error:
            if line is self._line:
                self._drop()
            else:
                self._attempts.pop(line)
                line.close()
                self._refused(error.errno)
            return
        for message in messages:
            if line is self._line or "welcome" in message:
                self._hear(line, message)

    def _hear(self, line: Line, message: Message) -> None:
        self._silence.heard(time.monotonic())
        if "welcome" in message:
            self._adopt(line)
            self.welcome = dict(message["welcome"])
            self._limit_s = float(self.welcome["silence_s"])
        self.may_begin = self.may_begin or bool(message.get("begin"))
        if "pause" in message:
            self.is_paused = bool(message["pause"])
            if self.is_paused:
                line.keep_alive(self._limit_s)
        orders = [int(number) for number in message.get("orders", ())]
        self.orders += orders[self._known_orders :]
        self._known_orders = max(self._known_orders, len(orders))

    def _adopt(self, line: Line) -> None:
        if line is self._line:
            return
        self._reached = self._attempts.pop(line)
        if self._line is not None:
            self._line.close()
        for other in self._attempts:
            other.close()
        self._attempts.clear()
        self._line = line
        self._beat_s = float("-inf")  # the first beat tells that this line is the one

    def _drop(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None
        self._attempted_s = float("-inf")

    def _refused(self, code: int | None) -> None:
        """Who listened there before and no more has ended."""
        if self._reached is not None and code == errno.ECONNREFUSED:
            self.is_lost = True
