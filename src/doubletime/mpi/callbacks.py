"""Futures whose callbacks run in the same order on every rank, on a thread where they may wait.

A callback may issue further operations and wait for them (PowerSGD's does). All ranks must then run
callbacks in one order, so they run one after the other in the order in which they were registered, each
when its future is complete, never at once in the registering thread. What they issue has an order (and a
communicator) of its own: `depth` tells a thread that runs callbacks from one that runs the program.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from doubletime.errors import CollectiveError

_log = logging.getLogger(__name__)


class _Thread(threading.local):
    """What a thread that uses a group is; `__init__` runs in each when it first does."""

    depth = 0

    def __init__(self) -> None:
        _users.add(threading.current_thread())


_users: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_thread = _Thread()
_Base: Any = torch.futures.Future


def depth() -> int:
    """How deep in callbacks this thread is: 0 in the program, 1 in a callback of its operations, …."""
    return _thread.depth


def await_users(patience_s: float) -> None:
    """Give the other threads that have used a group a moment to end.

    A thread that the end of the interpreter finds inside torch's C++ would abort the process.
    """
    end_s = time.monotonic() + patience_s
    for thread in list(_users):
        # torch's own threads, dummies to Python, cannot be joined
        if thread is not threading.current_thread() and not isinstance(
            thread, threading._DummyThread
        ):
            thread.join(max(0.0, end_s - time.monotonic()))


class Callbacks:
    """The thread that runs the callbacks of one lane's futures; starts with the first callback.

    Args:
        name: of the lane.
    """

    def __init__(self, name: str) -> None:
        self._name = f"doubletime-{name}-callbacks"
        self._depth = depth() + 1
        self._wake = threading.Condition()
        self._queue: deque[tuple[threading.Event, Callable[[], None]]] = deque()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def add(self, ready: threading.Event, callback: Callable[[], None]) -> None:
        """Call `callback` after all earlier ones and after `ready`."""
        with self._wake:
            self._queue.append((ready, callback))
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                self._thread.start()
            self._wake.notify()

    def stop(self, patience_s: float) -> None:
        """Let what can run still run, then end the thread; a stuck one is left after `patience_s`."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            end_s = time.monotonic() + patience_s
            self._thread.join(max(0.0, end_s - time.monotonic()))

    def _loop(self) -> None:
        _thread.depth = self._depth
        while True:
            with self._wake:
                while not self._queue:
                    if self._stopping:
                        return
                    self._wake.wait()
                ready, callback = self._queue.popleft()
            ready.wait()
            callback()
            del callback


class Future(_Base):  # type: ignore[misc]
    """A torch future of one lane; complete it with `set_result` or `set_exception`.

    Args:
        callbacks: runs what is registered with `then` and `add_done_callback`.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        super().__init__()
        self._callbacks = callbacks
        self._ready = threading.Event()

    def set_result(self, result: Any) -> None:
        """Complete it well."""
        super().set_result(result)
        self._ready.set()

    def set_exception(self, error: Any) -> None:
        """Complete it badly."""
        super().set_exception(error)
        self._ready.set()

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """A future of what `callback(self)` returns, called when this one is complete."""
        child = Future(self._callbacks)

        def run() -> None:
            try:
                result = callback(self)
            except Exception as error:
                child.set_exception(error)
            except BaseException as error:
                child.set_exception(_ended(error))
            else:
                child.set_result(result)

        self._callbacks.add(self._ready, run)
        return child

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback(self)` when this future is complete; its error is logged, not raised."""

        def run() -> None:
            try:
                callback(self)
            except BaseException:
                _log.exception("a callback of an mpi operation's future failed")

        self._callbacks.add(self._ready, run)


def _ended(error: BaseException) -> CollectiveError:
    """What waits for a callback that wanted to end the program; the thread it is on is not the program."""
    failed = CollectiveError(
        f"a future's callback raised {error!r}, which ends neither the program nor the job",
        "raise an Exception in the callback, and call sys.exit in the program itself",
    )
    failed.__cause__ = error
    return failed
