"""A benchmark's start and end: the job of ranks, then its figures as JSON and Markdown."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doubletime.cluster import supervise
from doubletime.planning.load import busy_share
from doubletime.planning.timing import Spread
from doubletime.units import format_seconds

RESULTS = Path(__file__).resolve().parent / "results"
_OUTPUT = "DOUBLETIME_BENCHMARK_OUTPUT"


@dataclass(frozen=True)
class Row:
    """One figure beside its target.

    Attributes:
        what: what was measured.
        cells: the measured values, as shown.
        target: what it is to be, as shown; empty where nothing is asked.
        is_met: whether it is; None where nothing is asked.
    """

    what: str
    cells: Sequence[str]
    target: str = ""
    is_met: bool | None = None


@dataclass(frozen=True)
class Report:
    """What a benchmark found.

    Attributes:
        title: one line: what was done, on how many ranks.
        headings: of the columns, without those of the target.
        rows: the table.
        machine: what it ran on, as `planning.machine.describe` tells.
        caption: one line of the same for people.
        figures: everything measured, as plain data.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    machine: dict[str, Any]
    caption: str
    figures: Any

    def markdown(self, busy: float) -> str:
        """The table, as the README quotes it."""
        command = f"python benchmarks/{Path(sys.argv[0]).name}"
        lines = [
            f"**{self.title}**",
            "",
            _line([*self.headings, "target", "met"]),
            _line(["---"] + ["---:"] * (len(self.headings) - 1) + ["---", "---"]),
        ]
        verdicts = {None: "", True: "yes", False: "no"}
        lines += [
            _line([row.what, *row.cells, row.target, verdicts[row.is_met]]) for row in self.rows
        ]
        lines += [
            "",
            f"{self.caption}; other programs held {busy:.0%} of the cores at its start.",
        ]
        lines += [f"Measured by `{command}`.", ""]
        return "\n".join(lines)


def is_rank() -> bool:
    """Whether this process is one of the job's ranks rather than the one that starts it."""
    return _OUTPUT in os.environ


def hand_over(report: Report) -> None:
    """Give rank 0's report to the process that started the job."""
    record = {**vars(report), "rows": [vars(row) for row in report.rows]}
    Path(os.environ[_OUTPUT]).write_text(json.dumps(record))


def start(ranks: int) -> Report:
    """Run the calling script on so many ranks of one thread each, and read its report.

    Ranks are not bound to cores: gloo's threads would have to share one with what they serve.

    Args:
        ranks: how many.

    Raises:
        SystemExit: with the job's exit code, if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "report.json")
        environment = {_OUTPUT: str(output), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *sys.argv]
        exit_code = supervise.run_local(command, ranks, environment=environment, bind=False)
        if exit_code:
            raise SystemExit(exit_code)
        record = json.loads(output.read_text())
    return Report(**{**record, "rows": [Row(**row) for row in record["rows"]]})


def publish(report: Report, busy: float, *, is_whole: bool = True) -> None:
    """Print the report, and write it to `benchmarks/results` unless only a part was measured."""
    if not is_whole:
        print(report.markdown(busy))
        return
    name = Path(sys.argv[0]).stem
    RESULTS.mkdir(exist_ok=True)
    text = report.markdown(busy)
    (RESULTS / f"{name}.md").write_text(text)
    record = {**vars(report), "rows": [vars(row) for row in report.rows], "busy_before": busy}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(text)


def main(ranks: int, work: Callable[[], Report | None]) -> None:
    """Start the job, or be one rank of it.

    Args:
        ranks: how many the job has.
        work: what each rank does; rank 0 returns the report.
    """
    if is_rank():
        report = work()
        if report is not None:
            hand_over(report)
        return
    busy = busy_share(1.0)
    publish(start(ranks), busy)


def show(time: Spread) -> str:
    """Median and quartiles of a time."""
    quartiles = f"{format_seconds(time.lower_s)} .. {format_seconds(time.upper_s)}"
    return f"{format_seconds(time.median_s)} ({quartiles})"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
