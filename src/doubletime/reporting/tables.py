"""Measurements shown: a bar while they run, then a table with the best at each size marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from doubletime.planning.question import GLOO, MPI, RAW
from doubletime.planning.timing import Advance, Timing
from doubletime.units import format_nbytes, format_rate, format_seconds

_SHOWN = {MPI: "mpi", GLOO: "gloo", RAW: "raw MPI"}


def shown(peer: str) -> str:
    """A peer's name for people; algorithms are called as they are."""
    return _SHOWN.get(peer, peer)


def timings_table(
    timings: Iterable[Timing],
    *,
    title: str | None = None,
    bound_s: Callable[[int], float] | None = None,
) -> Table:
    """Timings of several peers, compared.

    Args:
        timings: those of one size stand together.
        title: what stands above the table.
        bound_s: the least time that a message of so many bytes can take, in seconds; adds a column with the
            share of it that was reached.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("size", "by", "median", "quartiles", "algbw", "busbw"):
        table.add_column(heading, justify="left" if heading == "by" else "right", no_wrap=True)
    groups = [list(group) for _, group in groupby(timings, attrgetter("nbytes"))]
    present = {timing.peer for group in groups for timing in group}
    rivals = [name for name in (GLOO, RAW) if name in present]
    for name in rivals:
        table.add_column(f"speed/{shown(name)}", justify="right", no_wrap=True)
    if bound_s is not None:
        table.add_column("of bound", justify="right", no_wrap=True)
    for group in groups:
        _add_group(table, group, rivals, bound_s)
    return table


def _add_group(
    table: Table,
    group: Sequence[Timing],
    rivals: Sequence[str],
    bound_s: Callable[[int], float] | None,
) -> None:
    medians = {timing.peer: timing.time.median_s for timing in group}
    best = min(medians.values())
    for index, timing in enumerate(group):
        is_best = len(group) > 1 and timing.time.median_s == best
        ratios = [
            "" if name == timing.peer else f"{medians[name] / timing.time.median_s:.2f}"
            for name in rivals
        ]
        table.add_row(
            format_nbytes(timing.nbytes) if index == 0 else "",
            shown(timing.peer) + (" *" if is_best else ""),
            format_seconds(timing.time.median_s),
            f"{format_seconds(timing.time.lower_s)} .. {format_seconds(timing.time.upper_s)}",
            format_rate(timing.algbw),
            format_rate(timing.busbw),
            *ratios,
            *([] if bound_s is None else [f"{bound_s(timing.nbytes) / timing.time.median_s:.2f}"]),
            style="bold" if is_best else None,
            end_section=index == len(group) - 1,
        )


class MeasuringProgress:
    """A live bar on a terminal; one line per timing elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=console.quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=1.0)

    def __enter__(self) -> MeasuringProgress:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._bar.stop()

    def observe(self, event: Advance | Timing) -> None:
        """Take in what the measuring tells."""
        if isinstance(event, Timing):
            if not self._console.is_terminal:
                self._console.print(
                    f"{format_nbytes(event.nbytes)} by {shown(event.peer)}: "
                    f"{format_seconds(event.time.median_s)}"
                )
            return
        self._bar.update(
            self._task, completed=event.fraction, description=format_nbytes(event.nbytes)
        )
