"""The doctor's visit as people watch it: a live table of hosts, then what was found, the worst first."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from doubletime.cluster.doctor.diagnosis import Diagnosis
from doubletime.cluster.doctor.finding import Finding, Severity
from doubletime.cluster.doctor.question import STEPS, Visit
from doubletime.units import format_seconds, plural

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
# The narrowest that the cells of a step may become; what is longer wraps.
_WIDTHS = {"login": 12, "facts": 10, "folder": 8, "ports": 6, "links": 11}
_MOST_ROWS = 24


class VisitTable:
    """A table that fills as hosts answer on a terminal; nothing elsewhere, where a summary follows.

    A context manager, so that an error finds the terminal in order.

    Args:
        console: to draw on.
        hosts: names, in order.
        steps: which of `STEPS` there are.
    """

    def __init__(
        self, console: Console, hosts: Sequence[str], steps: Sequence[str] = STEPS
    ) -> None:
        self._console = console
        self._steps = steps
        self._cells: dict[str, dict[str, Visit]] = {host: {} for host in hosts}
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=10,
            transient=False,
        )

    def __enter__(self) -> VisitTable:
        """Show the table."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave its last state on the terminal."""
        if self._console.is_terminal:
            self._live.stop()

    def observe(self, visit: Visit) -> None:
        """Take in one step of one host."""
        self._cells.setdefault(visit.host, {})[visit.step] = visit

    def _render(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
        table.add_column("", style="bold", no_wrap=True, min_width=max(map(len, self._cells)))
        for step in self._steps:
            table.add_column(step, min_width=_WIDTHS[step])
        # Of very many hosts those that are not well, then those that are not done.
        hosts = (
            sorted(self._cells, key=self._urgency) if len(self._cells) > _MOST_ROWS else self._cells
        )
        for host in list(hosts)[:_MOST_ROWS]:
            table.add_row(host, *(self._cell(host, step) for step in self._steps))
        if len(self._cells) > _MOST_ROWS:
            table.caption = f"{_MOST_ROWS} of {len(self._cells)} hosts"
        return table

    def _cell(self, host: str, step: str) -> Text | Spinner | str:
        visit = self._cells[host].get(step)
        if visit is None:
            return ""
        if visit.outcome is None:
            return self._spinner
        if visit.outcome:
            return Text.assemble(("✓ ", "green"), (visit.what, "dim"))
        return Text.assemble(("✗ ", "bold red"), (visit.what, "red"))

    def _urgency(self, host: str) -> int:
        outcomes = [visit.outcome for visit in self._cells[host].values()]
        return 0 if False in outcomes else 1 if None in outcomes else 2


def show_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Every finding with its remedy, then one line that sums them up."""
    for finding in diagnosis.findings:
        _show_finding(console, finding)
    console.print(summary(diagnosis), style=_summary_style(diagnosis), markup=False)


def summary(diagnosis: Diagnosis) -> str:
    """One line: how many hosts were asked, what was found, how long it took."""
    names = diagnosis.survey.names
    where = plural(len(names), "host") if names else "this machine"
    counts = [
        plural(count, severity.word)
        for severity in Severity
        if (count := sum(each.severity is severity for each in diagnosis.findings))
    ]
    took = format_seconds(diagnosis.time_s)
    if diagnosis.bandwidth_s:
        took += f" and {format_seconds(diagnosis.bandwidth_s)} for links"
    verdict = "fit to train on" if diagnosis.is_fit else "not fit to train on"
    return f"{where}: {verdict}; {', '.join(counts) or 'nothing found'} ({took})"


def _show_finding(console: Console, finding: Finding) -> None:
    word, style = finding.severity.word, _STYLES[finding.severity]
    where = "" if console.is_terminal else f"{finding.host}: "
    lines = (
        Text.assemble((f"{word}: ", style), where, (finding.what, "bold")),
        Text.assemble(("  why: ", "dim"), finding.why),
        Text.assemble(("  remedy: ", "dim"), (finding.remedy, "green")),
    )
    for line in lines:
        console.print(line, soft_wrap=True)  # a command that is to be copied is not broken


def _summary_style(diagnosis: Diagnosis) -> str:
    worst = min((each.severity for each in diagnosis.findings), default=None)
    return "bold green" if worst is None else _STYLES[worst]
