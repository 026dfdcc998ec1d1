"""How an algorithm's messages travel: by MPI, by point-to-point calls of torch.distributed, by NCCL's groups."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from doubletime.collectives.execution import Condition
from doubletime.mpi.group import Group


class MPIWire:
    """Nonblocking MPI calls on the communicator that the group's collectives use.

    Args:
        group: of the mpi backend; this thread is carrying out one of its collectives.
    """

    def __init__(self, group: Group) -> None:
        self._transport = group.transport

    def send(self, part: torch.Tensor, peer: int) -> Condition:
        """See `Wire`."""
        return _all(self._transport.send(part, peer))

    def receive(self, part: torch.Tensor, peer: int) -> Condition:
        """See `Wire`."""
        return _all(self._transport.receive(part, peer))

    def flush(self) -> None:
        """See `Wire`."""


class C10dWire:
    """isend and irecv of a backend whose messages start at once, such as gloo; its conditions wait."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def send(self, part: torch.Tensor, peer: int) -> Condition:
        """See `Wire`."""
        return _waited(self._group.send([part], peer, 0))

    def receive(self, part: torch.Tensor, peer: int) -> Condition:
        """See `Wire`."""
        return _waited(self._group.recv([part], peer, 0))

    def flush(self) -> None:
        """See `Wire`."""


class BatchWire:
    """Batches of isend and irecv: what NCCL needs, where a lone message blocks those after it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._batch: list[dist.P2POp] = []
        self._works: list[dist.Work] = []

    def send(self, part: torch.Tensor, peer: int) -> Condition:
        """See `Wire`."""
        return self._add(dist.isend, part, peer)

    def receive(self, part: torch.Tensor, peer: int) -> Condition:
        """See `Wire`."""
        return self._add(dist.irecv, part, peer)

    def flush(self) -> None:
        """Start the batch."""
        if self._batch:
            self._works = list(dist.batch_isend_irecv(self._batch))
            self._batch = []

    def _add(self, call: Any, part: torch.Tensor, peer: int) -> Condition:
        self._batch.append(dist.P2POp(call, part, group=self._group, group_peer=peer))
        return self._is_over

    def _is_over(self) -> bool:
        # Orders the current stream behind the batch; the host does not wait.
        for work in self._works:
            work.wait()
        self._works = []
        return True


def _all(requests: list[Any]) -> Condition:
    if len(requests) == 1:
        return requests[0].Test  # type: ignore[no-any-return]
    waiting = deque(requests)

    def are_over() -> bool:
        while waiting and waiting[0].Test():
            waiting.popleft()
        return not waiting

    return are_over


def _waited(work: Any) -> Condition:
    return partial(_wait, work)


def _wait(work: Any) -> bool:
    work.wait()
    return True
