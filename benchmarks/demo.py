"""`make demo` measured: a small CNN on Fashion-MNIST by synchronous SGD on 1 rank and on 2."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import record

from doubletime.planning import machine
from doubletime.planning.load import busy_share
from doubletime.reporting.runlog import read_result
from doubletime.units import format_seconds

COMMAND = "doubletime train fashion-mnist -n 2 --compare"
ABOUT_S = 180  # what it should take, about, on 2 cores


def main() -> None:
    """Run the demo's command as a user would, and read what its two runs left."""
    busy = busy_share(1.0)
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        program = [sys.executable, "-m", *COMMAND.split(), "--runs", folder, "--name", "demo"]
        subprocess.run(program, check=True)
        took_s = perf_counter() - start
        runs = [read_result(Path(folder, f"demo-n{ranks}")) for ranks in (1, 2)]
    rows = [
        record.Row(
            f"{run.world_size} rank{'s' * (run.world_size > 1)}",
            [
                f"{run.samples_per_s:,.0f}",
                f"{run.samples_per_s / runs[0].samples_per_s:.2f}",
                "" if run.waiting_share is None else f"{run.waiting_share:.0%}",
                f"{run.metrics['accuracy']:.1%}",
            ],
        )
        for run in runs
    ]
    rows.append(
        record.Row(
            f"both together: {format_seconds(took_s)}",
            [""] * 4,
            f"about {ABOUT_S // 60} min",
            took_s <= 1.15 * ABOUT_S,
        )
    )
    here = machine.describe("MPICH")
    record.publish(
        record.Report(
            title=f"`{COMMAND}`: {runs[0].epochs} epochs of {runs[0].task}, batch and seed the same",
            headings=[runs[0].task, "images/s", "speed-up", "waiting", "test accuracy"],
            rows=rows,
            machine=asdict(here),
            caption=f"{here.show()}; {runs[0].threads} thread per rank in both runs",
            figures=[asdict(run) for run in runs],
        ),
        busy,
    )


if __name__ == "__main__":
    main()
