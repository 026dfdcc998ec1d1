"""What doubletime adds to `import torch`: with its entry point loaded, and without."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from statistics import median

import record

from doubletime.planning import machine
from doubletime.planning.load import busy_share

TIMES = 11
TARGET_S = 10e-3
_IMPORT = "from time import perf_counter as t; a = t(); import torch; print(t() - a)"


def seconds(*, is_loaded: bool) -> float:
    """How long a fresh interpreter takes to import torch, with doubletime's entry point or not."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1" if is_loaded else "0"}
    command = [sys.executable, "-c", _IMPORT]
    return float(subprocess.check_output(command, env=environment, text=True))


def main() -> None:
    """Measure by turns, so that what disturbs the machine disturbs both alike."""
    busy = busy_share(1.0)
    seconds(is_loaded=True)  # fills the file cache
    times: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(TIMES):
        for is_loaded in (True, False) if turn % 2 else (False, True):
            times[is_loaded].append(seconds(is_loaded=is_loaded))
    with_it, without = median(times[True]), median(times[False])
    difference = with_it - without
    here = machine.describe("no MPI loaded")
    cells = [f"{with_it * 1e3:.0f} ms", f"{without * 1e3:.0f} ms", f"{difference * 1e3:+.1f} ms"]
    row = record.Row(
        "import torch", cells, f"at most {TARGET_S * 1e3:+.0f} ms", difference <= TARGET_S
    )
    report = record.Report(
        title=f"`import torch` with doubletime installed, and without: median of {TIMES}",
        headings=["statement", "with", "without", "difference"],
        rows=[row],
        machine=asdict(here),
        caption=here.show(),
        figures={"with_s": times[True], "without_s": times[False], "difference_s": difference},
    )
    record.publish(report, busy)


if __name__ == "__main__":
    main()
