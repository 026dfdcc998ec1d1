"""A schedule in the terminal: round by round who sends what to whom, and what each rank then holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from doubletime.collectives import labels
from doubletime.collectives.chunks import join
from doubletime.collectives.cost import RoundTime
from doubletime.collectives.holdings import Cell, Change, Frame, Message, State, columns, frames
from doubletime.collectives.proof import Evidence
from doubletime.collectives.schedule import Problem, Schedule
from doubletime.collectives.topology import Topology
from doubletime.units import format_seconds, plural

# What is shown of a long schedule unless all is asked for: its first and its last rounds and ranks.
FIRST_ROUNDS, LAST_ROUNDS = 8, 4
FIRST_RANKS, LAST_RANKS = 12, 4
_LONGEST_MESSAGES = 30
_MOST_EXPRESSIONS = 4
# Where stdout cannot show these, its encoding being none of Unicode.
_ASCII = str.maketrans(
    {
        "→": ">", "←": "<", "·": ".", "…": "~", "─": "-", "α": "a", "β": "b", "γ": "g",
        "µ": "u", "−": "-", "⌈": "|", "⌉": "|", "⌊": "|", "⌋": "|", "█": "#",
        "≤": "<", "ä": "a",
    }
)  # fmt: skip

_MARKS = {Change.NONE: " ", Change.REDUCED: "+", Change.COPIED: "="}
_STYLES = {
    (State.EMPTY, False): "dim",
    (State.SPENT, False): "dim",
    (State.PARTIAL, False): "default",
    (State.COMPLETE, False): "bold green",
    (State.EMPTY, True): "dim",
    (State.SPENT, True): "dim",
    (State.PARTIAL, True): "black on yellow",
    (State.COMPLETE, True): "bold black on green",
}
_ADDED, _COPIED, _SENT = "yellow", "cyan", "magenta"


class Page:
    """Lines for a console, in whatever characters it can show.

    Args:
        console: where they go; what is wider than a terminal is cut there, elsewhere never.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_ascii = console.options.ascii_only

    @property
    def width(self) -> int | None:
        """Columns of the terminal, or None where there is none and lines may be any length."""
        return self._console.width if self._console.is_terminal else None

    def line(self, *parts: tuple[str, str] | str) -> None:
        """Show one line of texts, each with a style or without; cut at the terminal's edge."""
        text = self._text(parts)
        text.rstrip()
        if self.width is None:
            self._console.print(text, soft_wrap=True)
        else:
            self._console.print(text, no_wrap=True, overflow="ellipsis", crop=True)

    def prose(self, *parts: tuple[str, str] | str, indent: int = 0) -> None:
        """Show a sentence, wrapped at the terminal's edge."""
        if self.width is None:
            self._console.print(" " * indent, self._text(parts), sep="", soft_wrap=True)
        else:
            self._console.print(Padding(self._text(parts), (0, 0, 0, indent), expand=False))

    def _text(self, parts: Iterable[tuple[str, str] | str]) -> Text:
        pairs = [(part, "") if isinstance(part, str) else part for part in parts]
        return Text.assemble(
            *((text.translate(_ASCII) if self._is_ascii else text, style) for text, style in pairs)
        )


def place_name(topology: Topology) -> str:
    """Where the ranks are, in words."""
    ranks = plural(topology.ranks, "rank")
    if topology.host_count == 1:
        return f"{ranks} on one host" if topology.ranks > 1 else ranks
    if topology.host_count == topology.ranks:
        return f"{ranks}, each on a host of its own"
    sizes = [len(members) for members in topology.members]
    if topology.is_even:
        return f"{ranks} on {topology.host_count} hosts, {sizes[0]} on each"
    return f"{ranks} on {topology.host_count} hosts: {', '.join(map(str, sizes))}"


def kind(frame: Frame) -> str:
    """What a round does with what travels: add, copy, or both."""
    kinds = {message.is_reduced for message in frame.messages}
    if len(kinds) == 2:
        return "add and copy"
    return "add" if True in kinds else "copy"


def show_schedule(
    page: Page,
    schedule: Schedule,
    *,
    shows_all: bool = False,
    times: Mapping[int, RoundTime] | None = None,
) -> None:
    """Show all rounds, or of many the first and the last.

    Args:
        page: where.
        schedule: a proved one.
        shows_all: leave nothing out, however long it is.
        times: when each round happens, by its number.
    """
    look = _Look.of(schedule, page.width, shows_all, times is not None)
    _show_legend(page, schedule.problem, look)
    numbers = sorted({each.number for rounds in schedule.rounds for each in rounds})
    shown = set(numbers)
    if not shows_all and len(numbers) > FIRST_ROUNDS + LAST_ROUNDS + 1:
        shown = {*numbers[:FIRST_ROUNDS], *numbers[-LAST_ROUNDS:]}
    skipped: list[int] = []
    for frame in frames(schedule):
        if frame.number >= 0 and frame.number not in shown:
            skipped.append(frame.number)
            continue
        if skipped:
            page.line()
            page.line(
                (f"… rounds {skipped[0] + 1} to {skipped[-1] + 1}: --all shows them", "italic dim")
            )
            skipped = []
        _show_frame(page, frame, schedule, look, (times or {}).get(frame.number))
    if look.is_counted:
        page.line()
        page.line(("… a wider terminal, or --all, shows whose contributions", "italic dim"))
    if None in look.columns:
        first, last = look.columns.index(None), look.count - 2
        names = labels.columns(((first, last + 1),), look.count)
        page.line((f"… and parts {names}", "italic dim"))


def _show_legend(page: Page, problem: Problem, look: _Look) -> None:
    """What letters, digits and marks mean."""
    names = labels.columns(((0, look.count),), look.count)
    part = "the message" if look.count == 1 else "parts"
    example = look.held(0b11, max(problem.ranks, 2))
    page.prose(
        (names, "bold"), f" {part}  ", (example, "bold"),
        " how many contributions  " if look.is_counted else " whose contributions  ",
        ("+", _ADDED), " added  ", ("=", _COPIED), " copied",
        *(("  ", ("complete", "bold green"), "  ", ("given away", "dim")) if page.width else ()),
    )  # fmt: skip


@dataclass(frozen=True)
class _Look:
    """Where columns stand on the page, alike in all rounds.

    Attributes:
        ranks: which are shown, in order; None for those left out.
        columns: which are shown; None for those left out.
        names: the width of the ranks' names.
        sends, receives: the widths of the messages.
        cell: the width of a cell.
        gap: what stands before each.
        count: how many columns there are in all.
        is_counted: whether cells say how many contributions they hold, for want of room.
    """

    ranks: tuple[int | None, ...]
    columns: tuple[int | None, ...]
    names: int
    sends: int
    receives: int
    cell: int
    gap: int
    count: int
    is_counted: bool

    def held(self, mask: int, ranks: int) -> str:
        """What a cell says of the contributions it holds; bit r of the mask is rank r."""
        if self.is_counted:
            return str(mask.bit_count()) if mask else "·"
        return labels.ranks(mask, ranks)

    @classmethod
    def of(cls, schedule: Schedule, width: int | None, shows_all: bool, is_timed: bool) -> _Look:
        topology = schedule.problem.topology
        count = len(columns(schedule))
        ranks = _ends(topology.ranks, FIRST_RANKS, LAST_RANKS, shows_all)
        names = max(len(_name(topology, rank)) for rank in ranks if rank is not None)
        sends = receives = 0
        cell = max(len(labels.column(count - 1, count)), 1)
        limit = None if shows_all else FIRST_ROUNDS * 4
        for frame in islice(frames(schedule), limit):
            for rank in ranks:
                if rank is not None:
                    sends = max(sends, len(_sends(frame.messages, rank, count)))
                    receives = max(receives, len(_receives(frame.messages, rank, count)))
            held = {cell.ranks for row in frame.held for cell in row}
            cell = max(cell, *(len(labels.ranks(mask, topology.ranks)) for mask in held))
        cell += 1  # the mark
        heading = f"round {schedule.length} of {schedule.length} add and copy"
        longest = len(heading) + len(", 99.9 ms") * is_timed
        receives = max(receives, longest - (2 + names + 2 + sends + 2))
        room, gap, is_counted = count, 2, False
        if width is not None and not shows_all:
            left = width - (2 + names + 2 + sends + 2 + receives)
            if count * (cell + 1) > left:
                is_counted, cell = True, 1 + len(str(topology.ranks))
            gap = 2 if count * (cell + 2) <= left else 1
            room = max(3, left // (cell + gap))
        shown: tuple[int | None, ...] = tuple(range(count))
        if room < count:
            shown = (*range(room - 2), None, count - 1)
        return cls(ranks, shown, names, sends, receives, cell, gap, count, is_counted)


def _ends(count: int, first: int, last: int, shows_all: bool) -> tuple[int | None, ...]:
    if shows_all or count <= first + last + 1:
        return tuple(range(count))
    return (*range(first), None, *range(count - last, count))


def _name(topology: Topology, rank: int) -> str:
    if 1 < topology.host_count < topology.ranks:
        return f"host {topology.hosts[rank]} rank {rank}"
    return f"rank {rank}"


def _show_frame(
    page: Page, frame: Frame, schedule: Schedule, look: _Look, time: RoundTime | None
) -> None:
    page.line()
    page.line(*_heading(frame, schedule, look, time))
    topology = schedule.problem.topology
    host = topology.hosts[0]
    for rank in look.ranks:
        if rank is None:
            left_out = look.ranks.count(None) and topology.ranks - len(look.ranks) + 1
            page.line((f"  … {left_out} ranks more", "italic dim"))
            continue
        if topology.hosts[rank] != host and topology.host_count < topology.ranks:
            page.line()
        host = topology.hosts[rank]
        page.line(
            f"  {_name(topology, rank):<{look.names}}  ",
            (f"{_sends(frame.messages, rank, look.count):<{look.sends}}  ", _SENT),
            *_arrivals(_receives(frame.messages, rank, look.count), look.receives),
            *_cells(frame.held[rank], topology.ranks, look),
        )


def _heading(
    frame: Frame, schedule: Schedule, look: _Look, time: RoundTime | None
) -> Iterator[tuple[str, str] | str]:
    width = 2 + look.names + 2 + look.sends + 2 + look.receives
    if frame.number < 0:
        title, told = "start", ""
    else:
        title = f"round {frame.number + 1} of {schedule.length}"
        told = f" {kind(frame)}"
        if time is not None:
            told += f", {format_seconds(time.end_s - time.start_s)}"
    yield title, "bold"
    yield told, "default"
    yield " " * max(0, width - len(title) - len(told)), ""
    for at in look.columns:
        name = "…" if at is None else labels.column(at, look.count)
        width = 1 if at is None else look.cell
        # Over the first digit: what stands before it is the mark.
        name = name if at is None else f" {name:<{width - 1}}"
        yield " " * look.gap + name, "bold"


def _cells(row: Sequence[Cell], ranks: int, look: _Look) -> Iterator[tuple[str, str] | str]:
    for at in look.columns:
        yield " " * look.gap
        if at is None:
            yield "…", "dim"
            continue
        cell = row[at]
        text = _MARKS[cell.change] + look.held(cell.ranks, ranks)
        yield text, _STYLES[cell.state, cell.change is not Change.NONE]
        yield " " * (look.cell - len(text))


def _arrivals(text: str, width: int) -> Iterator[tuple[str, str] | str]:
    for at, word in enumerate(text.split()):
        yield " " if at else ""
        yield word, _ADDED if word.startswith("+") else _COPIED
    yield " " * (width - len(text))


def _sends(messages: Iterable[Message], rank: int, count: int) -> str:
    return _shortened(
        f"{labels.columns(each.columns, count)}→{each.target}"
        for each in messages
        if each.source == rank
    )


def _receives(messages: Iterable[Message], rank: int, count: int) -> str:
    return _shortened(
        f"{'+' if each.is_reduced else '='}{labels.columns(each.columns, count)}←{each.source}"
        for each in messages
        if each.target == rank
    )


def _shortened(words: Iterable[str]) -> str:
    """The words on one line, as many as fit; then how many more there are."""
    words = list(words)
    text = ""
    for at, word in enumerate(words):
        longer = f"{text} {word}" if text else word
        if text and len(longer) > _LONGEST_MESSAGES:
            return f"{text} …{len(words) - at}"
        text = longer
    return text


def show_evidence(page: Page, schedule: Schedule, evidence: Evidence) -> None:
    """Say what the proof found: that the result is right, and in which order it is summed.

    Args:
        page: where.
        schedule: what was proved.
        evidence: what the proof counted.
    """
    page.line()
    page.prose(
        ("proved", "bold green"),
        f" for {plural(schedule.problem.ranks, 'rank')}: every contribution is in the result exactly "
        f"once, and all ranks hold the same bits ({plural(evidence.messages, 'message')}, "
        f"{plural(evidence.rounds, 'round')})",
    )
    if schedule.problem.collective in ("broadcast", "all_gather"):
        return
    groups = columns(schedule)
    shown: dict[str, list[int]] = {}
    for at, ((first, _),) in enumerate(groups):
        shown.setdefault(evidence.expressions[first], []).append(at)
    for expression, where in list(shown.items())[:_MOST_EXPRESSIONS]:
        name = labels.columns(join(((at, at + 1),) for at in where), len(groups))
        page.line((f"  {name} = ", "dim"), expression.removeprefix("(").removesuffix(")"))
    if len(shown) > _MOST_EXPRESSIONS:
        page.line((f"  … {len(shown) - _MOST_EXPRESSIONS} orders of summation more", "italic dim"))
