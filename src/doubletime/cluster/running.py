"""A job that runs: its launcher, all that descends from it here, and its ranks wherever they are."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from doubletime.cluster import banners, channel, launch
from doubletime.cluster.control import Control
from doubletime.cluster.implementations import Implementation
from doubletime.cluster.leftovers import SharedMemoryFiles, remove_topologies
from doubletime.cluster.orphans import has_children
from doubletime.cluster.signals import Received
from doubletime.errors import LaunchError

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG = 1
_PIPE_BUF = select.PIPE_BUF  # a pipe that is writable takes so much without blocking
_POLL_S = 0.05
_HELD_S = 0.2  # a launcher writes its banner at once: what waits longer for its next line is none
_LAST_OUTPUT_S = 1.0
_INCOMPLETE = "doubletime: what the ranks write cannot be written here: {why}; the job goes on\n"

# Seconds after which the launcher gets SIGTERM (it then tidies up), all processes get SIGTERM, and
# all get SIGKILL: after a rank has failed, which the launcher should see by itself; after a person has
# said stop; and after a host is lost, to which the launcher may talk in vain.
_AFTER_FAILURE_S = (0.8, 1.3, 2.0)
_AFTER_SIGNAL_S = (0.5, 0.8, 1.2)
_AFTER_LOSS_S = (0.0, 0.1, 0.6)
# How long ranks may take to save and end by themselves once this process gets SIGTERM, in seconds.
GRACE_VARIABLE = "DOUBLETIME_GRACE_S"
# What processes that outlive the launcher get: to end by themselves, and after SIGTERM.
_LEFT_OVER_S = (0.3, 0.3)
# What watches on other hosts get to end once their launcher has: by themselves, after SIGTERM, and after
# SIGKILL, when they also end the launcher's processes there.
_ELSEWHERE_S = ((None, 0.3), (signal.SIGTERM, 0.5))
_KILLED_ELSEWHERE_S = 3.0


class Running:
    """See the module.

    Args:
        plan: what to start.
        implementation: whose launcher it is.
        control: to which the ranks' watches report.
        signals: that this process gets meanwhile.

    Attributes:
        died_s: when the launcher was killed by someone else, in seconds since the epoch; else None.
        unwritten: why some of the ranks' output could not be written; None where all was.

    Raises:
        LaunchError: if the launcher cannot be started, or the time of grace is nonsense.
    """

    def __init__(
        self,
        plan: launch.LaunchPlan,
        implementation: Implementation,
        control: Control,
        signals: Received,
    ) -> None:
        self._implementation = implementation
        self._control = control
        self._signals = signals
        self._grace_s = _grace_s(plan)
        earlier = _children()
        self._shm = SharedMemoryFiles(implementation.dialect.shm_prefixes)
        self.died_s: float | None = None
        self.unwritten: str | None = None
        self._began_s = time.time()
        self._steps: list[tuple[float, Callable[[], None]]] = []
        stdout, stderr = os.pipe(), os.pipe()
        self._streams = {stdout[0]: _Stream(to=1), stderr[0]: _Stream(to=2)}
        try:
            self._process = subprocess.Popen(
                plan.argv,
                env=_environment(plan, control),
                stdin=subprocess.DEVNULL,
                stdout=stdout[1],
                stderr=stderr[1],
                start_new_session=True,  # Ctrl-C comes to us alone, and we end the job
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            self._close()
            raise LaunchError(f"{plan.argv[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(stdout[1])
            os.close(stderr[1])
        # What it loads takes time, which the launcher needs as well.
        from doubletime.cluster.processes import Descendants

        self._descendants = Descendants(earlier)

    @property
    def return_code(self) -> int:
        """The launcher's."""
        return self._process.wait()

    @property
    def said(self) -> bytes:
        """The launcher's own words."""
        return b"".join(stream.filter.said for stream in self._streams.values())

    def watch(self) -> None:
        """Return when the launcher has ended, or has been ended."""
        obeyed = 0
        has_failed = False
        ended = os.pidfd_open(self._process.pid)
        with selectors.DefaultSelector() as selector:
            for descriptor in (*self._streams, self._signals.descriptor, ended):
                selector.register(descriptor, selectors.EVENT_READ)
            try:
                while self._process.poll() is None:
                    ready = {key.fd for key, _ in selector.select(_POLL_S)}
                    for descriptor in self._streams.keys() & ready:
                        if not self._relay(descriptor):
                            selector.unregister(descriptor)
                    self._release_held()
                    self._shm.watch(lambda: [each.pid for each in self._descendants.alive()])
                    self._signals.drain()
                    if self._signals.has_pause:
                        self._pause()
                    if len(self._signals.numbers) > obeyed:
                        self._obey(is_repeated=obeyed > 0)
                        obeyed = len(self._signals.numbers)
                    elif not (has_failed or obeyed) and (after_s := self._has_failed()):
                        has_failed = True
                        self._schedule(after_s)
                    while self._steps and time.monotonic() >= self._steps[0][0]:
                        self._steps.pop(0)[1]()
            finally:
                os.close(ended)
        if self._process.returncode < 0 and not (has_failed or obeyed):
            self.died_s = time.time()

    def end(self) -> None:
        """End whatever is left of the job, but on hosts that are lost, and remove what it left here."""
        self._descendants.end(_LEFT_OVER_S)
        self._process.wait()
        for number, time_s in _ELSEWHERE_S:
            if number is not None:
                self._control.order(number)
            if self._control.settle(time_s):
                break
        else:
            self._control.order(signal.SIGKILL)
            self._control.losses()  # who is lost need not be waited for
            self._control.settle(_KILLED_ELSEWHERE_S)
        deadline = time.monotonic() + _LAST_OUTPUT_S
        open_streams = set(self._streams)
        while open_streams and time.monotonic() < deadline:
            ready, _, _ = select.select(open_streams, [], [], _POLL_S)
            open_streams -= {stream for stream in ready if not self._relay(stream)}
        for stream in self._streams.values():
            self._write_held(stream)
        self._close()
        self._shm.remove()
        if self._process.returncode:
            remove_topologies(self._began_s)
        session = self._implementation.dialect.session_folder
        if session is not None:
            import tempfile

            left = Path(tempfile.gettempdir(), session.format(pid=self._process.pid))
            shutil.rmtree(left, ignore_errors=True)

    def show(self, words: bytes) -> None:
        """Write to stderr."""
        self._write(2, words)

    def _close(self) -> None:
        for descriptor in self._streams:
            os.close(descriptor)

    def _relay(self, descriptor: int) -> bool:
        """Hand on what a readable stream holds; False where it has ended."""
        stream = self._streams[descriptor]
        chunk = os.read(descriptor, 1 << 16)
        stream.read_s = time.monotonic()
        self._write(stream.to, stream.filter.feed(chunk))
        return bool(chunk)

    def _release_held(self) -> None:
        """Hand on what might have become a banner, but did not go on."""
        for stream in self._streams.values():
            if stream.filter.is_holding and time.monotonic() - stream.read_s > _HELD_S:
                self._write_held(stream)

    def _write_held(self, stream: _Stream) -> None:
        """What might have become a banner; of a launcher that is told to end, an empty line may be all of it."""
        held = stream.filter.flush()
        if held.strip() or not self._signals.numbers:
            self._write(stream.to, held)

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write all, unless told to end meanwhile: a pager that reads no more must not stop us."""
        while data:
            if self._signals.has_pause:
                self._signals.drain()
                self._pause()
            if self._signals.numbers:
                ready = select.select([], [descriptor], [], 0)[1]
                if not ready:
                    return
            elif not select.select([self._signals.descriptor], [descriptor], [])[1]:
                continue
            try:
                data = data[os.write(descriptor, data[:_PIPE_BUF]) :]
            except BrokenPipeError:  # `| head` has seen enough: end as a plain program would
                self._signals.note(signal.SIGPIPE)
                return
            except OSError as error:
                if error.errno == errno.EIO:
                    self._signals.note(signal.SIGHUP)  # the terminal has been closed
                elif self.unwritten is None:  # a full disk is no reason to end a job
                    self.unwritten = str(error.strerror)
                    self._write(2, _INCOMPLETE.format(why=self.unwritten).encode())
                return

    def _pause(self) -> None:
        """Let all ranks stand still while this process does."""
        self._control.pause(is_on=True)
        self._signals.pause()
        self._control.pause(is_on=False)

    def _obey(self, *, is_repeated: bool) -> None:
        if is_repeated:
            self._steps = []
            self._signal(signal.SIGKILL)
            return
        number = self._signals.numbers[0]
        if number == signal.SIGTERM and self._grace_s:
            # To the ranks alone: their launcher would kill them at once.
            self._control.order(number)
            self._schedule(_AFTER_SIGNAL_S, self._grace_s)
            return
        # A Python that is just starting answers SIGINT with a traceback.
        is_quiet = number == signal.SIGPIPE or not self._control.has_ranks
        self._process.send_signal(signal.SIGTERM if is_quiet else number)
        self._schedule(_AFTER_SIGNAL_S)

    def _has_failed(self) -> tuple[float, float, float] | None:
        """How long the job has to end by itself, now that it has failed; None where it has not."""
        control = self._control
        if control.refusal or control.has_silent_hosts or control.has_deserted_ranks:
            return _AFTER_LOSS_S
        return _AFTER_FAILURE_S if self._control.failures() else None

    def _signal(self, number: int) -> None:
        """Send a signal to all of the job, on all hosts."""
        self._control.order(number)
        self._descendants.signal(number)

    def _schedule(self, after_s: tuple[float, float, float], grace_s: float = 0.0) -> None:
        now = time.monotonic() + grace_s
        self._steps = [
            (now + after_s[0], self._process.terminate),
            (now + after_s[1], lambda: self._signal(signal.SIGTERM)),
            (now + after_s[2], lambda: self._signal(signal.SIGKILL)),
        ]


def _grace_s(plan: launch.LaunchPlan) -> float:
    text = plan.environment.get(GRACE_VARIABLE) or os.environ.get(GRACE_VARIABLE, "0")
    if not (text.isascii() and text.replace(".", "", 1).isdigit()):
        raise LaunchError(
            f"{GRACE_VARIABLE}={text!r} is no time in seconds", f"{GRACE_VARIABLE}=30, or unset it"
        )
    return float(text)


def _children() -> list[psutil.Process]:
    """This process's own, which are none of the job's."""
    if not has_children():
        return []
    import psutil

    return psutil.Process().children()


class _Stream:
    """One of the job's output streams.

    Attributes:
        to: the descriptor that it goes on to.
        filter: what takes the launcher's banners out.
        read_s: when something last came, by the monotonic clock.
    """

    def __init__(self, to: int) -> None:
        self.to = to
        self.filter = banners.BannerFilter()
        self.read_s = 0.0


def _environment(plan: launch.LaunchPlan, control: Control) -> dict[str, str]:
    wanted = {
        **os.environ,
        **_terminal(),
        **plan.environment,
        channel.VARIABLE: str(control.address),
    }
    wanted.pop(launch.LAST_VARIABLE, None)
    return {**wanted, launch.LAST_VARIABLE: ""}


def _terminal() -> dict[str, str]:
    """Variables that let a rank's progress bar know the terminal, which its pipe hides."""
    if not os.isatty(1) or "NO_COLOR" in os.environ:
        return {}
    size = shutil.get_terminal_size()  # 80 by 24 where the terminal does not know
    wanted = {"FORCE_COLOR": "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def _end_with_parent() -> None:
    """In the launcher before it starts: SIGTERM to it should we be killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
