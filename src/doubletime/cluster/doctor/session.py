"""A visit to one host: one login, then questions and answers in JSON lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doubletime.cluster.doctor import agent, probe
from doubletime.cluster.ssh import Reply, Ssh
from doubletime.errors import LaunchError

_LONGEST_LINE = 1 << 26
_END_S = 2.0
_TOLD_NBYTES = 1 << 14  # of what a login shell prints, or ssh tells
# Run by the host's Python: reads the two sources, which then take over. The current folder is left
# out of the path: a json.py there would be ours.
_BEGIN = (
    "import sys; del sys.path[:1]; import json; n = [{}, {}]\n"
    "for t, d in zip(json.loads(sys.stdin.readline()), n): "
    "exec(compile(t, 'doubletime-doctor', 'exec'), d)\n"
    "n[1]['serve'](n[0]['facts'])"
)
# By `sh`, since login shells differ. The job's own Python where it is there, else any.
_FIND_PYTHON = (
    'if [ -x "$1" ]; then exec "$1" -c "$2"; fi; '
    'if command -v python3 >/dev/null 2>&1; then exec python3 -c "$2"; fi; '
    f"echo; echo '{agent.MARK}{{\"hello\": null}}'"
)


@dataclass(frozen=True)
class Login:
    """How a login went.

    Attributes:
        reply: exit code (None: no answer in time), what came on stdout before the agent's hello,
            and stderr. The exit code is 0 where the agent runs.
        has_python: False where there is no Python at all.
        session: what answers questions; None where there is no agent.
    """

    reply: Reply
    has_python: bool = True
    session: Session | None = None


class Lost(Exception):
    """The host answers no more."""


class Session:
    """An agent that runs on a host."""

    def __init__(
        self, host: str, process: asyncio.subprocess.Process, errors: asyncio.Future[bytes]
    ) -> None:
        self.host = host
        self._process = process
        self._errors = errors
        self._turn = asyncio.Lock()
        self._ended = ""  # why it answers no more

    async def ask(self, do: str, timeout_s: float, **arguments: Any) -> Any:
        """One question; several at once are asked one after the other.

        Raises:
            Lost: if no answer comes in time, or the host cannot give one; says why.
        """
        async with self._turn:
            if self._ended:
                raise Lost(self._ended)
            said = await self._exchange({"do": do, **arguments}, timeout_s)
        if "error" in said:
            raise Lost(str(said["error"]))
        return said["answer"]

    async def _exchange(self, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self._ended = f"no answer to {question['do']!r} within {timeout_s:.3g} s"
        try:
            _write(self._process, json.dumps(question).encode() + b"\n")
            said, _ = await asyncio.wait_for(_message(self._process), timeout_s)
        except asyncio.TimeoutError as error:
            raise Lost(self._ended) from error
        except OSError:
            said = None
        if said is None:
            self._ended = f"the connection ended while it was asked for {question['do']!r}"
            raise Lost(self._ended)
        self._ended = ""
        return said

    async def close(self) -> None:
        """End the visit; the agent ends with its stdin."""
        await _end(self._process)
        await self._errors


def local_argv() -> list[str]:
    """The words that start an agent on this machine."""
    return [sys.executable, "-c", _BEGIN]


def remote_argv(ssh: Ssh, host: str) -> list[str]:
    """The words that start an agent on another one."""
    words = ["exec", "sh", "-c", _FIND_PYTHON, "sh", sys.executable, _BEGIN]
    # Verbose, as it tells how far it came where it fails.
    return ssh.argv(host, shlex.join(words), is_verbose=True)


async def open_session(host: str, argv: Sequence[str], timeout_s: float) -> Login:
    """Start an agent and wait for its hello.

    Raises:
        LaunchError: if the command itself is not there.
    """
    begin_s = time.monotonic()
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(
            f"{argv[0]} cannot be started: {error.strerror}",
            "install an ssh client (apt-get install openssh-client), or --ssh-command COMMAND",
        ) from error
    errors = asyncio.ensure_future(_told(process))
    said, noise = None, bytearray()
    exit_code: int | None = None
    is_kept = False
    patience_s = 0.0  # who does not say hello in time is not waited for again
    try:
        _write(process, _sources() + b"\n")
        with contextlib.suppress(asyncio.TimeoutError, OSError):
            said, noise = await asyncio.wait_for(_message(process), timeout_s)
            is_kept = said is not None and said["hello"] is not None
            patience_s = _END_S
            exit_code = 0 if is_kept else await asyncio.wait_for(process.wait(), _END_S)
        time_s = time.monotonic() - begin_s
    finally:
        if not is_kept:
            await _end(process, patience_s)
    if is_kept:
        session = Session(host, process, errors)
        return Login(Reply(host, 0, bytes(noise), b"", time_s), session=session)
    reply = Reply(host, exit_code, bytes(noise), await errors, time_s)
    return Login(reply, has_python=said is None)


def _write(process: asyncio.subprocess.Process, data: bytes) -> None:
    if process.stdin is not None:
        process.stdin.write(data)


async def _message(process: asyncio.subprocess.Process) -> tuple[dict[str, Any] | None, bytearray]:
    """The agent's next message, None where its output ends, and what came before."""
    mark, before = agent.MARK.encode(), bytearray()
    while process.stdout is not None and (line := await process.stdout.readline()):
        if line.startswith(mark):
            found: dict[str, Any] = json.loads(line[len(mark) :])
            return found, before
        if line.strip() and len(before) < _TOLD_NBYTES:
            before += line
    return None, before


async def _told(process: asyncio.subprocess.Process) -> bytes:
    """The last of what comes on stderr until it ends."""
    told = b""
    while process.stderr is not None and (more := await process.stderr.read(_TOLD_NBYTES)):
        told = (told + more)[-_TOLD_NBYTES:]
    return told


async def _end(process: asyncio.subprocess.Process, patience_s: float = _END_S) -> None:
    """Let a process end by itself, as its stdin has; kill it where it takes too long."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), patience_s)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _sources() -> bytes:
    texts = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (probe, agent)]
    return json.dumps(texts).encode()
