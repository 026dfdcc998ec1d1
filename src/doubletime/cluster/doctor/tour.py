"""The tour of all hosts: log in, ask for facts, try the shared folder, then the pairs."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil

from doubletime.cluster import ssh as ssh_
from doubletime.cluster.doctor import pairs, session
from doubletime.cluster.doctor.checks.links import is_slow
from doubletime.cluster.doctor.facts import NFS, Connection, HostFacts, Rate, Refused, Survey
from doubletime.cluster.doctor.question import HERE, Observe, Question, Visit
from doubletime.cluster.doctor.session import Login, Lost, Session
from doubletime.units import format_rate, plural

_CLOCK_TIMES = 3
_ASK_S = 30.0  # what a host may take for its facts: some of it asks slow programs
_SEEN_S = {True: 5.0, False: 0.3}  # how long to look for a file, on NFS and elsewhere
_HOST_KEYS = (ssh_.Trouble.HOST_KEY_UNKNOWN, ssh_.Trouble.HOST_KEY_CHANGED)


class Tour:
    """One visit to all hosts.

    Attributes:
        bandwidth_s: what measuring links took.
    """

    def __init__(self, question: Question, observe: Observe) -> None:
        self._question = question
        self._observe = observe
        self._slots = {host.name: host.slots for host in question.hosts}
        self._names = tuple(self._slots)
        self._local = local_name(self._names)
        self._here = self._local or HERE
        self._sessions: dict[str, Session] = {}
        self._noise: dict[str, str] = {}
        self._refused: dict[str, Refused] = {}
        self._lost: dict[str, str] = {}
        self._facts: dict[str, HostFacts] = {}
        self.bandwidth_s = 0.0

    async def survey(self) -> Survey:
        """Visit all, then leave.

        Raises:
            LaunchError: if there is no such ssh command here.
        """
        try:
            await self._visit_all()
            names = [name for name in self._names if name in self._facts]
            _, (listening, connections) = await asyncio.gather(
                self._try_folder(names), self._connect(names)
            )
            rates: tuple[Rate, ...] = ()
            if self._question.has_bandwidth and len(names) > 1:
                rates = await self._measure(listening, connections)
        finally:
            await asyncio.gather(*(each.close() for each in self._sessions.values()))
        question = self._question
        return Survey(
            here=self._facts[self._here],
            hosts=tuple(self._facts[name] for name in self._names if name in self._facts),
            names=self._names,
            folder=question.folder,
            checkpoints=question.checkpoints or question.folder,
            local=self._local,
            script=question.script,
            refused={n: self._refused[n] for n in self._names if n in self._refused},
            ssh_lines={name: question.ssh.line(name) for name in self._names},
            known_hosts=self._known_hosts(),
            connections=connections,
            rates=rates,
            lost={name: why for name, why in self._lost.items() if name in self._slots},
        )

    # -- each host --------------------------------------------------------------------------------

    async def _visit_all(self) -> None:
        names = {self._here: None, **self._slots}
        # All are to have ended before one's error is raised: then all sessions are known, to be closed.
        results = await asyncio.gather(*map(self._visit, names), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _visit(self, name: str) -> None:
        self._observe(Visit(name, "login"))
        question = self._question
        is_here = name == self._here
        argv = session.local_argv() if is_here else session.remote_argv(question.ssh, name)
        login = await session.open_session(name, argv, question.timeout_s)
        if login.session is None:
            self._refused[name] = refusal = _refused(login)
            if is_here:
                raise RuntimeError(f"no agent starts here: {login.reply}")
            what = refusal.trouble.value if refusal.trouble else "its login shell fails"
            self._observe(Visit(name, "login", False, what))
            return
        self._sessions[name] = login.session
        self._noise[name] = login.reply.stdout.decode(errors="replace")
        self._observe(Visit(name, "login", True, f"{login.reply.time_s:.2g} s"))
        self._observe(Visit(name, "facts"))
        try:
            clock_s, error_s = await _clock(login.session)
            record = await login.session.ask("facts", _ASK_S, **self._wanted())
        except Lost as error:
            self._lose(name, str(error), "facts")
            return
        self._facts[name] = facts = HostFacts(
            name, record, self._slots.get(name), self._noise[name], clock_s, error_s
        )
        what = f"{plural(facts.cores, 'core')}, {facts.mpi or 'no MPI'}"
        self._observe(Visit(name, "facts", True, what))

    def _wanted(self) -> dict[str, Any]:
        question = self._question
        script = None if question.script is None else str(question.script)
        checkpoints = question.checkpoints or question.folder
        return {
            "names": self._names,
            "folder": str(question.folder),
            "script": script,
            "checkpoints": str(checkpoints),
        }

    def _lose(self, name: str, why: str, step: str) -> None:
        self._lost[name] = why
        self._observe(Visit(name, step, False, why))
        if name == self._here:
            raise RuntimeError(f"the agent on this machine ends: {why}")

    def _known_hosts(self) -> dict[str, str]:
        return {
            name: ssh_.settings(self._question.ssh, name).known_hosts
            for name, found in self._refused.items()
            if found.trouble in _HOST_KEYS
        }

    # -- the folder -------------------------------------------------------------------------------

    async def _try_folder(self, names: Sequence[str]) -> None:
        """Let this machine write a file, and all others look for it."""
        others = [
            name
            for name in names
            if name != self._here and self._facts[name].record["folder"]["exists"]
        ]
        if not others:
            return
        text = secrets.token_hex(16)
        path = str(self._question.folder / f".doubletime-doctor-{text}")
        here = self._sessions[self._here]
        if await here.ask("write", _ASK_S, path=path, text=text) is not None:
            return  # that nothing can be written here, the checks of disks tell
        try:
            for name in others:
                self._observe(Visit(name, "folder"))
            await asyncio.gather(*(self._look(name, path, text) for name in others))
        finally:
            await here.ask("remove", _ASK_S, path=path)

    async def _look(self, name: str, path: str, text: str) -> None:
        is_nfs = self._facts[name].record["folder"].get("type") in NFS
        try:
            after_s = await self._sessions[name].ask(
                "read", _ASK_S, path=path, text=text, wait_s=_SEEN_S[is_nfs]
            )
        except Lost as error:
            self._lose(name, str(error), "folder")
            return
        self._facts[name] = replace(
            self._facts[name], seen_after_s=after_s, is_file_seen=after_s is not None
        )
        is_seen = after_s is not None
        self._observe(Visit(name, "folder", is_seen, "shared" if is_seen else "not shared"))

    # -- pairs ------------------------------------------------------------------------------------

    async def _connect(self, names: Sequence[str]) -> tuple[dict[str, int], tuple[Connection, ...]]:
        if len(names) < 2:
            return {}, ()
        for name in names:
            self._observe(Visit(name, "ports"))
        facts = [self._facts[name] for name in names]
        listening, connections = await pairs.connect(self._sessions, facts, self._lost)
        for name in names:
            own = [each for each in connections if name in (each.source, each.target)]
            failed = [each for each in own if each.error is not None]
            what = f"{len(failed)} of {len(own)} fail" if failed else "open"
            self._observe(Visit(name, "ports", not failed and bool(own), what))
        return listening, connections

    async def _measure(
        self, listening: Mapping[str, int], connections: tuple[Connection, ...]
    ) -> tuple[Rate, ...]:
        begin_s = time.monotonic()
        for name in listening:
            self._observe(Visit(name, "links"))
        rates = await pairs.rates(self._sessions, listening, connections, self._lost)
        for name in listening:
            own = sorted(
                (each for each in rates if each.source == name), key=lambda each: each.bytes_per_s
            )
            if own:  # the middle one: a slow link is not to tell against the host at its other end
                middle = own[len(own) // 2]
                what = format_rate(middle.bytes_per_s)
                self._observe(Visit(name, "links", not is_slow(middle), what))
        self.bandwidth_s = time.monotonic() - begin_s
        return rates


def local_name(names: Sequence[str]) -> str | None:
    """The name among those of hosts that is this machine's; None where none is."""
    own_name = socket.gethostname()
    own = {each.address for found in psutil.net_if_addrs().values() for each in found}
    own = {each for each in own if not each.startswith("127.") and each != "::1"}
    for name in names:
        if name in (own_name, own_name.partition(".")[0], "localhost"):
            return name
        try:
            known = socket.getaddrinfo(name, 22, type=socket.SOCK_STREAM)
        except OSError:
            continue  # ssh tells, and may know it by another name
        if any(str(row[4][0]) in own for row in known):
            return name
    return None


def _refused(login: Login) -> Refused:
    told = login.reply.stderr
    reply = replace(login.reply, stderr=ssh_.without_steps(told))
    is_inside = ssh_.AUTHENTICATED in told
    trouble = None if is_inside and reply.exit_code else ssh_.trouble(reply.exit_code, reply.stderr)
    is_locked = ssh_.ACCEPTED in told and not is_inside
    return Refused(reply, trouble, login.has_python, is_locked, is_inside)


async def _clock(host: Session) -> tuple[float, float]:
    """How far a host's clock is ahead of ours, and by how much that may be wrong, in seconds."""
    best = (0.0, float("inf"))
    for _ in range(_CLOCK_TIMES):
        before_s, begin_s = time.time(), time.monotonic()
        there_s = await host.ask("clock", _ASK_S)
        took_s = time.monotonic() - begin_s
        best = min(best, (there_s - before_s - took_s / 2, took_s / 2), key=lambda each: each[1])
    return best
