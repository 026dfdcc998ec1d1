"""What each rank holds after each round: a schedule as frames to be shown, round by round."""

from __future__ import annotations

import enum
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from doubletime.collectives.chunks import Ranges, join, members
from doubletime.collectives.schedule import BLOCKED, Combine, Problem, Receive, Round, Schedule


class State(enum.Enum):
    """What a rank's part of a chunk is good for."""

    EMPTY = "nothing was written here yet"
    PARTIAL = "some contributions; the rank, or another, still needs them"
    SPENT = "some contributions, which have been passed on and are needed no more"
    COMPLETE = "all that belongs into the result"


class Change(enum.Enum):
    """What the round did to it."""

    NONE = "unchanged"
    REDUCED = "what came was added"
    COPIED = "what came took its place"


@dataclass(frozen=True, slots=True)
class Cell:
    """One column of chunks on one rank.

    Attributes:
        ranks: whose contributions are in it; bit r is rank r.
        state: what they are good for.
        change: what the round just over did.
    """

    ranks: int
    state: State
    change: Change = Change.NONE


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a round.

    Attributes:
        source: the rank that sends.
        target: the rank that receives.
        columns: which columns travel.
        is_reduced: whether the target adds what comes; else it takes the place of what was there.
    """

    source: int
    target: int
    columns: Ranges
    is_reduced: bool


@dataclass(frozen=True)
class Frame:
    """The ranks after a round.

    Attributes:
        number: of the round; −1 before the first.
        messages: what travelled in it, by target.
        held: for each rank, a cell for each column.
    """

    number: int
    messages: tuple[Message, ...]
    held: tuple[tuple[Cell, ...], ...]


def columns(schedule: Schedule) -> tuple[Ranges, ...]:
    """The chunks that can be told apart: neighbours that always travel together are one column.

    Returns:
        For each column its chunks: one range.
    """
    problem = schedule.problem
    # Chunk c begins a column if some message holds c and not c − 1, or the other way round.
    begins = {0, problem.chunks}
    for rounds in schedule.rounds:
        for each in rounds:
            for send in each.sends:
                begins.update(edge for part in send.chunks for edge in part)
    if problem.collective in BLOCKED:
        begins.update(range(0, problem.chunks, problem.chunks // problem.ranks))
    edges = sorted(begins)
    return tuple(((first, end),) for first, end in pairwise(edges))


def frames(schedule: Schedule) -> Iterator[Frame]:
    """The start, then one frame for each round, in O(touched cells + ranks · columns) each.

    Args:
        schedule: all ranks' rounds; one that `proof.prove` accepts.
    """
    run = _Run(schedule)
    yield Frame(-1, (), run.snapshot())
    by_number: defaultdict[int, list[tuple[int, Round]]] = defaultdict(list)
    for rank, rounds in enumerate(schedule.rounds):
        for each in rounds:
            by_number[each.number].append((rank, each))
    for number in sorted(by_number):
        messages = run.carry_out(number, by_number[number])
        yield Frame(number, messages, run.snapshot())


class _Run:
    """All ranks' cells, and what is still to happen to each."""

    def __init__(self, schedule: Schedule) -> None:
        problem = schedule.problem
        groups = columns(schedule)
        self._index = {group[0][0]: at for at, group in enumerate(groups)}
        self._index[problem.chunks] = len(groups)
        self._wanted = [_wanted(problem, group[0][0]) for group in groups]
        self._kept = [_kept(problem, groups, rank) for rank in range(problem.ranks)]
        # For each cell the rounds that use it, each with whether it reads what is there.
        self._uses: list[list[deque[tuple[int, bool]]]] = [
            [deque() for _ in groups] for _ in range(problem.ranks)
        ]
        for rank, rounds in enumerate(schedule.rounds):
            for each in rounds:
                self._plan(rank, each)
        self._cells = [
            [
                self._cell(rank, at, _input(problem, rank, group[0][0]))
                for at, group in enumerate(groups)
            ]
            for rank in range(problem.ranks)
        ]

    def snapshot(self) -> tuple[tuple[Cell, ...], ...]:
        return tuple(map(tuple, self._cells))

    def carry_out(self, number: int, active: list[tuple[int, Round]]) -> tuple[Message, ...]:
        """One round on all ranks; its messages."""
        for row in self._cells:
            for at, cell in enumerate(row):
                if cell.change is not Change.NONE:
                    row[at] = Cell(cell.ranks, cell.state)
        flying: defaultdict[tuple[int, int], deque[list[int]]] = defaultdict(deque)
        for rank, each in active:
            for send in each.sends:
                values = [self._cells[rank][at].ranks for at in self._at(send.chunks)]
                flying[rank, send.peer].append(values)
        for rank, each in active:
            for uses in self._uses[rank]:
                while uses and uses[0][0] <= number:
                    uses.popleft()
            for send in each.sends:
                for at in self._at(send.chunks):
                    self._cells[rank][at] = self._cell(rank, at, self._cells[rank][at].ranks)
        messages = []
        for rank, each in active:
            for receive in each.receives:
                values = flying[receive.peer, rank].popleft()
                messages.append(self._land(rank, receive, values))
        return tuple(messages)

    def _land(self, rank: int, receive: Receive, values: list[int]) -> Message:
        is_reduced = receive.combine is not Combine.COPY
        change = Change.REDUCED if is_reduced else Change.COPIED
        touched = list(self._at(receive.chunks))
        for at, value in zip(touched, values, strict=True):
            before = self._cells[rank][at].ranks if is_reduced else 0
            self._cells[rank][at] = self._cell(rank, at, before | value, change)
        return Message(receive.peer, rank, join(((at, at + 1),) for at in touched), is_reduced)

    def _plan(self, rank: int, each: Round) -> None:
        for send in each.sends:
            for at in self._at(send.chunks):
                self._uses[rank][at].append((each.number, True))
        for receive in each.receives:
            for at in self._at(receive.chunks):
                self._uses[rank][at].append((each.number, receive.combine is not Combine.COPY))

    def _at(self, chunks: Ranges) -> Iterator[int]:
        """The columns of a set of chunks."""
        return members(tuple((self._index[first], self._index[end]) for first, end in chunks))

    def _cell(self, rank: int, at: int, ranks: int, change: Change = Change.NONE) -> Cell:
        uses = self._uses[rank][at]
        is_needed = uses[0][1] if uses else self._kept[rank][at]
        if not ranks:
            state = State.EMPTY
        elif ranks == self._wanted[at]:
            state = State.COMPLETE
        else:
            state = State.PARTIAL if is_needed else State.SPENT
        return Cell(ranks, state, change)


def _wanted(problem: Problem, chunk: int) -> int:
    """Whose contributions the result has at this chunk."""
    if problem.collective == "broadcast":
        return 1 << problem.root
    if problem.collective == "all_gather":
        return 1 << chunk // (problem.chunks // problem.ranks)
    return (1 << problem.ranks) - 1


def _input(problem: Problem, rank: int, chunk: int) -> int:
    """What a rank holds of a chunk at the start."""
    if (
        problem.collective in ("broadcast", "all_gather")
        and not _wanted(problem, chunk) >> rank & 1
    ):
        return 0
    return 1 << rank


def _kept(problem: Problem, groups: tuple[Ranges, ...], rank: int) -> list[bool]:
    """Which columns are part of this rank's result."""
    if problem.collective == "reduce":
        return [rank == problem.root] * len(groups)
    if problem.collective == "reduce_scatter":
        ((first, end),) = problem.block(rank)
        return [first <= group[0][0] < end for group in groups]
    return [True] * len(groups)
