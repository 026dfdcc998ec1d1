"""An mpiexec of our own, for hosts without an MPI: ranks over plain ssh, who meet as torch's `env://` does.

`python -m doubletime.cluster.sshexec --hosts node1:2,node2:2 -- command…` logs in to each host once
and starts its ranks there (`cluster.host_agent`), with what torchrun sets: RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Folder and environment are this process's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import selectors
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from doubletime.cluster import channel, frames, hosts, placement
from doubletime.cluster.descriptors import ManyDescriptors
from doubletime.cluster.frames import Frame
from doubletime.cluster.host_agent import BEAT_S, START, Order
from doubletime.cluster.login import Login, argv, handed_over
from doubletime.cluster.placement import Placement
from doubletime.cluster.signals import Received, received
from doubletime.cluster.ssh import Ssh
from doubletime.errors import DoubletimeError

_LOGIN_S = 60.0  # for login and the start of a Python from a slow disk, on a crowd of hosts at once
_END_S = 3.0  # what hosts may take to end their ranks, before their connections are cut
_CHUNK = 1 << 16
_LOST_EXIT_CODE = 1
# More than a job's own limit. With that of 6 s, a link that was cut for 3 s is borne: TCP tries again
# after 6.4 s at most, as each time it waits twice as long.
_SILENCE_BEYOND_S = 1.0


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the job's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m doubletime.cluster.sshexec",
        description="Start ranks on hosts over ssh, where there is no MPI.",
    )
    parser.add_argument("--hosts", required=True, metavar="a:2,b:2", help="hosts, with their ranks")
    parser.add_argument("--ssh-command", default="ssh", help="a command to use like ssh")
    parser.add_argument("--ssh-config", type=Path, help="settings instead of ~/.ssh/config")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what each rank runs, after --")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command to start")
    try:
        placed = placement.place(hosts.parse(options.hosts))
        reach = Ssh(tuple(shlex.split(options.ssh_command)), options.ssh_config)
        return run(placed, command, reach, os.environ, _folder())
    except DoubletimeError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def run(
    placed: Placement,
    command: Sequence[str],
    reach: Ssh,
    environ: Mapping[str, str],
    folder: str,
) -> int:
    """Start a command on ranks of hosts, wait for all, and end all where one fails.

    What the ranks write comes out of this process's stdout and stderr as it comes.

    Args:
        placed: ranks on hosts; they meet on the first.
        command: what each runs.
        reach: how hosts are reached; this one is not.
        environ: what they find in their environment, but for what tells of this host.
        folder: where they start, on every host.

    Returns:
        The exit code of the first rank that failed, 128 + n after signal n.

    Raises:
        LaunchError: if the limit of silence is set to nonsense, or there is no such ssh command.
    """
    silence_s = channel.silence_s(environ) + _SILENCE_BEYOND_S
    with received() as signals, ManyDescriptors() as descriptors:
        environment = handed_over(environ)
        job = _Job(placed, command, reach, environment, folder, signals, silence_s, descriptors)
        try:
            job.watch()
        finally:
            job.close()
        return job.exit_code or 0


class _Job:
    """Ranks on hosts.

    Attributes:
        exit_code: of the job, as soon as something has failed.
    """

    def __init__(
        self,
        placed: Placement,
        command: Sequence[str],
        reach: Ssh,
        environ: Mapping[str, str],
        folder: str,
        signals: Received,
        silence_s: float,
        descriptors: ManyDescriptors,
    ) -> None:
        self.exit_code: int | None = None
        self._signals = signals
        self._silence_s = silence_s
        self._obeyed = 0
        self._end_s = float("inf")  # when connections are cut
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.descriptor, selectors.EVENT_READ)
        self._hosts: list[Login] = []
        self._meeting: bytes | None = None
        # A launcher of ours above shows the ranks' own records.
        self._is_told_elsewhere = channel.VARIABLE in environ
        self._is_over = threading.Event()
        first_rank = 0
        try:
            for index, (name, count) in enumerate(placed.counts):
                order = Order(
                    command, folder, placed.hosts, index, first_rank, count, placed.ranks, silence_s
                )
                ranks = set(range(first_rank, first_rank + count))
                login = Login(name, argv(name, reach), ranks, descriptors)
                self._add(login, order, environ)
                first_rank += count
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._beat, daemon=True).start()

    def watch(self) -> None:
        """Return when all ranks have ended, or have been ended."""
        while any(host.is_open for host in self._hosts):
            ready = {key.fd for key, _ in self._selector.select(BEAT_S / 2)}
            for host in self._hosts:
                if host.stderr in ready:
                    self._read_complaint(host)
                if host.stdout in ready:
                    self._read(host)
                elif host.is_open and time.monotonic() - host.heard_s > self._patience_s(host):
                    self._lose(host)
            self._signals.drain()
            self._obey()
            if time.monotonic() > self._end_s:
                for host in self._hosts:
                    self._shut(host)

    def close(self) -> None:
        """Leave no login, thread or descriptor behind."""
        self._is_over.set()
        for host in self._hosts:
            host.let_go()
        for host in self._hosts:
            if host.is_open:
                self._shut(host)
            host.process.wait()
            for pipe in (host.process.stdout, host.process.stderr):
                if pipe is not None:
                    pipe.close()
        self._selector.close()

    def _add(self, host: Login, order: Order, environ: Mapping[str, str]) -> None:
        self._hosts.append(host)
        self._selector.register(host.stdout, selectors.EVENT_READ)
        self._selector.register(host.stderr, selectors.EVENT_READ)
        host.begin(order, environ)

    def _beat(self) -> None:
        """In a thread of its own, as the main one may wait for whoever reads our output."""
        while not self._is_over.wait(BEAT_S / 4):
            for host in self._hosts:
                host.beat()

    def _patience_s(self, host: Login) -> float:
        return self._silence_s if host.decoder.has_begun else _LOGIN_S

    def _read(self, host: Login) -> None:
        chunk = os.read(host.stdout, _CHUNK)
        host.heard_s = time.monotonic()
        for frame in host.decoder.feed(chunk):
            self._take(host, frame)
        if not chunk:
            self._note_gone(host)
        elif self._meeting is not None and all(each.is_ready for each in self._hosts):
            self._start(self._meeting)

    def _start(self, meeting: bytes) -> None:
        """Let all ranks begin: every host is there, so that none waits for one that is not."""
        self._meeting = None
        for host in self._hosts:
            host.tell(START + b" " + meeting + b"\n")

    def _take(self, host: Login, frame: Frame) -> None:
        host.is_ready = True
        if frame.kind == frames.STDOUT:
            self._write(1, frame.payload)
        elif frame.kind == frames.STDERR:
            self._write(2, frame.payload)
        elif frame.kind == frames.MEETING:
            self._meeting = frame.payload
        elif frame.kind == frames.REFUSAL:
            why = f"host {host.name}: {frame.payload.decode()}"
            self._fail(_LOST_EXIT_CODE, f"{why}: start the job from a folder that all hosts share")
        elif frame.kind == frames.EXIT:
            host.running.discard(frame.rank)
            code = int(frame.payload)
            if code:
                told = f"rank {frame.rank} on host {host.name} ended with exit code {code}"
                self._fail(code, "" if self._is_told_elsewhere else told)

    def _read_complaint(self, host: Login) -> None:
        chunk = os.read(host.stderr, _CHUNK)
        if not chunk:
            self._selector.unregister(host.stderr)
            return
        host.note(chunk)
        if host.decoder.has_begun and self.exit_code is None:
            self._write(2, chunk)

    def _note_gone(self, host: Login) -> None:
        """A login has ended."""
        self._selector.unregister(host.stdout)
        host.is_open = False
        if host.running and self.exit_code is None:
            code = host.process.wait()
            os.set_blocking(host.stderr, False)
            with contextlib.suppress(BlockingIOError):
                host.note(os.read(host.stderr, _CHUNK))
            self._fail(_LOST_EXIT_CODE, f"host {host.name}: {host.why(code)}")

    def _lose(self, host: Login) -> None:
        self._fail(
            _LOST_EXIT_CODE,
            f"host {host.name}: nothing has come from it for {self._patience_s(host):.0f} s",
        )
        self._shut(host)

    def _shut(self, host: Login) -> None:
        """Wait for a host no longer."""
        if host.is_open:
            host.is_open = False
            self._selector.unregister(host.stdout)
            host.cut()

    def _obey(self) -> None:
        if len(self._signals.numbers) == self._obeyed:
            return
        is_repeated = self._obeyed > 0
        self._obeyed = len(self._signals.numbers)
        self._fail(128 + self._signals.numbers[0], "")
        if is_repeated:
            self._end_s = time.monotonic()

    def _fail(self, exit_code: int, why: str) -> None:
        """The first failure counts; all ranks end."""
        if self.exit_code is not None:
            return
        self.exit_code = exit_code
        if why:
            self._write(2, f"doubletime: {why}\n".encode())
        self._end_s = time.monotonic() + _END_S
        for host in self._hosts:
            host.let_go()
            if not host.decoder.has_begun:
                self._shut(host)

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write all, unless told to end meanwhile: a pager that reads no more must not stop us."""
        while data:
            if self._signals.numbers:
                if not select.select([], [descriptor], [], 0)[1]:
                    return
            elif not select.select([self._signals.descriptor], [descriptor], [])[1]:
                continue
            try:
                data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]
            except BrokenPipeError:  # `| head` has seen enough
                self._signals.note(signal.SIGPIPE)
                return


def _folder() -> str:
    """This folder as the shell names it: its real path may go through a mount of this host alone."""
    named, real = os.environ.get("PWD", ""), Path.cwd()
    if named.startswith("/") and Path(named).is_dir() and Path(named).samefile(real):
        return named
    return str(real)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
