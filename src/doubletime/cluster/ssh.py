"""One command on many hosts at once, over ssh, each with a timeout; and why ssh failed, in words."""

from __future__ import annotations

import contextlib
import enum
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from doubletime.errors import LaunchError

CONNECT_TIMEOUT_S = 10
_AT_ONCE = 64  # logins; each is a process of ours
_FAILED = 255  # what ssh exits with when it is ssh itself that failed


@dataclass(frozen=True)
class Ssh:
    """How hosts are reached.

    Attributes:
        command: the words before everything: `ssh`, or a command that takes its options.
        config: a file instead of ~/.ssh/config.
        connect_timeout_s: whole seconds that connecting may take.
    """

    command: tuple[str, ...] = ("ssh",)
    config: Path | None = None
    connect_timeout_s: int = CONNECT_TIMEOUT_S

    def argv(self, host: str, remote_command: str, *, is_verbose: bool = False) -> list[str]:
        """The words that run a shell command on a host; asks nobody for anything.

        Args:
            host: its name.
            remote_command: a line for the login shell there.
            is_verbose: whether ssh tells each step on stderr.
        """
        level = "DEBUG1" if is_verbose else "ERROR"
        return [*self._program(), "-T", *self._options(level), "--", host, remote_command]

    def line(self, host: str) -> str:
        """A login by hand, for a person to copy."""
        return shlex.join([*self._program(), host])

    def settings_argv(self, host: str) -> list[str]:
        """The words that print what ssh would use for a host (`ssh -G`), connecting to none."""
        return [*self._program(), "-G", "--", host]

    def _program(self) -> list[str]:
        config = [] if self.config is None else ["-F", str(self.config)]
        return [*self.command, *config]

    def _options(self, level: str) -> list[str]:
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(self.connect_timeout_s),
            "LogLevel": level,
        }
        return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


@dataclass(frozen=True)
class Reply:
    """What came of a command on one host.

    Attributes:
        host: its name.
        exit_code: of the command; 255 where ssh failed, None where the time was over.
        stdout, stderr: what it wrote; ssh's own complaints are in stderr.
        time_s: how long it took, in seconds.
    """

    host: str
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    time_s: float


@dataclass(frozen=True)
class Settings:
    """What ssh would use for a host.

    Attributes:
        hostname: the name or address that it connects to.
        port: there.
        known_hosts: the file in which it keeps host keys.
    """

    hostname: str
    port: int
    known_hosts: str


class Trouble(enum.Enum):
    """Why a host could not be reached, or would not let us in."""

    NAME = "its name does not resolve"
    UNREACHABLE = "it is unreachable"
    REFUSED = "nothing listens on its ssh port"
    TIMEOUT = "it does not answer"
    CLOSED = "its sshd closes the connection"
    HOST_KEY_UNKNOWN = "its host key is not known here"
    HOST_KEY_CHANGED = "its host key is not the known one"
    PASSWORD = "it asks for a password"
    KEY_REFUSED = "it accepts none of our keys"
    OTHER = "ssh failed"


# How lines begin that only a verbose ssh writes. Two of them tell how far it came.
ACCEPTED, AUTHENTICATED = b"Server accepts key", b"Authenticated to "
_STEPS = (b"debug1:", b"OpenSSH_", AUTHENTICATED, b"Transferred:", b"Bytes per second:")
# The first that fits counts.
_SIGNS = (
    (Trouble.HOST_KEY_CHANGED, r"REMOTE HOST IDENTIFICATION HAS CHANGED"),
    (
        Trouble.HOST_KEY_UNKNOWN,
        r"Host key verification failed|No \S+ host key is known|"
        r"Host key for \S+ has changed and you have requested strict checking",
    ),
    (
        Trouble.PASSWORD,
        r"Permission denied \([^)]*(?:password|keyboard-interactive)[^)]*\)"
        r"|Too many authentication failures",
    ),
    (Trouble.KEY_REFUSED, r"Permission denied|No supported authentication methods"),
    (
        Trouble.NAME,
        r"Could not resolve hostname|Name or service not known|"
        r"(?:Temporary failure in name|Name does not) resol",
    ),
    (Trouble.REFUSED, r"Connection refused"),
    (Trouble.TIMEOUT, r"timed out|banner exchange.*timeout"),
    (Trouble.UNREACHABLE, r"No route to host|Network is (?:unreachable|down)|Host is down"),
    (
        Trouble.CLOSED,
        r"kex_exchange_identification|ssh_exchange_identification|Connection (?:closed|reset)|"
        r"Broken pipe",
    ),
)


def trouble(exit_code: int | None, stderr: bytes) -> Trouble | None:
    """Why ssh failed; None where it did not: then the exit code is the command's own. Pure."""
    if exit_code is None:
        return Trouble.TIMEOUT
    if exit_code != _FAILED:
        return None
    said = stderr.decode(errors="replace")
    for found, sign in _SIGNS:
        if re.search(sign, said):
            return found
    return Trouble.OTHER


def settings(ssh: Ssh, host: str) -> Settings:
    """What ssh would use for a host, by its own word (`ssh -G`); connects to nobody.

    Raises:
        LaunchError: if there is no such ssh command here.
    """
    process = _start(ssh.settings_argv(host))
    said, _ = process.communicate()
    return read_settings(said.decode(errors="replace"), host)


def read_settings(text: str, host: str) -> Settings:
    """Read what `ssh -G` prints; what it does not say is as usual."""
    words: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        words.setdefault(name.lower(), value.strip())
    port = words.get("port", "")
    files = words.get("userknownhostsfile", "").split() or ["~/.ssh/known_hosts"]
    return Settings(words.get("hostname", host), int(port) if port.isdigit() else 22, files[0])


def without_steps(stderr: bytes) -> bytes:
    """What a verbose ssh says, less what it would not say otherwise."""
    lines = stderr.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(_STEPS))


def run_on(
    hosts: Sequence[str],
    command: str | Mapping[str, str],
    ssh: Ssh,
    timeout_s: float,
    stdin: bytes | Mapping[str, bytes] = b"",
    observe: Callable[[Reply], None] | None = None,
    *,
    is_verbose: bool = False,
) -> dict[str, Reply]:
    """Run a shell command on each host, all at once; what takes too long is killed.

    A host's failure is its `Reply`, nothing raised: the others go on.

    Args:
        hosts: names.
        command: for the login shell of each; or each host's own.
        ssh: how they are reached.
        timeout_s: for each host, in seconds, login included.
        stdin: what the command reads; or each host's own.
        observe: told each reply as it comes, in the caller's thread.
        is_verbose: whether ssh tells each step on stderr.

    Returns:
        The replies by host, in the order of `hosts`.

    Raises:
        LaunchError: if there is no such ssh command here.
    """

    def run(host: str) -> Reply:
        line = command if isinstance(command, str) else command[host]
        text = stdin if isinstance(stdin, bytes) else stdin.get(host, b"")
        argv = ssh.argv(host, line, is_verbose=is_verbose)
        return running.run(host, argv, text, timeout_s)

    from concurrent.futures import ThreadPoolExecutor, as_completed

    running = _Running()
    replies: dict[str, Reply] = {}
    if not hosts:
        return replies
    with ThreadPoolExecutor(min(_AT_ONCE, len(hosts)), "ssh") as pool:
        try:
            for future in as_completed([pool.submit(run, host) for host in hosts]):
                reply = future.result()
                replies[reply.host] = reply
                if observe is not None:
                    observe(reply)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            running.end()
            raise
    return {host: replies[host] for host in hosts}


class _Running:
    """The processes of one call, so that an interrupt can end them all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_ended = False

    def run(self, host: str, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Reply:
        start_s = time.monotonic()
        with self._lock:
            if self._is_ended:
                return Reply(host, None, b"", b"", 0.0)
            process = _start(argv)
            self._processes.add(process)
        exit_code: int | None
        try:
            stdout, stderr = process.communicate(stdin, timeout_s)
            exit_code = process.returncode
        except subprocess.TimeoutExpired:
            _kill(process)
            stdout, stderr = process.communicate()
            exit_code = None
        finally:
            with self._lock:
                self._processes.discard(process)
        return Reply(host, exit_code, stdout, stderr, time.monotonic() - start_s)

    def end(self) -> None:
        with self._lock:
            self._is_ended = True
            for process in self._processes:
                _kill(process)


def _start(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # its ProxyCommand dies with it; and no /dev/tty to ask on
        )
    except OSError as error:
        raise LaunchError(
            f"{argv[0]} cannot be started: {error.strerror}",
            "install an ssh client (apt-get install openssh-client), or --ssh-command COMMAND",
        ) from error


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.killpg(process.pid, signal.SIGKILL)
