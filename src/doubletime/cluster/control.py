"""The launcher's side of the control channel: which ranks there are, what they tell, who is lost."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from doubletime.cluster import listening
from doubletime.cluster.beginning import Roll, Sight
from doubletime.cluster.channel import HEARTBEAT_S, Address, Line, Message, Silence, silence_s
from doubletime.cluster.descriptors import ManyDescriptors
from doubletime.failure import Failure

_TURN_S = 0.25
# A watch whose line broke makes a new one: at once on this host, on others once the link is back.
_RETURNS_WITHIN_S = 1.0
_RETURNS_WITHIN_LIMIT = 0.75
_HELLO_WITHIN_S = 10.0
_PAUSE_IS_SAID_WITHIN_S = 1.0
_BREAKS_WITHIN_S = 1.5 * HEARTBEAT_S


@dataclass(frozen=True)
class Loss:
    """A host that is gone, or out of reach.

    Attributes:
        host: its name.
        ranks: those that ran there.
        why: what is known of it, after the host's name.
        time_s: when it was last heard of, in seconds since the epoch.
    """

    host: str
    ranks: tuple[int, ...]
    why: str
    time_s: float


@dataclass
class _Member:
    """One rank, as its watch tells."""

    rank: int
    host: str
    peer: str  # the address it came from
    is_here: bool
    line: Line | None
    silence: Silence
    has_ended: bool = False
    broke_s: float | None = None  # when its line broke, by the monotonic clock
    failure: Failure | None = None
    heard_s: float = field(default_factory=time.time)


class Control:
    """Listens for the watches of one job, in a thread of its own: their host may be slow to read our output.

    Args:
        hosts: the host of each rank, as the job's owner names it; none where all are on this one.
        welcome: settings for the ranks' watches.
        own: what this host sees of the program; the ranks begin when all have come and see the same.
            None lets each begin at once.

    Attributes:
        refusal: why the job is not to begin, once that is known.

    Raises:
        LaunchError: if the limit of silence is set to nonsense.
    """

    def __init__(
        self, hosts: Sequence[str], welcome: Mapping[str, object], own: Sight | None = None
    ) -> None:
        self._hosts = tuple(hosts)
        self._began_s = time.monotonic()
        self._limit_s = silence_s()
        self._welcome = {"silence_s": self._limit_s, **welcome}
        self._listener = listening.listen(is_within_host=not hosts)
        self.address = Address(
            listening.addresses(self._hosts), self._listener.getsockname()[1], os.urandom(16).hex()
        )
        self._lock = threading.Lock()
        self._members: dict[int, _Member] = {}
        self._strangers: dict[Line, float] = {}
        self._spare: dict[Line, int] = {}  # a watch tries every address, and speaks on one
        self._orders: list[int] = []
        self._roll = None if own is None else Roll(self._hosts, own)
        self._has_begun = self._roll is None
        self.refusal: str | None = None
        self._is_paused = False
        self._has_been_paused = False
        self._pause_is_said = threading.Event()
        self._descriptors = ManyDescriptors()
        self._unreachable: set[str] = set()  # addresses that did not answer when asked
        self._is_over = False
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="doubletime-control", daemon=True)

    def start(self) -> None:
        """Begin to listen; what this process starts from now on may have as many descriptors as it."""
        self._descriptors.__enter__()
        self._thread.start()

    def close(self) -> None:
        """Hang up; a watch that still runs ends its rank."""
        self._is_over = True
        self._wake.send(b"\0")
        if self._thread.ident is not None:  # it has been started; it may have ended by now
            self._thread.join()
            self._descriptors.give_back()
        for line in [*self._strangers, *self._spare, *self._lines()]:
            line.close()
        self._selector.close()
        for each in (self._listener, self._wake, self._woken):
            each.close()

    def order(self, number: int) -> None:
        """Have all ranks end by a signal, with all that they have started."""
        with self._lock:
            self._orders.append(number)
        self._wake.send(b"\0")

    def pause(self, *, is_on: bool) -> None:
        """Have all ranks stand still, or go on; when this returns all watches have been told."""
        self._pause_is_said.clear()
        with self._lock:
            self._is_paused = is_on
            self._has_been_paused = True
        self._wake.send(b"\0")
        self._pause_is_said.wait(_PAUSE_IS_SAID_WITHIN_S)

    def failures(self) -> list[Failure]:
        """The ranks' records, the earliest first."""
        with self._lock:
            found = [each.failure for each in self._members.values() if each.failure is not None]
        return sorted(found, key=lambda failure: failure.time_s)

    @property
    def has_ranks(self) -> bool:
        """Whether a rank has come."""
        with self._lock:
            return bool(self._members)

    @property
    def has_silent_hosts(self) -> bool:
        """Whether a host has not been heard of for too long."""
        with self._lock:
            return bool(self._silent())

    @property
    def has_deserted_ranks(self) -> bool:
        """Whether the watch of a rank is gone without a word."""
        with self._lock:
            return any(
                not each.has_ended
                and each.broke_s is not None
                and time.monotonic() - each.broke_s > self._returns_within_s(each)
                for each in self._members.values()
            )

    @property
    def missing_hosts(self) -> tuple[str, ...]:
        """Hosts of ranks that have not come, in a job across hosts that has not begun."""
        with self._lock:
            return () if self._roll is None or self._has_begun else self._roll.missing

    def settle(self, timeout_s: float) -> bool:
        """Wait until the watches have ended that are within reach; False where some have not."""
        end_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                silent = self._silent()
                left = [
                    each
                    for each in self._members.values()
                    if each.line is not None
                    and each not in silent
                    and each.peer not in self._unreachable
                ]
            if not left or time.monotonic() > end_s:
                return not left
            time.sleep(0.01)

    def losses(self) -> list[Loss]:
        """Hosts that are out of reach, the first lost one first; takes a second or two where one is.

        To be asked when the job is over: a host with a rank that has not told its end is in doubt.
        """
        with self._lock:
            silent = self._silent()
            unsure = [
                each
                for each in self._members.values()
                if not (each.has_ended or each.is_here or each in silent)
            ]
        if self._has_been_paused and unsure:
            time.sleep(_BREAKS_WITHIN_S)  # a line that broke meanwhile shows at the next beat
            unsure = [each for each in unsure if not each.has_ended]
        peers = {each.peer for each in unsure}
        self._unreachable |= peers - listening.answering(peers)
        gone = [each for each in unsure if each.peer in self._unreachable]
        silence = (
            f"has not answered for {self._limit_s:g} s: its link is cut, or it is frozen or dead"
        )
        end = "is gone: the lines to its ranks broke, and it answers no more"
        parted = [each for each in unsure if each not in gone and each.line is None]
        part = "was out of reach while the job stood still, and has ended its part"
        found = [
            *_by_host(silent, silence),
            *_by_host(gone, end),
            *_by_host(parted if self._has_been_paused else (), part),
        ]
        return sorted(found, key=lambda loss: loss.time_s)

    def _returns_within_s(self, member: _Member) -> float:
        return _RETURNS_WITHIN_S if member.is_here else _RETURNS_WITHIN_LIMIT * self._limit_s

    def _silent(self) -> list[_Member]:
        now = time.monotonic()
        return [
            each
            for each in self._members.values()
            if not each.has_ended
            and not each.is_here
            and each.silence.length_s(now) > self._limit_s
            and (each.line is not None or each.broke_s is None)
        ]

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        beat_s = 0.0
        obeyed = 0
        was_paused = False
        while not self._is_over:
            ready = self._selector.select(_TURN_S)
            now = time.monotonic()
            with self._lock:
                for key, events in ready:
                    if key.fileobj is self._listener:
                        self._accept(now)
                    elif key.fileobj is self._woken:
                        self._woken.recv(4096)
                    else:
                        self._serve(key.data, events, now)
                for line in [line for line, end_s in self._strangers.items() if now > end_s]:
                    self._forget(line)
                if len(self._orders) > obeyed:
                    obeyed = len(self._orders)
                    self._send_all({"orders": self._orders})
                if self._is_paused != was_paused:
                    was_paused = self._is_paused
                    self._send_all({"pause": was_paused})
                    self._pause_is_said.set()
                if self._roll is not None and not self._has_begun:
                    self._let_begin(self._roll, now)
                if now - beat_s >= HEARTBEAT_S:
                    beat_s = now
                    self._send_all({})
                for each in self._members.values():
                    each.silence.length_s(now)

    def _let_begin(self, roll: Roll, now: float) -> None:
        if roll.may_begin():
            self._has_begun = True
            self._send_all({"begin": True})
        else:
            self.refusal = self.refusal or roll.refusal(now)

    def _accept(self, now: float) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is gone again, or this process has no descriptor left
            return
        line = Line(connection)
        self._strangers[line] = now + _HELLO_WITHIN_S
        self._selector.register(line, selectors.EVENT_READ, line)

    def _serve(self, line: Line, events: int, now: float) -> None:
        if line.socket.fileno() < 0:
            return  # replaced in this same turn
        try:
            if events & selectors.EVENT_WRITE:
                line.flush()
                self._selector.modify(line, selectors.EVENT_READ, line)
            messages = line.receive() if events & selectors.EVENT_READ else ()
            for message in messages:
                self._hear(line, message, now)
        except (ConnectionError, KeyError, TypeError, ValueError):  # gone, or it does not know how
            self._forget(line)

    def _hear(self, line: Line, message: Message, now: float) -> None:
        if line in self._strangers:
            self._greet(line, message["hello"], now)
            return
        if line in self._spare:
            self._exchange(line)
        member = self._of(line)
        if member is None:
            return
        member.silence.heard(now)
        member.heard_s = time.time()
        if "failure" in message and member.failure is None:
            record = dict(message["failure"])
            # Clocks of hosts differ: how long ago it was is what counts.
            record["time_s"] = time.time() - float(record.pop("age_s"))
            record["host"] = member.host
            member.failure = Failure(**record)
        if "end" in message:
            member.has_ended = True

    def _greet(self, line: Line, hello: Message, now: float) -> None:
        from hmac import compare_digest  # slow to load; by now ranks are on their way

        if not compare_digest(str(hello["token"]), self.address.token):
            raise ConnectionError("a stranger")
        rank = int(hello["rank"])
        del self._strangers[line]
        before = self._members.get(rank)
        if before is None:
            if self._roll is not None:
                self._roll.enter(rank, hello["seen"], now)
            self._members[rank] = _Member(
                rank=rank,
                host=self._hosts[rank] if rank < len(self._hosts) else str(hello["host"]),
                peer=str(line.socket.getpeername()[0]),
                is_here=line.is_within_host,
                line=line,
                silence=Silence(now),
            )
        else:
            self._spare[line] = rank
        age_s = time.monotonic() - self._began_s
        self._send(line, {"welcome": {**self._welcome, "age_s": age_s}, **self._state()})

    def _state(self) -> Message:
        """What a watch must know that has come, or come back."""
        return {"begin": self._has_begun, "pause": self._is_paused, "orders": self._orders}

    def _exchange(self, line: Line) -> None:
        """A watch has chosen another line than the one that is known."""
        member = self._members[self._spare.pop(line)]
        if member.line is not None:
            self._hang_up(member.line)
        member.line, member.broke_s = line, None
        self._send(line, self._state())

    def _send_all(self, message: Message) -> None:
        for line in self._lines():
            try:
                self._send(line, message)
            except ConnectionError:
                self._forget(line)

    def _send(self, line: Line, message: Message) -> None:
        line.send(message)
        if line.has_unsent:
            self._selector.modify(line, selectors.EVENT_READ | selectors.EVENT_WRITE, line)

    def _forget(self, line: Line) -> None:
        """This line is broken."""
        self._strangers.pop(line, None)
        self._spare.pop(line, None)
        member = self._of(line)
        if member is not None:
            member.line, member.broke_s = None, time.monotonic()
        self._hang_up(line)

    def _hang_up(self, line: Line) -> None:
        self._selector.unregister(line)
        line.close()

    def _of(self, line: Line) -> _Member | None:
        return next((each for each in self._members.values() if each.line is line), None)

    def _lines(self) -> list[Line]:
        return [each.line for each in self._members.values() if each.line is not None]


def _by_host(members: Iterable[_Member], why: str) -> list[Loss]:
    hosts: dict[str, list[_Member]] = {}
    for each in members:
        hosts.setdefault(each.host, []).append(each)
    return [
        Loss(host, tuple(sorted(m.rank for m in lost)), why, min(m.heard_s for m in lost))
        for host, lost in hosts.items()
    ]
