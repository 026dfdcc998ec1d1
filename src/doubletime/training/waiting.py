"""How long a rank waits for communication in a step.

No `from __future__ import annotations` here: DistributedDataParallel reads its hook's annotations.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


class WaitingClock:
    """How long a rank's backward passes wait for communication.

    DistributedDataParallel sends gradients in buckets while it computes the rest. What it could
    not hide is the time from the last bucket's launch, when this rank's own gradients are all
    computed, until `backward()` returns; together with time spent launching. It holds the
    transfer itself and the wait for slower ranks, and no computation.

    Only for models on the CPU: a GPU runs behind the clock of its host.

    Attributes:
        waited_s: seconds, over all steps measured so far.
        is_watching: whether it can be measured.
    """

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.is_watching = True
        self._launching_s = 0.0
        self._last_launch_s = 0.0
        self._transfers: list[tuple[float, float]] = []

    def watch(self, model: DistributedDataParallel) -> None:
        """Count this model's steps; takes the place of its communication hook."""
        model.register_comm_hook(None, self._average)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around `backward()`."""
        self._launching_s, self._last_launch_s = 0.0, 0.0
        self._transfers.clear()
        yield
        if self._transfers:
            last_s = self._last_launch_s
            self.waited_s += sum(
                max(0.0, end - max(began, last_s)) for began, end in self._transfers
            )
        elif self._last_launch_s:  # 0 where nothing was sent
            self.waited_s += self._launching_s + time.perf_counter() - self._last_launch_s

    def launched(self) -> None:
        """A bucket was handed to a thread that tells of its transfers, and computes between them."""
        self._last_launch_s = time.perf_counter()

    def transferred(self, began_s: float, ended_s: float) -> None:
        """That thread has waited for other ranks from one time until another."""
        self._transfers.append((began_s, ended_s))

    def waited(self, began_s: float, ended_s: float) -> None:
        """This rank has stood still for others from one time until another."""
        self.waited_s += ended_s - began_s

    def _average(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """What DistributedDataParallel does by default: divide, sum over the ranks."""
        gradients = bucket.buffer()
        gradients.div_(dist.get_world_size())
        started_s = time.perf_counter()
        work = dist.all_reduce(gradients, async_op=True)
        self._last_launch_s = time.perf_counter()
        self._launching_s += self._last_launch_s - started_s
        future: torch.futures.Future[Tensor] = work.get_future().then(_first)
        return future


def _first(done: torch.futures.Future[list[Tensor]]) -> Tensor:
    return done.value()[0]
