"""A run as people watch it: a live bar on a terminal, plain lines elsewhere, a closing table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from doubletime.training.events import (
    EpochDone,
    Event,
    Notice,
    Resumed,
    RunDone,
    RunStarted,
    StepDone,
)
from doubletime.units import format_seconds, plural

# The launcher hands a rank's output through a pipe. Whoever starts the ranks from a terminal says
# here how wide that is, so that rank 0 can draw on it.
COLUMNS_VARIABLE = "DOUBLETIME_COLUMNS"

_REFRESH_S = 0.1


def open_console() -> Console:
    """The console on stdout: a terminal if it is one, or if the starter says it ends in one."""
    columns = os.environ.get(COLUMNS_VARIABLE, "")
    if columns.isdigit() and not sys.stdout.isatty():
        return Console(
            force_terminal=True, force_interactive=True, width=int(columns), highlight=False
        )
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def say(line: str) -> None:
    """One line on stderr, which a program's own output leaves alone."""
    sys.stderr.write(f"doubletime: {line}\n")
    sys.stderr.flush()


class Watch:
    """Shows a run's events; a context manager, so that an error finds the terminal in order."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._row = self._bar.add_task("starting", total=None, figures="")
        self._started: RunStarted | None = None
        self._metrics: Mapping[str, float] = {}
        self._samples = 0
        self._epoch_samples = 0
        self._epoch_started_s = 0.0
        self._shown_s = 0.0

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, StepDone):
            self._step(event)
        elif isinstance(event, RunStarted):
            self._begin(event)
        elif isinstance(event, EpochDone):
            self._epoch(event)
        elif isinstance(event, RunDone):
            self._bar.stop()
            self._console.print(result_table(event))
        elif isinstance(event, Resumed):
            self._resume(event)
        elif isinstance(event, Notice):
            self._console.print(f"note: {event.text}", style="yellow", markup=False)
        # A checkpoint that is whole needs no word: one that could not be written is a Notice.

    def _begin(self, event: RunStarted) -> None:
        self._started = event
        test = f", {event.test_samples:,} to test" if event.test_samples else ""
        self._console.print(
            f"{event.task}: {event.samples:,} {event.noun} to train{test}; "
            f"{event.parameters:,} parameters; global batch {event.global_batch}, "
            f"{plural(event.epochs, 'epoch')} of {plural(event.steps, 'step')}, seed {event.seed}",
            markup=False,
        )
        self._console.print(event.session, markup=False)
        self._bar.update(self._row, total=event.samples * event.epochs)

    def _resume(self, event: Resumed) -> None:
        self._samples = event.samples
        self._console.print(
            f"goes on in epoch {event.epoch} after {plural(event.step, 'step')}, from {event.path} "
            f"(saved by {plural(event.world_size, 'rank')})",
            markup=False,
        )

    def _step(self, event: StepDone) -> None:
        now_s = time.monotonic()
        if event.step == 1 or not self._epoch_started_s:
            self._epoch_started_s, self._epoch_samples = now_s, 0
        else:
            self._epoch_samples += event.samples
        self._samples += event.samples
        if self._started is None or now_s - self._shown_s < _REFRESH_S:
            return
        self._shown_s = now_s
        figures = [f"loss {event.loss:.3f}", *show_metrics(self._metrics, only_main=True)]
        if self._epoch_samples:
            rate = self._epoch_samples / (now_s - self._epoch_started_s)
            figures.append(f"{rate:,.0f} {self._started.noun}/s")
        self._bar.update(
            self._row,
            completed=self._samples,
            description=f"epoch {event.epoch}/{self._started.epochs}",
            figures="  ".join(figures),
        )

    def _epoch(self, event: EpochDone) -> None:
        self._metrics = event.metrics
        if self._started is None:
            return
        figures = [f"loss {event.loss:.4f}"]
        if event.metrics:
            figures.append("test " + ", ".join(show_metrics(event.metrics)))
        figures.append(f"{event.samples_per_s:,.0f} {self._started.noun}/s")
        if self._started.world_size > 1 and event.waiting_share is not None:
            figures.append(f"waiting {event.waiting_share:.1%}")
        figures.append(format_seconds(event.train_s + event.test_s))
        epoch = f"epoch {event.epoch}/{self._started.epochs}"
        self._console.print(f"{epoch}  {'  '.join(figures)}", markup=False)


def result_table(done: RunDone) -> Table:
    """One run's figures."""
    return _table([done], ratio=False)


def comparison_table(one: RunDone, many: RunDone) -> Table:
    """The same recipe on 1 rank and on several.

    Args:
        one: the run that the speed-up is counted from.
        many: the run on more ranks.
    """
    return _table([one, many], ratio=True)


def _table(runs: list[RunDone], *, ratio: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    headings = [plural(done.world_size, "rank") for done in runs]
    table.add_column(runs[0].task)
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_row("threads per rank", *(str(done.threads) for done in runs))
    table.add_row(f"{runs[0].noun}/s", *(f"{done.samples_per_s:,.0f}" for done in runs))
    if ratio:
        speed_ups = (done.samples_per_s / runs[0].samples_per_s for done in runs)
        table.add_row("speed-up", *(f"{speed_up:.2f}" for speed_up in speed_ups))
    table.add_row("waiting for communication", *(_share(done) for done in runs))
    if any(done.sent_share is not None for done in runs):
        table.add_row("sent, of plain gradients", *(_sent(done) for done in runs))
    table.add_row("training loss", *(f"{done.loss:.4f}" for done in runs))
    for name in runs[0].metrics:
        table.add_row(f"test {name}", *(_metric(name, done.metrics.get(name)) for done in runs))
    table.add_row("training time", *(format_seconds(done.train_s) for done in runs))
    return table


def show_metrics(metrics: Mapping[str, float], *, only_main: bool = False) -> list[str]:
    """Metrics in words, an accuracy in per cent; `only_main` leaves out losses."""
    return [
        f"{name} {_metric(name, value)}"
        for name, value in metrics.items()
        if not (only_main and "loss" in name)
    ]


def _metric(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if "accuracy" in name else f"{value:.4f}"


def _sent(done: RunDone) -> str:
    """`1/25`; a plain share where that says more."""
    if done.sent_share is None:
        return "-"
    if 0 < done.sent_share <= 0.1:
        return f"1/{1 / done.sent_share:,.0f}"
    return f"{done.sent_share:.1%}"


def _share(done: RunDone) -> str:
    if done.world_size == 1 or done.waiting_share is None:
        return "-"
    return f"{done.waiting_share:.1%}"
