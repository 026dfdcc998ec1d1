"""The drawing of a schedule as a file: the shapes of `collectives.drawing` in colours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from doubletime.collectives import drawing
from doubletime.collectives.drawing import Arrow, Box, Label, Picture
from doubletime.collectives.holdings import Change
from doubletime.collectives.schedule import ROOTED, Schedule
from doubletime.errors import ScheduleError
from doubletime.reporting import figure_file
from doubletime.reporting.schedule_view import place_name
from doubletime.units import plural

# Of ranks 0, 1, …: apart from each other and from green for people who see colours differently too.
_RANKS = ("#4477aa", "#ee6677", "#ccbb44", "#66ccee", "#aa3377", "#ee9944", "#8866cc", "#777777")
_ADDED, _COPIED = "#d55e00", "#0072b2"
_COMPLETE, _LEVEL, _INK, _FAINT, _HOST = "#2e9e5b", "#7fa8d1", "#222222", "#c8ccd0", "#f1f3f6"
_FACES = {
    "empty": "white", "partial": "white", "complete": _COMPLETE, "level": _LEVEL, "host": _HOST,
}  # fmt: skip
_POINTS = {"title": 12.0, "heading": 9.5, "text": 9.0, "small": 7.5}
_FADED = 0.28
_DOTS_PER_INCH = 144


def draw_schedule(schedule: Schedule, file: Path, *, shows_all: bool = False) -> None:
    """Draw a schedule into a file; its kind is what the name ends in.

    The same schedule gives the same SVG, byte by byte.

    Args:
        schedule: a proved one.
        file: .svg, .png or .pdf.
        shows_all: draw every round, however many.

    Raises:
        ScheduleError: if the file cannot be written.
    """
    picture = drawing.draw(schedule, title(schedule), shows_all=shows_all)
    with mpl.rc_context({"font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(picture.width, picture.height))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_xlim(0.0, picture.width)
        axes.set_ylim(picture.height, 0.0)
        axes.axis("off")
        _draw(axes, picture)
        _draw_legend(axes, picture, schedule.problem.ranks)
        try:
            figure_file.save(figure, file, _DOTS_PER_INCH)
        except OSError as error:
            raise ScheduleError(
                f"{file} cannot be written: {error.strerror}", "--draw another file"
            ) from error


def title(schedule: Schedule) -> str:
    """What stands above a drawing."""
    problem = schedule.problem
    root = f" with root {problem.root}" if problem.collective in ROOTED else ""
    return (
        f"{schedule.algorithm}: {problem.collective}{root} over {place_name(problem.topology)}, "
        f"{plural(schedule.length, 'round')}"
    )


def _draw(axes: Axes, picture: Picture) -> None:
    hosts = [box for box in picture.boxes if box.role == "host"]
    cells = [box for box in picture.boxes if box.role != "host"]
    _add_boxes(axes, hosts, 0.5)
    for lane in picture.lanes:
        axes.plot([lane.x, lane.to_x], [lane.y, lane.y], color=_FAINT, linewidth=0.8, zorder=1)
    for arrow in picture.arrows:
        _add_arrow(axes, arrow)
    _add_boxes(axes, cells, 4)
    for label in picture.labels:
        _add_label(axes, label)


def _add_boxes(axes: Axes, boxes: Iterable[Box], zorder: float) -> None:
    """Cells before what they contain, and the frames of changed ones last."""
    boxes = list(boxes)
    for each in (
        [box for box in boxes if box.role not in ("stripe", "level")],
        [box for box in boxes if box.role in ("stripe", "level")],
    ):
        if each:
            axes.add_collection(_patches(each, zorder))
    changed = [box for box in boxes if box.change is not Change.NONE]
    if changed:
        frames = [Rectangle((box.x, box.y), box.width, box.height) for box in changed]
        edges = [_ADDED if box.change is Change.REDUCED else _COPIED for box in changed]
        axes.add_collection(
            PatchCollection(
                frames, facecolors="none", edgecolors=edges, linewidths=1.6, zorder=zorder + 1
            )
        )


def _patches(boxes: list[Box], zorder: float) -> Any:
    patches = [Rectangle((box.x, box.y), box.width, box.height) for box in boxes]
    faces = [_RANKS[box.rank] if box.role == "stripe" else _FACES[box.role] for box in boxes]
    is_inner = boxes[0].role in ("stripe", "level", "host")
    return PatchCollection(
        patches,
        facecolors=[
            mpl.colors.to_rgba(face, _FADED if box.is_faded and is_inner else 1.0)
            for box, face in zip(boxes, faces, strict=True)
        ],
        edgecolors="none" if is_inner else _FAINT,
        linewidths=0.0 if is_inner else 0.8,
        zorder=zorder + (0.5 if is_inner else 0.0),
    )


def _add_arrow(axes: Axes, arrow: Arrow) -> None:
    axes.add_patch(
        FancyArrowPatch(
            (arrow.x, arrow.y),
            (arrow.to_x, arrow.to_y),
            arrowstyle="-|>",
            mutation_scale=9,
            linewidth=1.3,
            color=_ADDED if arrow.is_reduced else _COPIED,
            shrinkA=0,
            shrinkB=0,
            zorder=3,
        )
    )


def _add_label(axes: Axes, label: Label) -> None:
    around = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"}
    axes.text(
        label.x,
        label.y,
        label.text,
        fontsize=_POINTS[label.size],
        fontweight="bold" if label.size in ("title", "heading") else "normal",
        color=_INK,
        ha=label.align,
        va="center",
        zorder=6,
        bbox=around if label.is_on_arrow else None,
    )


def _draw_legend(axes: Axes, picture: Picture, ranks: int) -> None:
    """What colours mean, in one line at the foot."""
    y, x = picture.height - 0.32, 0.2
    cell = 0.26

    def say(text: str) -> None:
        nonlocal x
        _add_label(axes, Label(x, y, text, "small", "left"))
        x += 0.054 * len(text) + 0.2

    if ranks <= drawing.STRIPES:
        shown = [
            Box(x + rank * cell / ranks, y - 0.1, cell / ranks, 0.2, "stripe", rank)
            for rank in range(ranks)
        ]
        text = "whose contributions it holds: a stripe a rank"
    else:
        shown = [Box(x, y - 0.02, cell, 0.12, "level")]
        text = "how many contributions it holds"
    _add_boxes(axes, shown, 4)
    x += cell + 0.08
    say(text)
    _add_boxes(axes, [Box(x, y - 0.1, cell, 0.2, "complete")], 4)
    x += cell + 0.08
    say("complete")
    for is_reduced, text in ((True, "sent and added"), (False, "sent and copied")):
        _add_arrow(axes, Arrow(x, y, x + 0.36, y, is_reduced))
        x += 0.44
        say(text)
