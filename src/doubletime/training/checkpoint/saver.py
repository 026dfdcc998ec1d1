"""Saves one checkpoint after the other, each by a thread of this rank while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doubletime.training import session
from doubletime.training.checkpoint import contents, folder, storage
from doubletime.training.checkpoint.contents import Parts
from doubletime.training.checkpoint.exchange import of_all
from doubletime.training.parallelize import sum_over_ranks


@dataclass(frozen=True)
class Saved:
    """A checkpoint is whole, and on the disk.

    Attributes:
        path: its folder.
        step: since the run's begin.
        nbytes: of all tensors and objects in it.
        pause_s: how long training stood still for it, on rank 0.
        total_s: from the first copy until it was whole.
    """

    path: Path
    step: int
    nbytes: int
    pause_s: float
    total_s: float


@dataclass(frozen=True)
class Lost:
    """A checkpoint could not be written; those before are as they were.

    Attributes:
        step: since the run's begin.
        why: the first rank that could not write, and the reason.
    """

    step: int
    why: str


class Saver:
    """See the module. All ranks must call `begin` and `conclude` alike.

    Args:
        folder: of the run's checkpoints, on a file system that all hosts share.
        keep: so many of them are kept.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._joined = session.current()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="doubletime-checkpoint")
        self._share: storage.Share | None = None
        self._is_copied = threading.Event()
        self._is_copied.set()
        self._step = 0
        self._began_s = self._pause_s = 0.0
        self._writing: Future[None] | None = None
        self._finishing: Future[Saved] | None = None
        self._outcomes: list[Saved | Lost] = []

    @property
    def is_pending(self) -> bool:
        """Whether a checkpoint is begun and not concluded: the same on all ranks."""
        return self._writing is not None

    @property
    def has_written(self) -> bool:
        """Whether this rank has written its share of it, well or not."""
        return self._writing is not None and self._writing.done()

    @property
    def has_failed(self) -> bool:
        """Whether this rank could not write its share."""
        return (
            self._writing is not None
            and self._writing.done()
            and self._writing.exception() is not None
        )

    def begin(
        self, step: int, parts: Parts, run: Mapping[str, Any], own: Mapping[str, Any]
    ) -> None:
        """Copy what is to be saved, and have it written; collective, and short.

        The thread copies what only `optimizer.step()` changes: `await_copy` before the next one.

        Args:
            step: since the run's begin; greater than that of checkpoints before.
            parts: what is trained.
            run: what else belongs to the run; rank 0's is saved.
            own: what belongs to this rank.
        """
        self.settle()
        self._began_s = time.perf_counter()
        self._step = step
        state = contents.flatten(parts, run, own, self._joined.rank)
        names = storage.signature(state)
        is_other = self._share is None or self._share.signature != names
        if self._any(is_other) or self._share is None:
            self._share = storage.plan(state)
        may_wait = contents.changes_with_steps_only(parts)
        copied = storage.copy(self._share, state, may_wait.__contains__)
        partial = folder.partial(self._folder, step)
        self._is_copied.clear()
        self._writing = self._threads.submit(self._write, copied, partial)
        self._pause_s = time.perf_counter() - self._began_s

    def await_copy(self) -> None:
        """Wait until parameters may change again."""
        if self._is_copied.is_set():
            return
        began_s = time.perf_counter()
        self._is_copied.wait()
        self._pause_s += time.perf_counter() - began_s

    def conclude(self, failed: int) -> None:
        """All ranks have written, or could not; collective.

        Args:
            failed: how many could not, as all ranks know.
        """
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        partial = folder.partial(self._folder, self._step)
        if failed:
            why = self._first_reason(writing.exception())
            self._outcomes.append(Lost(self._step, why))
            if self._joined.rank == 0:
                self._threads.submit(folder.discard, partial)
        elif self._joined.rank == 0:
            self._finishing = self._threads.submit(self._finish, partial, self._step)

    def settle(self) -> None:
        """Wait until what is begun is whole, or lost, on all ranks; collective."""
        if self._writing is None and self._step == 0:
            return
        self.await_copy()
        if self._writing is not None:
            is_lost = self._writing.exception() is not None
            self.conclude(self._count(is_lost))
        self._collect(wait=True)
        self._count(False)  # the others wait until rank 0 has finished

    def outcomes(self) -> Iterator[Saved | Lost]:
        """What has become of checkpoints since the last call, on rank 0."""
        self._collect(wait=False)
        while self._outcomes:
            yield self._outcomes.pop(0)

    def close(self) -> None:
        """End the thread; what it has begun to write it still writes."""
        self._threads.shutdown()

    def _write(self, copied: storage.Copied, partial: Path) -> None:
        try:
            copied.complete()
        finally:
            self._is_copied.set()
        storage.write(copied, partial, self._joined.rank)

    def _finish(self, partial: Path, step: int) -> Saved:
        if self._share is None:
            raise AssertionError("a checkpoint that was written has a plan")
        nbytes = storage.finish(self._share, partial, self._joined.world_size)
        path = folder.commit(partial)
        folder.keep_last(self._folder, self._keep)
        total_s = time.perf_counter() - self._began_s
        return Saved(path, step, nbytes, self._pause_s, total_s)

    def _collect(self, *, wait: bool) -> None:
        if self._finishing is None or not (wait or self._finishing.done()):
            return
        error = self._finishing.exception()
        if error is None:
            self._outcomes.append(self._finishing.result())
        else:
            self._outcomes.append(Lost(self._step, f"rank 0: {reason(error)}"))
            self._threads.submit(folder.discard, folder.partial(self._folder, self._step))
        self._finishing = None

    def _first_reason(self, error: BaseException | None) -> str:
        everyone = of_all(None if error is None else reason(error))
        return next(f"rank {rank}: {why}" for rank, why in enumerate(everyone) if why)

    def _any(self, claim: bool) -> bool:
        return self._count(claim) > 0

    def _count(self, claim: bool) -> int:
        return int(sum_over_ranks([float(claim)])[0])


def reason(error: BaseException) -> str:
    """Why something could not be written, in the file system's words where there are any."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            where = f": {cause.filename}" if cause.filename else ""
            return f"{cause.strerror}{where}"
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0] if str(error) else type(error).__name__
