"""What doubletime adds to `import torch`, whose last act is to load the plugins that are installed.

Whole imports differ by tens of milliseconds from one to the next, so the difference between those
with and without doubletime drowns. Here torch is imported without its plugins, and its last act is
then carried out and timed on its own. To look for plugins at all is torch's own cost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from statistics import median

import record

from doubletime.planning import machine
from doubletime.planning.load import busy_share
from doubletime.units import format_seconds

TIMES = 11
TARGET_S = 10e-3
_IMPORT = """
import json
from time import perf_counter
begin = perf_counter()
import torch
from importlib.metadata import entry_points
imported = perf_counter()
entry_points(group="torch.backends")
looked = perf_counter()
torch._import_device_backends()
loaded = perf_counter()
entry_points(group="torch.backends")  # which the act before did too, and now from a warm cache
again = perf_counter()
assert torch.distributed.distributed_c10d.ProcessGroupMPI.__module__ == "doubletime.plugin"
print(json.dumps([imported - begin, looked - imported, (loaded - looked) - (again - loaded)]))
"""


def seconds() -> list[float]:
    """One fresh interpreter: seconds of torch, of its look for plugins, and of doubletime's."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    found: list[float] = json.loads(
        subprocess.check_output([sys.executable, "-c", _IMPORT], env=environment)
    )
    return found


def main() -> None:
    """Measure, judge, publish."""
    busy = busy_share(1.0)
    seconds()  # fills the file cache
    torch_s, look_s, added_s = zip(*(seconds() for _ in range(TIMES)), strict=True)
    added = median(added_s)
    here = machine.describe("no MPI loaded")
    cells = [format_seconds(median(times)) for times in (torch_s, look_s, added_s)]
    row = record.Row(
        "`import torch`", cells, f"at most {format_seconds(TARGET_S)} added", added <= TARGET_S
    )
    report = record.Report(
        title=f"`import torch` with doubletime installed: median of {TIMES}",
        headings=["statement", "torch itself", "its look for plugins", "added by doubletime"],
        rows=[row],
        machine=asdict(here),
        caption=here.show(),
        figures={"torch_s": torch_s, "look_s": look_s, "added_s": added_s},
    )
    record.publish(report, busy)


if __name__ == "__main__":
    main()
