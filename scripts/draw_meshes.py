"""Draw what docs/parallelism.md shows: how each mesh divides work, memory and messages; and a pipeline's time."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from doubletime.reporting.figure_file import save
from doubletime.training.mesh import Mesh

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
DOTS_PER_INCH = 144
CELLS = 4  # quarters of the batch, layers, units of a layer
CELL, CARD, GAP = 0.17, (1.62, 1.28), (0.62, 0.66)
INK, FAINT, CARD_FACE = "#222222", "#c8ccd0", "#f6f7f9"
SAMPLES, HELD, GATHERED = "#ccbb44", "#4477aa", "#c9d9ea"
FORWARD, BACKWARD = "#7fa8d1", "#ee9944"
AXIS = {
    "dp": ("#2e9e5b", "dp: gradients are all-reduced, once a step"),
    "fsdp": (
        "#0072b2",
        "fsdp: parameters are gathered, gradients reduce-scattered, layer by layer",
    ),
    "tp": ("#aa3377", "tp: partial sums of activations are all-reduced, within each layer"),
    "pp": ("#d55e00", "pp: activations go on, their gradients come back, for each microbatch"),
}
MESHES = ("dp=2", "fsdp=2", "pp=2", "tp=2", "dp=2,pp=2", "dp=2,tp=2", "dp=2,pp=2,tp=2")


def draw_mesh(text: str, file: Path) -> None:
    """One card for each rank: its samples, the parameters it holds; and who sends what to whom."""
    mesh = Mesh.parse(text)
    columns, rows = mesh.data_size * mesh.tp, mesh.pp
    width = 0.5 + columns * CARD[0] + (columns - 1) * GAP[0]
    width = max(width, 5.5)
    legend = 0.62 + 0.22 * len(mesh.axes)
    top = 0.75 if mesh.tp > 1 and mesh.data_size > 1 else 0.4  # arcs need room
    height = top + 0.05 + rows * CARD[1] + (rows - 1) * GAP[1] + legend
    figure, axes = canvas(width, height)
    left = (width - columns * CARD[0] - (columns - 1) * GAP[0]) / 2
    corners = {}
    for rank in range(mesh.size):
        column = mesh.data_rank(rank) * mesh.tp + mesh.coordinate(rank, "tp")
        row = mesh.coordinate(rank, "pp")
        corners[rank] = (left + column * (CARD[0] + GAP[0]), top + row * (CARD[1] + GAP[1]))
        draw_card(axes, corners[rank], mesh, rank)
    axes.text(width / 2, 0.2, f"--mesh {text}", ha="center", va="center", fontsize=11, color=INK)
    for axis in mesh.axes:
        for group in mesh.groups(axis):
            for one, other in itertools.pairwise(group):
                link(axes, corners[one], corners[other], axis, is_between_tp=mesh.tp > 1)
    draw_legend(axes, left if columns > 2 else 0.3, height - legend + 0.2, mesh)
    save(figure, file, DOTS_PER_INCH)


def draw_card(axes: Axes, corner: tuple[float, float], mesh: Mesh, rank: int) -> None:
    """A rank: which quarters of the global batch it works on, which parameters it holds."""
    x, y = corner
    axes.add_patch(
        FancyBboxPatch(
            corner, *CARD, boxstyle="round,pad=0,rounding_size=0.08", facecolor=CARD_FACE,
            edgecolor=FAINT, linewidth=1,
        )
    )  # fmt: skip
    axes.text(x + CARD[0] / 2, y + 0.14, f"rank {rank}", ha="center", va="center", fontsize=8.5)
    own = share(mesh.data_rank(rank), mesh.data_size)
    layers = share(mesh.coordinate(rank, "pp"), mesh.pp)
    units = share(mesh.coordinate(rank, "tp"), mesh.tp)
    shard = share(mesh.coordinate(rank, "fsdp"), mesh.fsdp)
    top, first, second = y + 0.32, x + 0.26, x + 0.66
    for row in range(CELLS):
        cell(axes, first, top + row * CELL, SAMPLES if row in own else "white")
        for unit in range(CELLS):
            is_used = row in layers and unit in units
            held = HELD if unit in shard else GATHERED
            cell(axes, second + unit * CELL, top + row * CELL, held if is_used else "white")
    for middle, word in ((first + CELL / 2, "samples"), (second + 2 * CELL, "layers")):
        axes.text(middle, y + CARD[1] - 0.13, word, ha="center", va="center", fontsize=7, color=INK)


def cell(axes: Axes, x: float, y: float, face: str) -> None:
    """One quarter of something."""
    axes.add_patch(Rectangle((x, y), CELL, CELL, facecolor=face, edgecolor=FAINT, linewidth=0.7))


def share(place: int, size: int) -> range:
    """Which of the quarters."""
    return range(place * CELLS // size, (place + 1) * CELLS // size)


def link(
    axes: Axes,
    one: tuple[float, float],
    other: tuple[float, float],
    axis: str,
    *,
    is_between_tp: bool,
) -> None:
    """The arrow between two ranks that send to each other along an axis."""
    colour = AXIS[axis][0]
    if axis == "pp":
        x, start, end = one[0] + CARD[0] / 2, one[1] + CARD[1], other[1]
        ends, bend = ((x, start + 0.04), (x, end - 0.04)), 0.0
    elif is_between_tp and axis != "tp":  # over the neighbour
        y = one[1] + 0.02
        ends, bend = ((one[0] + CARD[0] / 2, y), (other[0] + CARD[0] / 2, y)), 0.08
    else:
        y = one[1] + CARD[1] / 2
        ends, bend = ((one[0] + CARD[0] + 0.04, y), (other[0] - 0.04, y)), 0.0
    style = {"arrowstyle": "<|-|>", "mutation_scale": 9, "linewidth": 1.6, "color": colour}
    axes.add_patch(FancyArrowPatch(*ends, connectionstyle=f"arc3,rad={-bend}", **style))


def draw_legend(axes: Axes, x: float, y: float, mesh: Mesh) -> None:
    """What colours mean."""
    words = [(SAMPLES, "its samples"), (HELD, "parameters that it holds")]
    if mesh.fsdp > 1:
        words.append((GATHERED, "gathered while a layer computes"))
    for face, word in words:
        cell(axes, x, y - CELL / 2, face)
        axes.text(x + 0.26, y, word, va="center", fontsize=7.5, color=INK)
        x += 0.45 + 0.058 * len(word)
    x = axes.get_xlim()[0] + (0.3 if mesh.size <= 4 else 0.25)
    for number, axis in enumerate(mesh.axes, 1):
        colour, word = AXIS[axis]
        axes.plot([x, x + 0.2], [y + 0.22 * number] * 2, color=colour, linewidth=2)
        axes.text(x + 0.28, y + 0.22 * number, word, va="center", fontsize=7.5, color=INK)


Order = Callable[[int, int, int], Iterator[tuple[str, int]]]


def one_f_one_b(stage: int, stages: int, microbatches: int) -> Iterator[tuple[str, int]]:
    """The order of passes on a stage (Narayanan et al. 2019): as many forwards as stages follow, then in turn."""
    ahead = min(stages - stage - 1, microbatches)
    yield from (("F", number) for number in range(ahead))
    for number in range(microbatches):
        if ahead + number < microbatches:
            yield "F", ahead + number
        yield "B", number


def gpipe(_stage: int, _stages: int, microbatches: int) -> Iterator[tuple[str, int]]:
    """All forwards, then all backwards (Huang et al. 2019)."""
    yield from (("F", number) for number in range(microbatches))
    yield from (("B", number) for number in range(microbatches))


def times(
    order: Order, stages: int, microbatches: int
) -> dict[tuple[str, int, int], tuple[float, float]]:
    """When each pass of each stage starts and ends; a backward pass takes twice as long as a forward."""
    queues = [list(order(stage, stages, microbatches)) for stage in range(stages)]
    done: dict[tuple[str, int, int], tuple[float, float]] = {}
    free = [0.0] * stages
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                kind, number = queue[0]
                before = stage - 1 if kind == "F" else stage + 1
                needed = (kind, before, number) if 0 <= before < stages else ("F", stage, number)
                if needed not in done and (kind == "B" or before >= 0):
                    break
                start = max(free[stage], done.get(needed, (0.0, 0.0))[1])
                free[stage] = start + (1.0 if kind == "F" else 2.0)
                done[kind, stage, number] = (start, free[stage])
                queue.pop(0)
    return done


def draw_pipeline(file: Path, stages: int = 4, microbatches: int = 8) -> None:
    """What each stage does when, under two schedules."""
    schedules = {"GPipe": gpipe, "1F1B": one_f_one_b}
    figure, axes = canvas(9.0, 3.55)
    last = max(
        end
        for order in schedules.values()
        for _, end in times(order, stages, microbatches).values()
    )
    unit, row = 7.9 / last, 0.26
    for block, (name, order) in enumerate(schedules.items()):
        top = 0.5 + block * 1.55
        bubble = (stages - 1) / (microbatches + stages - 1)
        axes.text(
            0.9, top - 0.18,
            f"{name}: {microbatches} microbatches, {stages} stages; idle (p−1)/(m+p−1) = {bubble:.0%}; "
            f"activations of {microbatches if order is gpipe else stages} microbatches at most",
            fontsize=8.5, color=INK,
        )  # fmt: skip
        for stage in range(stages):
            y = top + stage * row
            axes.text(0.82, y + row / 2, f"stage {stage}", ha="right", va="center", fontsize=7.5)
            axes.add_patch(
                Rectangle((0.9, y), last * unit, row, facecolor="white", edgecolor=FAINT)
            )
        for (kind, stage, number), (start, end) in times(order, stages, microbatches).items():
            x, y = 0.9 + start * unit, top + stage * row
            face = FORWARD if kind == "F" else BACKWARD
            axes.add_patch(
                Rectangle((x, y), (end - start) * unit, row, facecolor=face, edgecolor="white")
            )
            axes.text(
                x + (end - start) * unit / 2,
                y + row / 2,
                str(number),
                ha="center",
                va="center",
                fontsize=6.5,
            )
    for x, face, word in (
        (0.9, FORWARD, "forward"),
        (2.1, BACKWARD, "backward"),
        (3.4, "white", "idle: the bubble"),
    ):
        cell(axes, x, 3.28, face)
        axes.text(x + 0.26, 3.28 + CELL / 2, word, va="center", fontsize=7.5, color=INK)
    save(figure, file, DOTS_PER_INCH)


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure, in inches from its upper left corner."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0.0, width)
    axes.set_ylim(height, 0.0)
    axes.axis("off")
    return figure, axes


def main() -> None:
    """Draw all."""
    with mpl.rc_context({"font.family": "DejaVu Sans"}):
        for text in MESHES:
            draw_mesh(text, FIGURES / f"mesh_{text.replace('=', '').replace(',', '_')}.svg")
        draw_pipeline(FIGURES / "pipeline.svg")


if __name__ == "__main__":
    main()
