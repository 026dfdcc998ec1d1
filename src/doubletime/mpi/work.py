"""The handle of an operation in flight, as torch.distributed knows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from doubletime.mpi.callbacks import Callbacks, Future
from doubletime.mpi.engine import Engine, Job

_WorkBase: Any = dist.Work


class Work(_WorkBase):  # type: ignore[misc]
    """One operation of one group.

    Args:
        result: the tensors that hold the outcome, handed to futures.
        callbacks: runs the callbacks of the futures.
        settle: called in the thread that waits, once the operation is done: orders the outcome of CUDA
            tensors with the current stream.
    """

    # What most works never set costs nothing to make here.
    _is_done = False
    _done: threading.Event | None = None
    _error: Exception | None = None
    _future: Future | None = None
    _engine: Engine | None = None
    _job: Job | None = None
    source = -1
    # One lock for all: it is held for a few instructions.
    _lock = threading.Lock()

    def __init__(
        self,
        result: Sequence[torch.Tensor],
        callbacks: Callbacks,
        settle: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._result = list(result)
        self._callbacks = callbacks
        self._settle = settle

    def belongs_to(self, engine: Engine, job: Job) -> None:
        """A message: a waiting thread may take it back from the engine."""
        self._engine, self._job = engine, job

    def done(self, error: Exception | None) -> None:
        """The operation is over; called by whoever carried it out."""
        with self._lock:
            self._error = error
            self._is_done = True
            if self._done is not None:
                self._done.set()
            future = self._future
        if future is not None:
            self._complete(future)

    def _complete(self, future: Future) -> None:
        if self._error is not None:
            future.set_exception(self._error)
        else:
            if self._settle is not None:
                self._settle()
            future.set_result(self._result)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when the operation is done.

        Args:
            timeout: how long to wait at most; 0 or less for as long as the operation's own limit.

        Raises:
            RuntimeError: if `timeout` passes; the operation goes on.
            Exception: the operation's own error.
        """
        if not self._is_done:
            limit_s = timeout.total_seconds()
            if limit_s > 0:
                if not self._done_event().wait(limit_s):
                    raise RuntimeError(
                        f"wait timeout: the operation is not done after {limit_s:g} s"
                    )
            elif self._engine is None or self._job is None or not self._engine.claim(self._job):
                self._done_event().wait()
        if self._error is not None:
            raise self._error
        if self._settle is not None:
            self._settle()
        return True

    def _done_event(self) -> threading.Event:
        """Set when the operation is over; made only for those who wait: most need none."""
        with self._lock:
            if self._done is None:
                self._done = threading.Event()
                if self._is_done:
                    self._done.set()
            return self._done

    def is_completed(self) -> bool:
        """Whether it is over, well or badly."""
        return self._is_done

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self._is_done and self._error is None

    def exception(self) -> Exception | None:
        """The error it ended with."""
        return self._error

    def synchronize(self) -> None:
        """Order what follows on the current stream behind the outcome."""
        self.wait()

    def block_current_stream(self) -> None:
        """Order what follows on the current stream behind the outcome."""
        self.wait()

    def source_rank(self) -> int:
        """The rank in the group that a message from any source came from."""
        return self.source

    _source_rank = source_rank

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the outcome."""
        return self._result

    def get_future(self) -> Future:
        """A future that completes by itself with `result()`; its callbacks run on a thread of their own."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = Future(self._callbacks)
            is_done = self._is_done
        if is_done:
            self._complete(self._future)
        return self._future


class Together(_WorkBase):  # type: ignore[misc]
    """Several works as one: done when all are."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for each in turn; raises the first error."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all are over."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all went well."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        """The first error."""
        return next((work.exception() for work in self._works if work.exception()), None)

    def result(self) -> list[torch.Tensor]:
        """The tensors of all."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that completes by itself when all are done."""
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda done: [tensor for future in done.value() for tensor in future.value()]
        )
