"""Start a job, watch it, end all of it when one rank fails, and tell why it ended."""

from __future__ import annotations

import ctypes
import os
import select
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from doubletime import failure
from doubletime.cluster import banners, implementations, launch
from doubletime.cluster.implementations import Implementation
from doubletime.cluster.processes import Descendants, SharedMemoryFiles, adopting_orphans
from doubletime.cluster.signals import Received, received
from doubletime.environment import own_cores
from doubletime.errors import LaunchError
from doubletime.failure import Failure

_PR_SET_PDEATHSIG = 1
_PIPE_BUF = select.PIPE_BUF  # a pipe that is writable takes so much without blocking
_POLL_S = 0.05
_HELD_S = 0.2  # a launcher writes its banner at once: what waits longer for its next line is none
_LAST_OUTPUT_S = 1.0

# Seconds after which the launcher gets SIGTERM (it then tidies up), all processes get SIGTERM, and
# all get SIGKILL: after a rank has failed, which the launcher should see by itself, and after
# a person has said stop.
_AFTER_FAILURE_S = (0.8, 1.3, 2.0)
_AFTER_SIGNAL_S = (0.5, 0.8, 1.2)
# What processes that outlive the launcher get: to end by themselves, and after SIGTERM.
_LEFT_OVER_S = (0.3, 0.3)


def run_local(
    command: Sequence[str],
    ranks: int,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    bind: bool = True,
) -> int:
    """Run a command on so many ranks of this host, with the MPI at hand.

    Args:
        command: what each rank runs.
        ranks: how many, at least 1.
        environment: variables for the ranks, besides this process's.
        bind: whether ranks may be bound to cores.

    Returns:
        The job's exit code: the first failed rank's, or 128 + n after signal n.

    Raises:
        LaunchError: if there is no MPI, or the job cannot be started.
    """
    implementation = implementations.find()
    return supervise(
        plan_local(command, ranks, implementation, environment=environment, bind=bind),
        implementation,
    )


def plan_local(
    command: Sequence[str],
    ranks: int,
    implementation: Implementation,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    bind: bool = True,
) -> launch.LaunchPlan:
    """The plan that `run_local` carries out, from what this process and host are.

    Raises:
        LaunchError: if there is no command, or less than one rank.
    """
    return launch.plan(
        command,
        ranks,
        implementation,
        cores=launch.Cores(own=own_cores(), online=os.cpu_count() or 1),
        python=sys.executable,
        user_environment=os.environ,
        environment=environment,
        is_root=os.geteuid() == 0,
        bind=bind,
    )


def supervise(plan: launch.LaunchPlan, implementation: Implementation) -> int:
    """Carry out a plan; when this returns, no process, folder or /dev/shm file of it is left.

    What the ranks write comes out of this process's stdout and stderr as it comes; why the job
    failed stands last. Their stdin is empty. In the main thread, signals that would end this
    process (SIGINT, SIGTERM, SIGHUP) end the job instead.

    Args:
        plan: what to start.
        implementation: whose launcher it is.

    Returns:
        The job's exit code: the first failed rank's, or 128 + n after signal n.

    Raises:
        LaunchError: if the launcher cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with (
        tempfile.TemporaryDirectory(prefix="doubletime-", ignore_cleanup_errors=True) as name,
        adopting_orphans(),
        received() as signals,
    ):
        folder = Path(name)
        job = _Job(plan, implementation, folder, signals)
        try:
            job.watch()
        finally:
            job.end()
        exit_code, last_words = verdict(
            implementation,
            job.return_code,
            failure.read(folder),
            job.said,
            interrupted_by=signals.numbers[0] if signals.numbers else None,
        )
        signals.numbers.clear()
        job.show(last_words)
    return exit_code


def verdict(
    implementation: Implementation,
    return_code: int,
    failures: Sequence[Failure],
    said: bytes,
    *,
    interrupted_by: int | None,
) -> tuple[int, bytes]:
    """How the job ended: the exit code, and what is to stand last on the terminal.

    Args:
        implementation: whose launcher it was.
        return_code: the launcher's, negative after a signal.
        failures: the ranks' records, the earliest first.
        said: the launcher's own words.
        interrupted_by: the signal that this process was told to end by.
    """
    if interrupted_by is not None:
        name = signal.Signals(interrupted_by).name
        return 128 + interrupted_by, f"doubletime: ended by {name}\n".encode()
    if failures:
        return failures[0].exit_code or 1, failures[0].show().encode(errors="backslashreplace")
    if return_code == 0:
        return 0, said
    number = banners.signal_in(said)
    if return_code < 0:
        exit_code, why = 128 - return_code, f"its mpiexec died by signal {-return_code}"
    elif number is not None:
        exit_code, why = 128 + number, f"a rank died by signal {number}"
    else:
        exit_code, why = return_code, f"exit code {return_code}, and no rank left a record"
    return exit_code, said + f"doubletime: the {implementation} job failed: {why}\n".encode()


class _Job:
    """A launcher that runs, and all that descends from it."""

    def __init__(
        self,
        plan: launch.LaunchPlan,
        implementation: Implementation,
        folder: Path,
        signals: Received,
    ) -> None:
        self._implementation = implementation
        self._folder = folder
        self._signals = signals
        self._descendants = Descendants.from_now_on()
        self._shm = SharedMemoryFiles(implementation.dialect.shm_prefixes)
        self._steps: list[tuple[float, Callable[[], None]]] = []
        stdout, stderr = os.pipe(), os.pipe()
        self._streams = {stdout[0]: _Stream(to=1), stderr[0]: _Stream(to=2)}
        try:
            self._process = subprocess.Popen(
                plan.argv,
                env={
                    **os.environ,
                    **_terminal(),
                    **plan.environment,
                    failure.FOLDER_VARIABLE: str(folder),
                },
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
                    self._shm.watch(self._descendants.alive)
                    self._signals.drain()
                    if len(self._signals.numbers) > obeyed:
                        self._obey(is_repeated=obeyed > 0)
                        obeyed = len(self._signals.numbers)
                    elif not (has_failed or obeyed) and any(self._folder.glob("rank-*.json")):
                        has_failed = True
                        self._schedule(_AFTER_FAILURE_S)
                    while self._steps and time.monotonic() >= self._steps[0][0]:
                        self._steps.pop(0)[1]()
            finally:
                os.close(ended)

    def end(self) -> None:
        """End whatever is left of the job and remove what it left behind."""
        self._descendants.end(_LEFT_OVER_S)
        self._process.wait()
        deadline = time.monotonic() + _LAST_OUTPUT_S
        open_streams = set(self._streams)
        while open_streams and time.monotonic() < deadline:
            ready, _, _ = select.select(open_streams, [], [], _POLL_S)
            open_streams -= {stream for stream in ready if not self._relay(stream)}
        for stream in self._streams.values():
            self._write(stream.to, stream.filter.flush())
        self._close()
        self._shm.remove()
        session = self._implementation.dialect.session_folder
        if session is not None:
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
                self._write(stream.to, stream.filter.flush())

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write all, unless told to end meanwhile: a pager that reads no more must not stop us."""
        while data:
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

    def _obey(self, *, is_repeated: bool) -> None:
        if is_repeated:
            self._steps = []
            self._descendants.signal(signal.SIGKILL)
            return
        number = self._signals.numbers[0]
        self._process.send_signal(signal.SIGTERM if number == signal.SIGPIPE else number)
        self._schedule(_AFTER_SIGNAL_S)

    def _schedule(self, after_s: tuple[float, float, float]) -> None:
        now = time.monotonic()
        self._steps = [
            (now + after_s[0], self._process.terminate),
            (now + after_s[1], lambda: self._descendants.signal(signal.SIGTERM)),
            (now + after_s[2], lambda: self._descendants.signal(signal.SIGKILL)),
        ]


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
