"""Operations in flight: one communication thread per group carries them out in the order of issue.

Collectives of a group run one after the other; point-to-point messages, already posted by their
callers, are looked after beside them. A synchronous call on an idle group takes the short way, in the
caller's thread. The thread starts with the first operation that needs it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from doubletime.errors import CollectiveError
from doubletime.mpi.waiting import Condition, Operation, Pause, drive, sharpen_timers

_LOOK_EVERY_S = 0.05


class Job:
    """One operation on its way.

    Args:
        operation: what is to be done.
        timeout_s: how long it may wait, in seconds, from when it begins.
        on_wait: called now and then while it waits with the seconds waited; raises to give up early.
        on_timeout: the error to end with after `timeout_s`.
        on_done: called once in the thread that finished it, with the error if it failed.
    """

    def __init__(
        self,
        operation: Operation,
        timeout_s: float,
        on_wait: Callable[[float], None],
        on_timeout: Callable[[], Exception],
        on_done: Callable[[Exception | None], None],
    ) -> None:
        self.operation = operation
        self.timeout_s = timeout_s
        self.on_wait = on_wait
        self.on_timeout = on_timeout
        self.on_done = on_done
        self.is_done = False
        self.error: Exception | None = None
        self.given_up: Exception | None = None
        self._condition: Condition | None = None
        self._began_s = 0.0
        self._looked_s = 0.0

    def advance(self) -> bool:
        """Go on as far as possible without waiting; True if it moved. Ends at an error."""
        if self._began_s == 0.0:
            self._began_s = self._looked_s = time.monotonic()
        moved = False
        try:
            while self._condition is None or self._condition():
                moved = True
                self._condition = next(self.operation)
            if not moved:
                self._look(time.monotonic())
        except StopIteration:
            self.finish(None)
        except Exception as error:
            self.finish(error)
        return moved or self.is_done

    def post(self) -> None:
        """Begin, but leave even a quick end to another thread."""
        self._began_s = self._looked_s = time.monotonic()
        try:
            self._condition = next(self.operation)
        except Exception as error:
            self.finish(error)

    def run(self, spin_s: float) -> None:
        """Carry it out here and now; errors end in `error`."""
        self._began_s = self._looked_s = time.monotonic()
        try:
            if self._condition is not None:  # it was under way in another thread
                drive(_wait_for(self._condition), spin_s, self._waited)
            drive(self.operation, spin_s, self._waited)
        except Exception as error:
            self.finish(error)
        except BaseException as error:  # Ctrl-C in the caller's thread
            self.finish(CollectiveError(f"interrupted by {type(error).__name__}"))
            raise
        else:
            self.finish(None)

    def finish(self, error: Exception | None) -> None:
        """Note that it is over."""
        self.error = error
        self.is_done = True
        self.on_done(error)

    def _waited(self, _: float) -> None:
        self._look(time.monotonic())

    def _look(self, now_s: float) -> None:
        if now_s - self._looked_s < _LOOK_EVERY_S and now_s - self._began_s < self.timeout_s:
            return
        self._looked_s = now_s
        if self.given_up is not None:
            raise self.given_up
        if now_s - self._began_s >= self.timeout_s:
            raise self.on_timeout()
        self.on_wait(now_s - self._began_s)


def _wait_for(condition: Condition) -> Operation:
    yield condition


class Engine:
    """Carries out the operations of one group.

    Args:
        name: of the communication thread.
        inline_spin_s: how long a caller's thread spins before it sleeps.
        thread_spin_s: the same for the communication thread, which shares its core with the computation.
    """

    def __init__(self, name: str, inline_spin_s: float, thread_spin_s: float) -> None:
        self._name = name
        self._inline_spin_s = inline_spin_s
        self._thread_spin_s = thread_spin_s
        self._wake = threading.Condition()
        self._queue: deque[Job] = deque()
        self._messages: list[Job] = []
        self._running = threading.Lock()
        self._runner = 0
        # What callers' threads are carrying out themselves, and which thread does.
        self._here: dict[Job, int] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._abandoned: list[Job] = []
        self.broken: Exception | None = None

    def run_or_queue(self, job: Job, may_run_here: bool) -> None:
        """A collective: at once in this thread if nothing is before it, else by the communication thread.

        Raises:
            Exception: the error of an earlier operation that left the group unusable.
        """
        if may_run_here and self.take():
            try:
                self.run(job)
            finally:
                self.give_back()
            return
        with self._wake:
            self._check()
            self._queue.append(job)
            self._start_thread()
            self._wake.notify()

    def take(self) -> bool:
        """Whether this thread may carry out a collective itself, nothing being before it; then `give_back`.

        Raises:
            Exception: the error of an earlier operation that left the group unusable.
        """
        self._check()
        if self._queue or not self._running.acquire(blocking=False):
            return False
        self._runner = threading.get_ident()
        return True

    def run(self, job: Job) -> None:
        """Carry an operation out in this thread."""
        self._here[job] = threading.get_ident()
        job.given_up = self.broken
        try:
            job.run(self._inline_spin_s)
        finally:
            del self._here[job]
            self._note(job)

    def give_back(self) -> None:
        """Let other threads carry out collectives again."""
        self._running.release()

    def look_after(self, job: Job, may_finish_here: bool) -> None:
        """A message: post it now, in this thread, and see it through beside the collectives."""
        self._here[job] = threading.get_ident()
        try:
            self._check()
            if may_finish_here:
                job.advance()
            else:
                job.post()
        finally:
            del self._here[job]
        self._note(job)
        if not job.is_done:
            with self._wake:
                self._messages.append(job)
                self._start_thread()
                self._wake.notify()

    def claim(self, job: Job) -> bool:
        """Take a message back and see it through in this thread; False if it is not one in flight."""
        with self._wake:
            if job not in self._messages:
                return False
            self._messages.remove(job)
        self.run(job)
        return True

    def stop(self, error: Exception | None = None) -> None:
        """Let no operation be under way: wait for each, or end it at once with this error.

        From then on no thread of the program gets into MPI by this group.
        """
        with self._wake:
            self._stopping = True
            if error is not None:
                self._break(error)
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        me = threading.get_ident()
        while not (self._running.acquire(blocking=False) or self._runner == me):
            time.sleep(0.001)
        self._runner = me
        while any(thread != me for thread in list(self._here.values())):
            time.sleep(0.001)

    def is_idle_within(self, patience_s: float) -> bool:
        """Whether nothing is under way any more, after `patience_s` seconds at most."""
        end_s = time.monotonic() + patience_s
        while self._queue or self._messages or self._here or self._running.locked():
            if time.monotonic() > end_s:
                return False
            time.sleep(0.001)
        return True

    def _check(self) -> None:
        if self.broken is not None:
            raise CollectiveError(
                f"this group is unusable since an earlier operation failed: {self.broken}"
            )
        if self._stopping:
            raise CollectiveError(
                "this group has been destroyed", "init_process_group or new_group again"
            )

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        sharpen_timers()
        pause = Pause(self._thread_spin_s)
        while True:
            with self._wake:
                while not (self._queue or self._messages):
                    if self._stopping:
                        return
                    self._wake.wait()
                    pause.reset()
                moved = self._advance_messages()
            moved |= self._advance_collective()
            if moved:
                pause.reset()
            else:
                pause.once()

    def _advance_messages(self) -> bool:
        moved = False
        for job in list(self._messages):
            moved |= job.advance()
            if job.is_done:
                self._messages.remove(job)
                self._note(job)
        return moved

    def _advance_collective(self) -> bool:
        if not self._queue or not self._running.acquire(blocking=False):
            return False
        try:
            job = self._queue[0]
            moved = job.advance()
            if job.is_done:
                self._queue.popleft()
                self._note(job)
            return moved
        finally:
            self._running.release()

    def _note(self, job: Job) -> None:
        """After a failure nothing on this communicator can be trusted to match."""
        if isinstance(job.error, CollectiveError):
            self._abandoned.append(job)  # MPI may still write into its buffers
            with self._wake:
                self._break(job.error)

    def _break(self, error: Exception) -> None:
        self.broken = error
        for job in list(self._here):
            job.given_up = error
        for job in [*self._queue, *self._messages]:
            if not job.is_done:
                self._abandoned.append(job)
                job.finish(error)
        self._queue.clear()
        self._messages.clear()
