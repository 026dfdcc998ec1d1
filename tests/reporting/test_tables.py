"""Measurements as people see them."""

import io

from rich.console import Console

from doubletime.planning.timing import Advance, Timing, spread
from doubletime.reporting.tables import MeasuringProgress, timings_table

TIMINGS = [
    Timing("all_reduce", "mpi", 4096, 2, spread([1e-5])),
    Timing("all_reduce", "gloo", 4096, 2, spread([1e-4])),
    Timing("all_reduce", "raw", 4096, 2, spread([5e-6])),
    Timing("all_reduce", "mpi", 1 << 26, 2, spread([0.01])),
    Timing("all_reduce", "gloo", 1 << 26, 2, spread([0.04])),
    Timing("all_reduce", "raw", 1 << 26, 2, spread([0.025])),
]


def lines(table):
    text = io.StringIO()
    Console(file=text, width=110).print(table)
    return [line.split() for line in text.getvalue().splitlines()]


def test_best_at_each_size_is_marked_and_ratios_are_speeds():
    rows = [row for row in lines(timings_table(TIMINGS)) if "µs" in row or "ms" in row]
    marked = [" ".join(row) for row in rows if "*" in row]
    assert len(marked) == 2
    assert "raw MPI *" in marked[0]
    assert "64 MiB mpi *" in marked[1]
    assert rows[0][:3] == ["4", "KiB", "mpi"]
    assert rows[0][-2:] == ["10.00", "0.50"], "ten times as fast as gloo, half as fast as raw MPI"
    assert rows[3][-2:] == ["4.00", "2.50"]


def test_rival_that_was_not_asked_has_no_column():
    heading = lines(timings_table(TIMINGS[:2]))[1]
    assert "speed/gloo" in heading
    assert "speed/raw" not in heading


def test_off_a_terminal_each_timing_is_one_plain_line():
    text = io.StringIO()
    with MeasuringProgress(Console(file=text, width=110)) as progress:
        progress.observe(Advance(0.5, 4096))
        progress.observe(TIMINGS[0])
    assert text.getvalue() == "4 KiB by mpi: 10 µs\n"


def test_on_a_terminal_a_bar_shows_how_far_it_is():
    text = io.StringIO()
    console = Console(file=text, width=110, force_terminal=True)
    with MeasuringProgress(console) as progress:
        progress.observe(Advance(0.5, 1 << 20))
    assert "1 MiB" in text.getvalue()
    assert "50%" in text.getvalue()
