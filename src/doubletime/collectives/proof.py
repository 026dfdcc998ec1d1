"""The proof that a schedule is right: a symbolic run of all its ranks.

Instead of numbers, chunks hold expressions: the contribution of a rank, or a sum of two
expressions with a left and a right side. So the run shows not only that every contribution is in
the result exactly once, but that all ranks compute the same expression, hence the same bits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from doubletime.collectives.chunks import Ranges, members, overlap
from doubletime.collectives.schedule import (
    Combine,
    Receive,
    Round,
    Schedule,
    Send,
)
from doubletime.errors import ScheduleError

_UNWRITTEN = -1


@dataclass(frozen=True)
class Evidence:
    """What the run counted.

    Attributes:
        rounds: how many rounds there are over all ranks.
        messages: how many messages are sent in all.
        expressions: for each chunk of the result, the sum as text, such as `((0+1)+2)`: numbers
            are the ranks whose contributions they are.
    """

    rounds: int
    messages: int
    expressions: tuple[str, ...]


def prove(schedule: Schedule) -> Evidence:
    """Run a schedule symbolically, on all its ranks.

    Proved: rounds are in order and well formed; every send has its receive in the same round, of
    the same chunks, and vice versa; nothing is read before it is written; no chunk is received in
    place in a round that also sends it or receives it otherwise; no contribution is added twice;
    every rank ends with what the collective promises; and where several ranks end with the same
    chunk, they hold the identical expression.

    Raises:
        ScheduleError: if any of that does not hold; names algorithm, round, rank and chunk.
    """
    run = _Run(schedule)
    by_number: defaultdict[int, list[tuple[int, Round]]] = defaultdict(list)
    for rank, rounds in enumerate(schedule.rounds):
        last = -1
        for each in rounds:
            run.check_form(rank, each, last)
            last = each.number
            by_number[each.number].append((rank, each))
    messages = 0
    for number in sorted(by_number):
        messages += run.carry_out(number, by_number[number])
    return Evidence(schedule.length, messages, run.check_result())


class _Run:
    """The state of all ranks: an expression for each chunk."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        problem = schedule.problem
        # Expression e is the sum of sides[e], and holds the contributions in the set mask[e],
        # a bit a rank; the first p are the ranks' own contributions.
        self._sides: list[tuple[int, int] | None] = [None] * problem.ranks
        self._masks = [1 << rank for rank in range(problem.ranks)]
        self._known: dict[tuple[int, int], int] = {}
        self._held = [self._input(rank) for rank in range(problem.ranks)]

    def _input(self, rank: int) -> list[int]:
        problem = self._schedule.problem
        if problem.collective == "broadcast" and rank != problem.root:
            return [_UNWRITTEN] * problem.chunks
        if problem.collective == "all_gather":
            own = set(members(problem.block(rank)))
            return [rank if chunk in own else _UNWRITTEN for chunk in range(problem.chunks)]
        return [rank] * problem.chunks

    def check_form(self, rank: int, each: Round, last: int) -> None:
        """One round by itself."""
        if each.number <= last:
            raise self._wrong(rank, each.number, f"comes after round {last}")
        if not each.sends and not each.receives:
            raise self._wrong(rank, each.number, "is empty")
        every: tuple[Send | Receive, ...] = (*each.sends, *each.receives)
        for message in every:
            if not 0 <= message.peer < self._schedule.problem.ranks or message.peer == rank:
                raise self._wrong(rank, each.number, f"names rank {message.peer} as its partner")
            if not self._is_well_formed(message.chunks):
                raise self._wrong(rank, each.number, f"has the chunks {message.chunks}")
        for index, receive in enumerate(each.receives):
            if receive.combine is not Combine.COPY:
                continue
            for at, other in enumerate(every):
                if at == len(each.sends) + index:
                    continue
                chunk = overlap(receive.chunks, other.chunks)
                if chunk is not None:
                    deed = "sends" if isinstance(other, Send) else "receives otherwise"
                    raise self._wrong(
                        rank, each.number, f"receives in place what it {deed} as well", chunk
                    )

    def _is_well_formed(self, chunks: Ranges) -> bool:
        edge = -1
        for first, end in chunks:
            if not edge < first < end:
                return False
            edge = end
        return bool(chunks) and chunks[0][0] >= 0 and edge <= self._schedule.problem.chunks

    def carry_out(self, number: int, active: Iterable[tuple[int, Round]]) -> int:
        """One round on all ranks; how many messages it had."""
        flying: defaultdict[tuple[int, int], deque[tuple[Ranges, list[int]]]] = defaultdict(deque)
        messages = 0
        for rank, each in active:
            for send in each.sends:
                flying[rank, send.peer].append((send.chunks, self._read(rank, number, send)))
                messages += 1
        for rank, each in active:
            for receive in each.receives:
                waiting = flying[receive.peer, rank]
                if not waiting:
                    raise self._wrong(
                        rank, number, f"receives what rank {receive.peer} does not send",
                        receive.chunks[0][0],
                    )  # fmt: skip
                chunks, values = waiting.popleft()
                if chunks != receive.chunks:
                    raise self._wrong(
                        rank, number,
                        f"receives the chunks {receive.chunks}, rank {receive.peer} sends {chunks}",
                    )  # fmt: skip
                self._write(rank, number, receive, values)
        for (source, rank), waiting in flying.items():
            if waiting:
                raise self._wrong(
                    source, number, f"sends what rank {rank} does not receive",
                    waiting[0][0][0][0],
                )  # fmt: skip
        return messages

    def _read(self, rank: int, number: int, send: Send) -> list[int]:
        held = self._held[rank]
        values = [value for first, end in send.chunks for value in held[first:end]]
        if _UNWRITTEN in values:
            chunk = list(members(send.chunks))[values.index(_UNWRITTEN)]
            raise self._wrong(rank, number, "sends what it does not have yet", chunk)
        return values

    def _write(self, rank: int, number: int, receive: Receive, values: list[int]) -> None:
        held = self._held[rank]
        for chunk, value in zip(members(receive.chunks), values, strict=True):
            if receive.combine is Combine.COPY:
                held[chunk] = value
            elif held[chunk] == _UNWRITTEN:
                raise self._wrong(rank, number, "reduces into what it does not have yet", chunk)
            elif receive.combine is Combine.RECEIVED_LEFT:
                held[chunk] = self._sum(value, held[chunk], rank, number, chunk)
            else:
                held[chunk] = self._sum(held[chunk], value, rank, number, chunk)

    def _sum(self, left: int, right: int, rank: int, number: int, chunk: int) -> int:
        known = self._known.get((left, right))
        if known is not None:
            return known
        twice = self._masks[left] & self._masks[right]
        if twice:
            whose = twice.bit_length() - 1
            raise self._wrong(rank, number, f"adds rank {whose}'s contribution twice", chunk)
        self._known[left, right] = len(self._sides)
        self._sides.append((left, right))
        self._masks.append(self._masks[left] | self._masks[right])
        return len(self._sides) - 1

    def check_result(self) -> tuple[str, ...]:
        """What ranks hold at the end, against what the collective promises; as text."""
        problem = self._schedule.problem
        everyone = (1 << problem.ranks) - 1
        result: dict[int, tuple[int, int]] = {}
        for rank, held in enumerate(self._held):
            if problem.collective == "reduce" and rank != problem.root:
                continue
            promised = (
                members(problem.block(rank))
                if problem.collective == "reduce_scatter"
                else range(problem.chunks)
            )
            for chunk in promised:
                value = held[chunk]
                wanted = everyone
                if problem.collective == "broadcast":
                    wanted = 1 << problem.root
                elif problem.collective == "all_gather":
                    wanted = 1 << chunk // (problem.chunks // problem.ranks)
                found = 0 if value == _UNWRITTEN else self._masks[value]
                if found != wanted:
                    lost = [r for r in range(problem.ranks) if (wanted & ~found) >> r & 1]
                    excess = [r for r in range(problem.ranks) if (found & ~wanted) >> r & 1]
                    raise self._wrong(
                        rank, None, f"ends without the contributions of ranks {lost}"
                        if lost else f"ends with contributions of ranks {excess}", chunk,
                    )  # fmt: skip
                first, expression = result.setdefault(chunk, (rank, value))
                if expression != value:
                    raise self._wrong(
                        rank, None,
                        f"ends with {self._show(value)}, rank {first} with {self._show(expression)}",
                        chunk,
                    )  # fmt: skip
        return tuple(self._show(result[chunk][1]) for chunk in range(problem.chunks))

    def _show(self, expression: int) -> str:
        """An expression as text, without recursion: sums may be as deep as there are ranks."""
        parts: list[str] = []
        todo: list[int | str] = [expression]
        while todo:
            item = todo.pop()
            if isinstance(item, str):
                parts.append(item)
            elif (sides := self._sides[item]) is None:
                parts.append(str(item))
            else:
                todo += [")", sides[1], "+", sides[0], "("]
        return "".join(parts)

    def _wrong(
        self, rank: int, number: int | None, what: str, chunk: int | None = None
    ) -> ScheduleError:
        problem = self._schedule.problem
        when = "at the end" if number is None else f"in round {number}"
        where = "" if chunk is None else f" (chunk {chunk} of {problem.chunks})"
        return ScheduleError(
            f"{self._schedule.algorithm} {problem.collective} over {problem.ranks} ranks is wrong: "
            f"rank {rank} {when} {what}{where}",
            "mend the algorithm: this schedule must not run",
        )
