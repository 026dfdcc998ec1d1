"""Carry out one rank's rounds on a flat tensor, running ahead of their order as far as it is not seen.

Receives are posted before sends, and before their turn where their place is free; what has arrived is
reduced while the next is on its way. How messages travel is a `Wire`'s business.

Memory beyond the tensor: scratch for what is received to be reduced, at most that of `ahead` rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import torch

from doubletime.collectives.chunks import overlap
from doubletime.collectives.dependencies import Needs, needs
from doubletime.collectives.schedule import Combine, Receive, Round, Send

Condition = Callable[[], bool]
# What is received, in its place and its side of the operator, and where it is reduced into.
Reduce = Callable[[torch.Tensor, torch.Tensor, Combine], None]
Operation = Generator[Condition, None, None]


class Wire(Protocol):
    """Sends and receives flat contiguous tensors; messages of a pair of ranks keep their order."""

    def send(self, part: torch.Tensor, peer: int) -> Condition:
        """Start to send; true when the tensor may be changed again."""

    def receive(self, part: torch.Tensor, peer: int) -> Condition:
        """Start to receive; true when the tensor holds the message."""

    def flush(self) -> None:
        """Called when all that can start now has been handed over."""


@dataclass(frozen=True)
class Course:
    """One rank's rounds with what each waits for: all that does not depend on the data.

    Attributes:
        rounds: by ascending number.
        waits: one for each round.
        bounds: where chunks begin, in elements; see `Problem.bounds`.
        sent_too: for each round and receive, whether the round also sends one of its chunks.
    """

    rounds: tuple[Round, ...]
    waits: tuple[Needs, ...]
    bounds: tuple[int, ...]
    sent_too: tuple[tuple[bool, ...], ...]

    @classmethod
    def of(cls, rounds: tuple[Round, ...], bounds: tuple[int, ...]) -> Course:
        """Work out what each round waits for."""
        sent_too = tuple(
            tuple(
                any(overlap(send.chunks, receive.chunks) is not None for send in each.sends)
                for receive in each.receives
            )
            for each in rounds
        )
        return cls(rounds, needs(rounds, len(bounds) - 1), bounds, sent_too)

    def parts(self, message: Send | Receive) -> list[tuple[int, int]]:
        """Where the message lies in the tensor: spans of elements, none empty."""
        spans = ((self.bounds[first], self.bounds[end]) for first, end in message.chunks)
        return [(start, stop) for start, stop in spans if start < stop]


@dataclass
class _Open:
    """A round under way.

    Attributes:
        sends: the requests of its sends that have been started and not ended.
        unsent: sends that wait for their data, or behind another to the same peer.
        unposted: receives whose place is not free yet, or that come behind another of the same peer.
        arriving: receives that have been started, in the order in which they are reduced.
    """

    unsent: deque[int]
    unposted: deque[int]
    sends: list[Condition] = field(default_factory=list)
    arriving: deque[_Arrival] = field(default_factory=deque)

    @property
    def is_received(self) -> bool:
        return not self.unposted and not self.arriving

    @property
    def is_sent(self) -> bool:
        return not self.unsent and not self.sends


@dataclass
class _Arrival:
    """A receive under way: its index in the round, what it waits for, its place, where it comes in."""

    index: int
    requests: list[Condition]
    places: list[torch.Tensor]
    into: list[torch.Tensor]


class Execution:
    """One run of a course.

    Args:
        course: what to do.
        tensor: flat and contiguous; reduced, copied and received in place.
        wire: how messages travel.
        reduce: combines what was received with what is held, in the latter's place.
        ahead: how many rounds may be open at once, at least 1.
    """

    def __init__(
        self, course: Course, tensor: torch.Tensor, wire: Wire, reduce: Reduce, ahead: int
    ) -> None:
        self._course = course
        self._tensor = tensor
        self._wire = wire
        self._reduce = reduce
        self._ahead = ahead
        self._open: deque[_Open] = deque()
        self._first = 0  # the number of the first open round
        self._free: list[torch.Tensor] = []

    def run(self) -> Operation:
        """Post, wait, reduce, until all is done."""
        total = len(self._course.rounds)
        while self._first < total:
            while len(self._open) < self._ahead and self._first + len(self._open) < total:
                each = self._course.rounds[self._first + len(self._open)]
                self._open.append(
                    _Open(deque(range(len(each.sends))), deque(range(len(each.receives))))
                )
            self._post()
            if self._close() == 0 and not self._collect():
                yield self._collect

    def _close(self) -> int:
        """Leave the rounds behind that are complete; how many."""
        before = self._first
        while self._open and self._open[0].is_received and self._open[0].is_sent:
            self._open.popleft()
            self._first += 1
        return self._first - before

    # -- starting ---------------------------------------------------------------------------------

    def _post(self) -> None:
        """Start every message that may start, receives first."""
        # Peers of whom an earlier message has to go first: a pair's messages match by their order.
        blocked: set[int] = set()
        for number, state in enumerate(self._open, self._first):
            self._post_receives(number, state, blocked)
        blocked = set()
        for number, state in enumerate(self._open, self._first):
            self._post_sends(number, state, blocked)
        self._wire.flush()

    def _post_receives(self, number: int, state: _Open, blocked: set[int]) -> None:
        receives, waits = self._course.rounds[number].receives, self._course.waits[number].receives
        waiting: deque[int] = deque()
        for index in state.unposted:
            receive = receives[index]
            is_copy = receive.combine is Combine.COPY
            if receive.peer in blocked or (is_copy and not self._is_over(waits[index])):
                blocked.add(receive.peer)
                waiting.append(index)
                continue
            places = [self._tensor[start:stop] for start, stop in self._course.parts(receive)]
            into = places if is_copy else [self._scratch(place) for place in places]
            requests = [self._wire.receive(part, receive.peer) for part in into]
            state.arriving.append(_Arrival(index, requests, places, into))
        state.unposted = waiting

    def _post_sends(self, number: int, state: _Open, blocked: set[int]) -> None:
        sends, waits = self._course.rounds[number].sends, self._course.waits[number].sends
        waiting: deque[int] = deque()
        for index in state.unsent:
            send = sends[index]
            if send.peer in blocked or not self._is_received(waits[index]):
                blocked.add(send.peer)
                waiting.append(index)
                continue
            for start, stop in self._course.parts(send):
                state.sends.append(self._wire.send(self._tensor[start:stop], send.peer))
        state.unsent = waiting

    def _is_received(self, number: int) -> bool:
        """Whether the receives of a round and of all before it are in their place, and reduced."""
        return all(
            state.is_received for state in islice(self._open, max(0, number - self._first + 1))
        )

    def _is_over(self, number: int) -> bool:
        """Whether a round is complete, and all before it, which may still be sending the same chunk."""
        return number < self._first

    # -- ending -----------------------------------------------------------------------------------

    def _collect(self) -> bool:
        """Take in what has ended; whether anything has.

        Returns after the first round of which something has, so that what may now start does so
        before a wire whose conditions wait is asked for more.
        """
        for number, state in enumerate(self._open, self._first):
            moved = False
            while state.arriving and self._take_in(number, state):
                state.arriving.popleft()
                moved = True
            if not moved:
                left = [is_over for is_over in state.sends if not is_over()]
                moved = len(left) < len(state.sends)
                state.sends = left
            if moved:
                return True
        return False

    def _take_in(self, number: int, state: _Open) -> bool:
        """The oldest receive of a round: into its place if it has come and the place is free."""
        arrival = state.arriving[0]
        index = arrival.index
        combine = self._course.rounds[number].receives[index].combine
        # What is reduced into may still be on its way out.
        if combine is not Combine.COPY and (
            (self._course.sent_too[number][index] and not state.is_sent)
            or not self._is_over(self._course.waits[number].receives[index])
        ):
            return False
        arrival.requests = [is_over for is_over in arrival.requests if not is_over()]
        if arrival.requests:
            return False
        if combine is not Combine.COPY:
            for place, received in zip(arrival.places, arrival.into, strict=True):
                self._reduce(place, received, combine)
                self._free.append(received)
        return True

    def _scratch(self, place: torch.Tensor) -> torch.Tensor:
        """Memory for as many elements, used again where one of that size is free."""
        for index, spare in enumerate(self._free):
            if spare.numel() == place.numel():
                return self._free.pop(index)
        return torch.empty_like(place)
