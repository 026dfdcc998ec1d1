"""Decisions as people read them: what is best for each size, and by how much."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table

from doubletime.collectives.catalogue import find
from doubletime.collectives.choice import NATIVE, Choice
from doubletime.planning.tune import Sized
from doubletime.units import format_nbytes, format_seconds


def decisions_table(found: Iterable[Sized]) -> Table:
    """One row a size."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("size", "best", "median", "quartiles", "native", "gain", "next best"):
        is_left = heading in ("best", "next best")
        table.add_column(heading, justify="left" if is_left else "right", no_wrap=True)
    for sized in found:
        decision = sized.decision
        taken = dict(sized.finalists)[decision.choice]
        others = [each for each in sized.finalists if each[0] != decision.choice]
        following = (
            f"{show_choice(others[0][0])} {others[0][1].median_s / taken.median_s:.2f}x"
            if others
            else ""
        )
        gain = decision.native_s / decision.time_s
        table.add_row(
            format_nbytes(decision.nbytes),
            show_choice(decision.choice),
            format_seconds(taken.median_s),
            f"{format_seconds(taken.lower_s)} .. {format_seconds(taken.upper_s)}",
            format_seconds(decision.native_s),
            "" if decision.choice.algorithm == NATIVE else f"{gain:.2f}x",
            following,
        )
    return table


def show_choice(choice: Choice) -> str:
    """Its name, with the segment size where that matters."""
    if choice.algorithm == NATIVE or not find(choice.algorithm).is_pipelined:
        return choice.algorithm
    return f"{choice.algorithm}, {format_nbytes(choice.segment_nbytes)}"
