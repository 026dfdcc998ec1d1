"""A schedule as a drawing: rounds from left to right, a lane a rank, arrows for messages; geometry only.

Lengths are inches; x grows to the right, y downwards. What has which colour is for others to say:
shapes carry a role.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from doubletime.collectives import labels
from doubletime.collectives.holdings import Cell, Change, Frame, State, columns, frames
from doubletime.collectives.schedule import Schedule
from doubletime.collectives.topology import Topology

# Up to so many ranks a cell shows a stripe for each rank; beyond, how many of them it holds.
STRIPES = 8
FIRST_ROUNDS, LAST_ROUNDS = 10, 6
_PAGE_WIDTH = 11.0
_BREADTH = 1.6  # of a drawing in several bands: width over height, at most
_CELL_HEIGHT, _HEADER, _FOOTER, _TITLE, _MARGIN = 0.26, 0.52, 0.45, 0.45, 0.15
_HOST_GAP = 0.22
_LABEL_AT, _LABEL_STEP, _LONGEST_NAME = 0.1, 0.2, 8  # of a message's name, behind its tail
_LETTER, _CAPITAL, _LEGEND_WIDTH = 0.045, 0.105, 7.3

Role = Literal["empty", "partial", "complete", "level", "stripe", "host"]
Size = Literal["title", "heading", "text", "small"]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle; (x, y) is its upper left corner.

    Attributes:
        rank: whose contribution a stripe shows; −1 for other roles.
        change: what the round did to the cell; it is framed accordingly.
        is_faded: whether what it holds is needed no more.
    """

    x: float
    y: float
    width: float
    height: float
    role: Role
    rank: int = -1
    change: Change = Change.NONE
    is_faded: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message from (x, y) to (to_x, to_y)."""

    x: float
    y: float
    to_x: float
    to_y: float
    is_reduced: bool


@dataclass(frozen=True, slots=True)
class Lane:
    """A rank's line through a band."""

    x: float
    to_x: float
    y: float


@dataclass(frozen=True, slots=True)
class Label:
    """A text around, right of (`left`), or left of (`right`) a point in the middle of its height."""

    x: float
    y: float
    text: str
    size: Size = "text"
    align: Literal["left", "center", "right"] = "center"
    is_on_arrow: bool = False


@dataclass
class Picture:
    """Shapes on a page of so many inches."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)


@dataclass(frozen=True)
class _Step:
    """A state of all ranks, and how it came about: by a round, or by several that are left out."""

    frame: Frame
    skipped: tuple[int, int] | None = None


def draw(schedule: Schedule, title: str, *, shows_all: bool = False) -> Picture:
    """Lay out a schedule.

    Args:
        schedule: a proved one; to be read, of at most some 16 ranks.
        title: what stands above.
        shows_all: draw every round; else of many the first and the last.
    """
    steps = list(_steps(schedule, shows_all))
    measures = _Measures.of(schedule)
    per_band = _per_band(measures, len(steps) - 1)
    picture = Picture()
    picture.labels.append(Label(_MARGIN, _MARGIN + _TITLE / 2, title, "title", "left"))
    y = _MARGIN + _TITLE
    for first in range(0, max(1, len(steps) - 1), per_band):
        # A band begins with the state in which the one before ended.
        band = steps[first : first + per_band + 1]
        _draw_band(picture, measures, schedule, band, y)
        y += measures.band_height
    picture.width = max(
        measures.width(min(per_band, len(steps) - 1)), _LEGEND_WIDTH, _CAPITAL * len(title) + 0.4
    )
    picture.height = y + _FOOTER + _MARGIN
    return picture


def _steps(schedule: Schedule, shows_all: bool) -> Iterator[_Step]:
    numbers = sorted({each.number for rounds in schedule.rounds for each in rounds})
    is_long = not shows_all and len(numbers) > FIRST_ROUNDS + LAST_ROUNDS + 1
    last = len(numbers) - LAST_ROUNDS
    for at, frame in enumerate(frames(schedule)):
        if not is_long or at <= FIRST_ROUNDS or at > last:
            yield _Step(frame)
        elif at == last:
            yield _Step(frame, (numbers[FIRST_ROUNDS], numbers[last - 1]))


@dataclass(frozen=True)
class _Measures:
    """How large things are in this drawing.

    Attributes:
        cell: the width of a cell.
        count: cells in a row.
        gap: between two states.
        pitch: from one lane to the next.
        lanes: where each rank's lane is, below the top of a band.
        left: where the first state begins.
        band_height: from the top of a band to that of the next.
    """

    cell: float
    count: int
    gap: float
    pitch: float
    lanes: tuple[float, ...]
    left: float
    band_height: float

    @classmethod
    def of(cls, schedule: Schedule) -> _Measures:
        topology = schedule.problem.topology
        ranks, count = topology.ranks, len(columns(schedule))
        cell = 0.36 if count == 1 else 0.19 if count <= 8 else max(0.13, 0.06 + 1.0 / count)
        pitch = 0.5 if ranks <= 8 else 0.4
        has_hosts = topology.host_count < topology.ranks
        y, lanes = _HEADER + pitch / 2, []
        for rank in range(ranks):
            if rank and has_hosts and topology.hosts[rank] != topology.hosts[rank - 1]:
                y += _HOST_GAP
            lanes.append(y)
            y += pitch
        gap = 0.95 + 0.05 * min(max(0, ranks - 4), 14)
        left = _MARGIN + (1.45 if 1 < topology.host_count < ranks else 0.95)
        return cls(cell, count, gap, pitch, tuple(lanes), left, y + 0.1)

    @property
    def state(self) -> float:
        """The width of a row of cells."""
        return self.cell * self.count

    def width(self, rounds: int) -> float:
        """Of a page with so many rounds in a band."""
        return self.left + (rounds + 1) * self.state + rounds * self.gap + 2 * _MARGIN


def _per_band(measures: _Measures, rounds: int) -> int:
    """How many rounds stand side by side: as many as fit a page that is not too broad."""
    for bands in range(1, max(1, rounds) + 1):
        per_band = -(-rounds // bands)
        height = bands * measures.band_height + _TITLE + _FOOTER
        if measures.width(per_band) <= max(_PAGE_WIDTH, _BREADTH * height):
            return max(1, per_band)
    return 1


def _draw_band(
    picture: Picture, measures: _Measures, schedule: Schedule, band: Sequence[_Step], top: float
) -> None:
    topology = schedule.problem.topology
    end = measures.left + len(band) * measures.state + (len(band) - 1) * measures.gap
    for rank, y in enumerate(measures.lanes):
        picture.lanes.append(Lane(measures.left, end, top + y))
        name = _name(topology, rank)
        picture.labels.append(Label(measures.left - 0.24, top + y, name, "text", "right"))
        if topology.ranks <= STRIPES:
            picture.boxes.append(
                Box(measures.left - 0.19, top + y - 0.06, 0.07, 0.12, "stripe", rank)
            )
    _draw_hosts(picture, measures, topology, end, top)
    x = measures.left
    for at, step in enumerate(band):
        if at:
            _draw_round(picture, measures, schedule, step, x - measures.gap, top)
        elif step.frame.number < 0:
            picture.labels.append(Label(x + measures.state / 2, top + 0.12, "start", "heading"))
        for column in range(measures.count):
            name = labels.column(column, measures.count)
            if measures.count > 1 and measures.cell >= 0.12 * len(name) - 0.05:
                picture.labels.append(
                    Label(x + (column + 0.5) * measures.cell, top + _HEADER - 0.14, name, "small")
                )
        for rank, row in enumerate(step.frame.held):
            _draw_row(picture, measures, row, x, top + measures.lanes[rank], topology.ranks)
        x += measures.state + measures.gap


def _name(topology: Topology, rank: int) -> str:
    if 1 < topology.host_count < topology.ranks:
        return f"host {topology.hosts[rank]}, rank {rank}"
    return f"rank {rank}"


def _draw_hosts(
    picture: Picture, measures: _Measures, topology: Topology, end: float, top: float
) -> None:
    """A ground under the lanes of each host that has several."""
    if not 1 < topology.host_count < topology.ranks:
        return
    for members in topology.members:
        first, last = measures.lanes[members[0]], measures.lanes[members[-1]]
        picture.boxes.append(
            Box(_MARGIN, top + first - 0.24, end + 0.1 - _MARGIN, last - first + 0.48, "host")
        )


def _draw_round(
    picture: Picture,
    measures: _Measures,
    schedule: Schedule,
    step: _Step,
    x: float,
    top: float,
) -> None:
    """The messages between the state that ends at `x` and the next."""
    middle = x + measures.gap / 2
    if step.skipped is not None:
        first, last = step.skipped
        picture.labels.append(Label(middle, top + 0.12, f"{first + 1} … {last + 1}", "heading"))
        for y in measures.lanes:
            picture.labels.append(Label(middle, top + y, "⋯", "title", is_on_arrow=True))
        return
    number = step.frame.number + 1
    told = f"round {number}" if number == 1 else str(number)
    picture.labels.append(Label(middle, top + 0.12, told, "heading"))
    sent = [0] * schedule.problem.ranks
    for message in step.frame.messages:
        y, to_y = top + measures.lanes[message.source], top + measures.lanes[message.target]
        arrow = Arrow(x + 0.04, y, x + measures.gap - 0.04, to_y, message.is_reduced)
        picture.arrows.append(arrow)
        name = labels.columns(message.columns, measures.count)
        if measures.count > 1 and len(name) <= _LONGEST_NAME:
            picture.labels.append(_on_arrow(arrow, name, sent[message.source], measures.pitch))
        sent[message.source] += 1


def _on_arrow(arrow: Arrow, name: str, before: int, pitch: float) -> Label:
    """A message's name behind its tail, clear of the next lane and of the sender's cells.

    Names of messages of one rank, of which `before` came first, stand one behind the other.
    """
    length = math.hypot(arrow.to_x - arrow.x, arrow.to_y - arrow.y)
    rise = abs(arrow.to_y - arrow.y) / length
    behind = min(_LABEL_AT + _LETTER * len(name), 0.36 * pitch / rise)
    behind += _LABEL_STEP * before
    x = max(behind * (arrow.to_x - arrow.x) / length, 0.035 * len(name))
    y = behind * (arrow.to_y - arrow.y) / length
    return Label(arrow.x + x, arrow.y + y, name, "small", is_on_arrow=True)


def _draw_row(
    picture: Picture, measures: _Measures, row: Sequence[Cell], x: float, y: float, ranks: int
) -> None:
    """What one rank holds, its middle at height `y`."""
    top = y - _CELL_HEIGHT / 2
    for column, cell in enumerate(row):
        left = x + column * measures.cell
        is_faded = cell.state is State.SPENT
        if cell.state is State.COMPLETE:
            box = Box(left, top, measures.cell, _CELL_HEIGHT, "complete", change=cell.change)
            picture.boxes.append(box)
            continue
        role: Role = "empty" if cell.state is State.EMPTY else "partial"
        picture.boxes.append(
            Box(left, top, measures.cell, _CELL_HEIGHT, role, -1, cell.change, is_faded)
        )
        if role == "empty":
            continue
        if ranks <= STRIPES:
            stripe = (measures.cell - 0.04) / ranks
            picture.boxes += [
                Box(left + 0.02 + rank * stripe, top + 0.03, stripe, _CELL_HEIGHT - 0.06, "stripe",
                    rank, is_faded=is_faded)
                for rank in range(ranks) if cell.ranks >> rank & 1
            ]  # fmt: skip
            continue
        high = (_CELL_HEIGHT - 0.04) * cell.ranks.bit_count() / ranks
        picture.boxes.append(
            Box(
                left + 0.02, y + _CELL_HEIGHT / 2 - 0.02 - high, measures.cell - 0.04, high, "level",
                is_faded=is_faded,
            )
        )  # fmt: skip
