"""Make what docs/reduction.md shows: the drawings, quoted output and predicted times.

Each drawing is made by the command that the page names above it. `--show` prints the page as it
should be, and writes nothing.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from doubletime.collectives.catalogue import ALGORITHMS, find
from doubletime.collectives.choice import Choice, problem
from doubletime.collectives.cost import evaluate
from doubletime.collectives.knowledge import ASSUMED
from doubletime.collectives.topology import Topology
from doubletime.planning.timing import Spread, Timing
from doubletime.reporting.timings_plot import plot_timings
from doubletime.units import format_nbytes, format_seconds

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reduction.md"
COMMAND = re.compile(r"^    (doubletime explain .*)$", re.M)
OUTPUT = re.compile(
    r"(<!-- output of (doubletime explain [^>]*) -->\n```text\n).*?^```", re.M | re.S
)
PREDICTED = re.compile(r"(<!-- predicted -->\n).*?(?=^<!-- end -->)", re.M | re.S)
MEASURED = ROOT / "benchmarks" / "results" / "predicted.json"
LINK_NBYTES_PER_S = 125e6
SIZES = (1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20)
PLACES = {
    "8 hosts, 1 rank on each": Topology.flat(8),
    "7 hosts, 1 rank on each": Topology.flat(7),
    "4 hosts, 2 ranks on each": Topology.even(4, 2),
}
IN_FLIGHT = 6


def explain(command: str) -> str:
    """What such a command prints, run where the page's paths lead somewhere."""
    arguments = shlex.split(command)[1:]
    return subprocess.run(
        [sys.executable, "-m", "doubletime", *arguments],
        check=True, capture_output=True, text=True, cwd=ROOT, timeout=120,
    ).stdout  # fmt: skip


def predicted() -> Iterator[str]:
    """The model's times for every algorithm, the best of each column in bold, as Markdown."""
    for place, topology in PLACES.items():
        times = {name: [time_s(name, topology, nbytes) for nbytes in SIZES] for name in ALGORITHMS}
        best = [min(column) for column in zip(*times.values(), strict=True)]
        heading = " | ".join(map(format_nbytes, SIZES))
        yield f"| {place} | {heading} |\n| --- |{' ---: |' * len(SIZES)}"
        for name, row in times.items():
            cells = [
                f"**{format_seconds(each)}**" if each <= 1.001 * least else format_seconds(each)
                for each, least in zip(row, best, strict=True)
            ]
            yield f"| `{name}` | {' | '.join(cells)} |"
        yield ""


def time_s(name: str, topology: Topology, nbytes: int) -> float:
    """What the model says of an algorithm, in the segments in which `dt.all_reduce` cuts."""
    asked = problem(Choice(name), "all_reduce", topology, 0, nbytes)
    schedule = find(name).schedule(asked)
    return evaluate(schedule, nbytes, ASSUMED, in_flight=IN_FLIGHT).time_s


def page() -> str:
    """The page with its quoted parts renewed."""
    text = OUTPUT.sub(lambda found: f"{found[1]}{explain(found[2])}```", PAGE.read_text())
    table = "\n".join(predicted())
    return PREDICTED.sub(lambda found: f"{found[1]}\n{table}\n", text)


def draw_measured() -> None:
    """Draw what benchmarks/predicted.py has measured, one drawing for each number of hosts."""
    for place, found in json.loads(MEASURED.read_text())["figures"].items():
        hosts = int(place.split()[0])
        timings = [
            Timing(
                "all_reduce", each["algorithm"], each["nbytes"], hosts, Spread(**each["measured"])
            )
            for each in found
        ]
        plot_timings(
            timings,
            PAGE.parent / "figures" / f"all_reduce_{hosts}_hosts.svg",
            f"all_reduce of float32, {hosts} hosts, 1 rank on each, 1 Gbit/s, MPICH",
            partial(bound_s, hosts),
        )


def bound_s(hosts: int, nbytes: int) -> float:
    """What each host's link must carry at least, in seconds (Patarasuk & Yuan 2009)."""
    return 2 * (hosts - 1) / hosts * nbytes / LINK_NBYTES_PER_S


def main() -> None:
    """Draw and write, or show."""
    renewed = page()
    if "--show" in sys.argv[1:]:
        sys.stdout.write(renewed)
        return
    PAGE.write_text(renewed)
    for command in COMMAND.findall(renewed):
        if "--draw" in command:
            explain(command)
    draw_measured()


if __name__ == "__main__":
    main()
