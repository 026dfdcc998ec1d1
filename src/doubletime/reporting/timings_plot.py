"""Timings drawn: time over message size, both on logarithmic scales, a line for each who took part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from doubletime.planning.timing import Timing
from doubletime.reporting import figure_file
from doubletime.reporting.tables import shown
from doubletime.units import format_nbytes, format_seconds

_MARKERS = "osDv^<>pP*X"
_COLOURS = mpl.colormaps["tab20"]  # ten strong ones, a pale one behind each
_DOTS_PER_INCH = 150
_TITLE_COLUMNS = 95


def plot_timings(
    timings: Sequence[Timing], file: Path, title: str, bound_s: Callable[[int], float] | None = None
) -> None:
    """Write a drawing of medians, with their quartiles as bands, to a PNG or SVG file.

    Args:
        timings: at least one.
        file: the suffix says which format.
        title: what stands above.
        bound_s: the least time for so many bytes, in seconds; drawn as a dashed line.

    Raises:
        OSError: if the file cannot be written.
    """
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    sizes = sorted({timing.nbytes for timing in timings})
    for index, peer in enumerate(dict.fromkeys(timing.peer for timing in timings)):
        own = sorted((each for each in timings if each.peer == peer), key=lambda each: each.nbytes)
        at = [timing.nbytes for timing in own]
        (line,) = axes.plot(
            at,
            [timing.time.median_s for timing in own],
            color=_COLOURS(2 * index % 20 + index // 10 % 2),
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=4,
            label=shown(peer),
        )
        lower = [timing.time.lower_s for timing in own]
        upper = [timing.time.upper_s for timing in own]
        axes.fill_between(at, lower, upper, color=line.get_color(), alpha=0.12, linewidth=0)
    if bound_s is not None:
        axes.plot(sizes, [bound_s(size) for size in sizes], "k--", linewidth=1, label="lower bound")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes[:: max(1, len(sizes) // 9)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: format_nbytes(int(nbytes))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_seconds(seconds)))
    axes.set_xlabel("message size")
    axes.set_ylabel("time of an all_reduce, median and quartiles")
    axes.set_title(fill(title, _TITLE_COLUMNS), loc="left", fontsize=11)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=9)
    figure_file.save(figure, file, _DOTS_PER_INCH)
