"""What `doubletime verify` has found, as people read it: a table of steps, the verdict, causes, notes."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from doubletime.training.verify.records import KINDS, LOSS, Difference
from doubletime.training.verify.verdict import Verdict
from doubletime.units import plural

_OFF_TERMINAL_COLUMNS = 140


def show(console: Console, verdict: Verdict) -> None:
    """Show all of it."""
    if not console.is_terminal:
        console.width = max(console.width, _OFF_TERMINAL_COLUMNS)
    if verdict.rows:
        console.print(steps_table(verdict))
    style = "bold green" if verdict.is_equal else "bold red"
    console.print(summary(verdict), style=style, markup=False, soft_wrap=True)
    for at, cause in enumerate(verdict.causes):
        word = "likely cause" if at == 0 else "also"
        for line in (
            Text.assemble((f"{word}: ", "red"), (cause.name, "bold")),
            Text.assemble(("  why: ", "dim"), cause.what),
            Text.assemble(("  remedy: ", "dim"), (cause.remedy, "green")),
        ):
            console.print(line, soft_wrap=True)
    for note in verdict.notes:
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)


def summary(verdict: Verdict) -> str:
    """One line that says whether they are equal, and to what, or where they first differ."""
    steps = plural(len(verdict.rows), "step")
    mesh = "" if verdict.mesh == f"dp={verdict.ranks}" else f" ({verdict.mesh})"
    what = f"{verdict.task} on {verdict.ranks} ranks{mesh} and on 1 process"
    if verdict.is_equal:
        more = []
        if verdict.double_distance is not None and verdict.precision != verdict.judged_in:
            more.append(f"{shown(verdict.double_distance)} in float64")
        if verdict.rounding is not None:
            more.append(f"{verdict.precision} itself is {shown(verdict.rounding)} from float64")
        told = f" ({', '.join(more)})" if more else ""
        return f"{what}: equal to {shown(verdict.distance)} over {steps}{told}"
    if not verdict.rows:
        return f"{what}: not one step can be made"
    if verdict.first is None:
        return (
            f"{what}: no proof of equality, though {steps} differ by {shown(verdict.distance)} only"
        )
    first = verdict.first
    where = first.kind if first.kind == LOSS else f"{first.kind} of {first.name}"
    in_what = f" in {verdict.judged_in}" if verdict.judged_in != verdict.precision else ""
    return (
        f"{what}: not equal, first in step {first.step}: {where} differ{'s' * (first.kind == LOSS)} "
        f"by {shown(first.distance)}{in_what} (tolerance {shown(verdict.tolerance)})"
    )


def steps_table(verdict: Verdict) -> Table:
    """The largest relative difference of each kind in each step, and whose it is."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("step", justify="right", no_wrap=True)
    has_double = any(row.double is not None for row in verdict.rows)
    is_own_double = verdict.precision == "float64"
    for kind in KINDS:
        table.add_column(kind, no_wrap=True)
    if has_double and not is_own_double:
        table.add_column("float64", no_wrap=True)
    for row in verdict.rows:
        cells = [_cell(row.own, kind) for kind in KINDS]
        if has_double and not is_own_double:
            found = row.double or {}
            cells.append(
                shown(max(each.distance for each in found.values())) if found else "-",
            )
        table.add_row(str(row.step), *cells)
    return table


def shown(distance: float) -> str:
    """`3e-07`, `0`."""
    return f"{distance:.0e}" if distance else "0"


def _cell(found: Mapping[str, Difference], kind: str) -> str:
    difference = found.get(kind)
    if difference is None:
        return "-"
    if not difference.name or not difference.distance:
        return shown(difference.distance)
    return f"{shown(difference.distance)} {difference.name}"
