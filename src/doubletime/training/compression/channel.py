"""How compressed gradients travel: collectives of one group, counted and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from doubletime.collectives import run
from doubletime.collectives.auto import choose
from doubletime.collectives.catalogue import AUTO, find
from doubletime.collectives.choice import NATIVE, Choice
from doubletime.collectives.party import party_of
from doubletime.collectives.schedule import Collective


class Channel:
    """The collectives that exchanges of gradients are made of.

    Args:
        group: whose ranks exchange.
        algorithm: by which reduction algorithm, `auto`, or `native`: the backend's own way.
        on_waited: told when each collective began and ended, by `time.perf_counter`.

    Attributes:
        world_size: ranks of the group.
        sent_nbytes: what this rank had to send so far, in bytes, if each collective sends no more
            than it must: 2(p-1)/p·n for an all_reduce of n bytes, (p-1)/p·n for an all_to_all,
            (p-1)·n for an all_gather of n bytes from each.

    Raises:
        ScheduleError: if there is no such algorithm.
    """

    def __init__(
        self,
        group: Any,
        algorithm: str = NATIVE,
        on_waited: Callable[[float, float], None] | None = None,
    ) -> None:
        self._party = party_of(group)
        self._algorithm = algorithm
        self._fixed = None if algorithm == AUTO else Choice(algorithm)
        self._on_waited = on_waited
        self.world_size: int = self._party.world_size
        self.rank: int = self._party.rank
        self.sent_nbytes = 0.0

    def mean(self, flat: Tensor) -> None:
        """The mean over all ranks, in place; the same bits on all."""
        flat.div_(self.world_size)
        with self._under_way(all_reduce_nbytes(flat.nbytes, self.world_size)):
            choice = self._choice("all_reduce", flat.nbytes)
            run.all_reduce(self._party, flat, dist.ReduceOp.SUM, choice)

    def all_gather(self, part: Tensor) -> Tensor:
        """All ranks' parts, (p, n), of each rank's n bytes; uint8."""
        whole = torch.empty((self.world_size, part.numel()), dtype=torch.uint8, device=part.device)
        with self._under_way((self.world_size - 1) * part.nbytes):
            choice = self._choice("all_gather", whole.nbytes)
            if choice.algorithm == NATIVE:
                dist.all_gather(list(whole), part.view(-1), group=self._party.group)
            else:
                run.all_gather(self._party, whole.view(-1), part.view(-1), choice)
        return whole

    def all_to_all(self, parts: Tensor) -> Tensor:
        """What all ranks have for this one, (p, n), of what each has for all, (p, n); uint8."""
        received = torch.empty_like(parts)
        with self._under_way((self.world_size - 1) * parts.nbytes / self.world_size):
            dist.all_to_all_single(received.view(-1), parts.view(-1), group=self._party.group)
        return received

    def _choice(self, collective: Collective, nbytes: int) -> Choice:
        if self._fixed is None:
            return choose(self._party, collective, nbytes)
        if self._algorithm != NATIVE and collective not in find(self._algorithm).collectives:
            return Choice(NATIVE)  # a tree gathers in no way of its own
        return self._fixed

    @contextmanager
    def _under_way(self, nbytes: float) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.sent_nbytes += nbytes
        if self._on_waited is not None:
            self._on_waited(began_s, time.perf_counter())


def all_reduce_nbytes(nbytes: int, world_size: int) -> float:
    """The least that each rank sends in an all_reduce of so many bytes (Patarasuk & Yuan 2009)."""
    return 2 * (world_size - 1) / world_size * nbytes
