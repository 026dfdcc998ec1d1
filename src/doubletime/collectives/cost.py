"""How long a schedule takes under the α-β-γ model, message by message.

A message of b bytes takes α + b·β from its start to its arrival; while it is sent it keeps busy,
for overhead + b·β, the sender's way out and the receiver's way in (LogGP: Alexandrov, Ionescu,
Schauser & Scheiman, J. Parallel Distrib. Comput. 44 (1997) 71-79; there α is L + o, and overhead
is o). Inside a host each rank has ways of its own; between hosts all ranks of a host share one
link, full duplex, on which messages take turns. A rank reduces one message at a time, γ a byte.

A round starts on a rank when no more than `in_flight` − 1 earlier rounds of that rank are open,
and is complete when its sends have arrived and its receives are reduced. A message starts when
both ends have started the round, its chunks have their values at the sender, and both ways are
free. With `in_flight=1` that is an executor that goes through its rounds one by one, and gives the
published closed formulas; with more, latency and reductions hide behind transfers.

It takes some 10 to 30 µs a message, so that 64 ranks are priced in a fraction of a second; but a
ring over p ranks has 2p² messages: for thousands of ranks take `in_step`, which needs one rank's
rounds, or the closed formula.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from doubletime.collectives.chunks import overlap
from doubletime.collectives.dependencies import Needs, needs
from doubletime.collectives.model import Link, Parameters
from doubletime.collectives.schedule import (
    Combine,
    Round,
    Schedule,
    nbytes_of,
)
from doubletime.collectives.topology import Topology


@dataclass(frozen=True)
class RoundTime:
    """When a round happens: its first message starts, its last is reduced; seconds from the start."""

    number: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Cost:
    """What a schedule takes.

    Attributes:
        time_s: until the last rank is done.
        ranks_s: until each rank is done.
        rounds: each round that has messages.
    """

    time_s: float
    ranks_s: tuple[float, ...]
    rounds: tuple[RoundTime, ...]


def evaluate(
    schedule: Schedule,
    nbytes: int,
    parameters: Parameters,
    *,
    itemsize: int = 1,
    in_flight: int = 1,
) -> Cost:
    """How long a schedule takes.

    Args:
        schedule: what all ranks do; a proved one.
        nbytes: the whole message, in bytes.
        parameters: the cluster.
        itemsize: bytes an element: chunks hold whole elements.
        in_flight: how many rounds a rank has open at most, at least 1.
    """
    bounds = [at * itemsize for at in schedule.problem.bounds(nbytes // itemsize)]
    return _Run(schedule, bounds, parameters, in_flight).cost()


def in_step(
    rounds: Iterable[Round],
    rank: int,
    topology: Topology,
    bounds: Sequence[int],
    parameters: Parameters,
) -> float:
    """How long one rank takes if its partners are never late, rounds one by one; seconds.

    For schedules in which all ranks do alike at the same time (ring, recursive doubling, halving
    and doubling over a power of two, pairwise exchange) that is the time of the schedule, for any
    number of ranks; for trees it is less. Links between hosts are not shared.

    Args:
        rounds: that rank's.
        rank: whose rounds they are.
        topology: all ranks' hosts.
        bounds: where chunks begin, in bytes.
        parameters: the cluster.
    """
    total_s = 0.0
    for each in rounds:
        out_s = in_s = arrival_s = reduce_s = 0.0
        for send in each.sends:
            link = _link(parameters, topology, rank, send.peer)
            busy_s = nbytes_of(send.chunks, bounds) * link.beta_s_per_byte
            arrival_s = max(arrival_s, out_s + link.alpha_s + busy_s)
            out_s += link.overhead_s + busy_s
        for receive in each.receives:
            link = _link(parameters, topology, rank, receive.peer)
            nbytes = nbytes_of(receive.chunks, bounds)
            busy_s = nbytes * link.beta_s_per_byte
            arrival_s = max(arrival_s, in_s + link.alpha_s + busy_s)
            in_s += link.overhead_s + busy_s
            if receive.combine is not Combine.COPY:
                reduce_s += nbytes * parameters.gamma_s_per_byte
        total_s += arrival_s + reduce_s
    return total_s


@dataclass(slots=True)
class _Flight:
    """One message that both ends have in a round."""

    source: int
    send: int
    target: int
    receive: int
    nbytes: int
    ready_s: float = 0.0
    start_s: float = 0.0
    arrival_s: float = 0.0


class _Run:
    """The clock of all ranks."""

    def __init__(
        self, schedule: Schedule, bounds: Sequence[int], parameters: Parameters, in_flight: int
    ) -> None:
        self._schedule = schedule
        self._bounds = bounds
        self._parameters = parameters
        self._in_flight = in_flight
        self._hosts = schedule.problem.topology.hosts
        ranks = schedule.problem.ranks
        self._needs: list[tuple[Needs, ...]] = (
            [needs(rounds, schedule.problem.chunks) for rounds in schedule.rounds]
            if in_flight > 1
            else []
        )
        # For each rank and each of its rounds: when its receives are reduced, when it is complete,
        # and when all rounds up to it are.
        self._reduced: list[list[float]] = [[] for _ in range(ranks)]
        self._complete: list[list[float]] = [[] for _ in range(ranks)]
        self._over: list[list[float]] = [[] for _ in range(ranks)]
        self._reducing = [0.0] * ranks
        # Ways out and in, of a rank or of a host: when each is free.
        self._out: defaultdict[tuple[bool, int], float] = defaultdict(float)
        self._in: defaultdict[tuple[bool, int], float] = defaultdict(float)

    def cost(self) -> Cost:
        """Let all rounds happen."""
        by_number: defaultdict[int, dict[int, Round]] = defaultdict(dict)
        for rank, rounds in enumerate(self._schedule.rounds):
            for each in rounds:
                by_number[each.number][rank] = each
        times = [self._round(number, by_number[number]) for number in sorted(by_number)]
        ranks_s = tuple(over[-1] if over else 0.0 for over in self._over)
        return Cost(max(ranks_s), ranks_s, tuple(time for time in times if time is not None))

    def _round(self, number: int, rounds: dict[int, Round]) -> RoundTime | None:
        """One round on all ranks; None if its messages hold nothing."""
        opened = {rank: self._opened(rank) for rank in rounds}
        flights = self._match(rounds)
        for flight in flights:
            flight.ready_s = max(
                opened[flight.source], opened[flight.target], self._free(flight, rounds)
            )
        flights.sort(key=lambda flight: flight.ready_s)
        landed: dict[int, list[_Flight]] = {rank: [] for rank in rounds}
        left: dict[int, list[_Flight]] = {rank: [] for rank in rounds}
        for flight in flights:
            self._fly(flight)
            landed[flight.target].append(flight)
            left[flight.source].append(flight)
        for rank, each in rounds.items():
            arrivals = [flight.arrival_s for flight in (*landed[rank], *left[rank])]
            arrived_s = max(arrivals, default=opened[rank])
            reduced_s = self._reduce(rank, each, landed[rank], left[rank], arrived_s)
            self._reduced[rank].append(reduced_s)
            self._complete[rank].append(max(arrived_s, reduced_s))
            before_s = self._over[rank][-1] if self._over[rank] else 0.0
            self._over[rank].append(max(before_s, arrived_s, reduced_s))
        if not flights:
            return None
        end_s = max(self._complete[flight.target][-1] for flight in flights)
        return RoundTime(number, min(flight.start_s for flight in flights), end_s)

    def _opened(self, rank: int) -> float:
        """When the next round of a rank may start."""
        over = self._over[rank]
        return over[-self._in_flight] if len(over) >= self._in_flight else 0.0

    def _match(self, rounds: dict[int, Round]) -> list[_Flight]:
        """The round's messages, less those that hold nothing."""
        waiting: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)
        for rank, each in rounds.items():
            for index, send in enumerate(each.sends):
                waiting[rank, send.peer].append(index)
        flights = []
        for rank, each in rounds.items():
            for index, receive in enumerate(each.receives):
                send_index = waiting[receive.peer, rank].popleft()
                nbytes = nbytes_of(receive.chunks, self._bounds)
                if nbytes:
                    flights.append(_Flight(receive.peer, send_index, rank, index, nbytes))
        return flights

    def _free(self, flight: _Flight, rounds: dict[int, Round]) -> float:
        """When the sender has the values, and the receiver the place for a copy."""
        if self._in_flight == 1:
            return 0.0
        at = len(self._complete[flight.source])
        needed = self._needs[flight.source][at].sends[flight.send]
        ready_s = self._reduced[flight.source][needed] if needed >= 0 else 0.0
        if rounds[flight.target].receives[flight.receive].combine is Combine.COPY:
            at = len(self._complete[flight.target])
            needed = self._needs[flight.target][at].receives[flight.receive]
            if needed >= 0:
                ready_s = max(ready_s, self._complete[flight.target][needed])
        return ready_s

    def _fly(self, flight: _Flight) -> None:
        """Take both ways as soon as they are free."""
        source, target = flight.source, flight.target
        afar = self._hosts[source] != self._hosts[target]
        link = self._parameters.between if afar else self._parameters.inside
        out = (afar, self._hosts[source] if afar else source)
        into = (afar, self._hosts[target] if afar else target)
        flight.start_s = max(flight.ready_s, self._out[out], self._in[into])
        busy_s = flight.nbytes * link.beta_s_per_byte
        self._out[out] = self._in[into] = flight.start_s + link.overhead_s + busy_s
        flight.arrival_s = flight.start_s + link.alpha_s + busy_s

    def _reduce(
        self,
        rank: int,
        each: Round,
        landed: Sequence[_Flight],
        left: Sequence[_Flight],
        arrived_s: float,
    ) -> float:
        """Reduce what landed, in the order in which it is listed; when the last is done."""
        last_s = 0.0
        for flight in sorted(landed, key=lambda flight: flight.receive):
            receive = each.receives[flight.receive]
            if receive.combine is Combine.COPY:
                last_s = max(last_s, flight.arrival_s)
                continue
            begin_s = max(flight.arrival_s, self._reducing[rank])
            if self._in_flight == 1:
                begin_s = max(begin_s, arrived_s)  # a round's messages first, then its sums
            else:
                begin_s = max(begin_s, self._place_s(rank, each, flight.receive, left))
            self._reducing[rank] = begin_s + flight.nbytes * self._parameters.gamma_s_per_byte
            last_s = max(last_s, self._reducing[rank])
        return last_s

    def _place_s(self, rank: int, each: Round, receive: int, left: Sequence[_Flight]) -> float:
        """When nobody reads any more what a receive is reduced into."""
        needed = self._needs[rank][len(self._complete[rank])].receives[receive]
        free_s = self._complete[rank][needed] if needed >= 0 else 0.0
        for flight in left:
            if overlap(each.sends[flight.send].chunks, each.receives[receive].chunks) is not None:
                free_s = max(free_s, flight.arrival_s)
        return free_s


def _link(parameters: Parameters, topology: Topology, one: int, other: int) -> Link:
    is_inside = topology.hosts[one] == topology.hosts[other]
    return parameters.inside if is_inside else parameters.between
