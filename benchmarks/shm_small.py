"""all_reduce where /dev/shm holds 64 MB, as a container's does by default: 2 ranks, 1 thread."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import record

from doubletime.mpi import library
from doubletime.planning import machine, measure, peers
from doubletime.planning.question import MPI, RAW
from doubletime.units import format_nbytes

RANKS = 2
SIZES = [64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]  # the last holds more than /dev/shm
SECONDS = 1.0  # on each size and peer
SHM = Path("/dev/shm")
SHM_NBYTES = 64 << 20
_INSIDE = "DOUBLETIME_SMALL_SHM"


def work() -> record.Report | None:
    """Check and time every size."""
    capacity = os.statvfs(SHM)
    nbytes = capacity.f_blocks * capacity.f_frsize
    if nbytes != SHM_NBYTES:
        raise RuntimeError(f"{SHM} holds {format_nbytes(nbytes)}, not {format_nbytes(SHM_NBYTES)}")
    with peers.join((RAW,)) as job:
        timings = measure.all_reduce(job, (MPI, RAW), SIZES, SECONDS, lambda _: None)
        here = machine.describe(library.describe())
    if job.rank != 0:
        return None
    rows = []
    for nbytes in SIZES:
        time = {timing.peer: timing.time for timing in timings if timing.nbytes == nbytes}
        ratio = f"{time[RAW].median_s / time[MPI].median_s:.2f}"
        cells = [record.show(time[MPI]), record.show(time[RAW]), ratio]
        # measure.all_reduce raises where a sum is wrong: what stands here was right.
        rows.append(record.Row(format_nbytes(nbytes), cells, "right sums", is_met=True))
    return record.Report(
        title=f"all_reduce of float32 with {format_nbytes(SHM_NBYTES)} of /dev/shm, {RANKS} ranks: "
        "median (quartiles)",
        headings=["size", "mpi", "raw MPI", "raw / mpi"],
        rows=rows,
        machine=asdict(here),
        caption=here.show(),
        figures=[timing.record() for timing in timings],
    )


def enter() -> int:
    """Run this script again where /dev/shm is small, in a mount namespace of its own."""
    mount = f'mount -t tmpfs -o size={SHM_NBYTES} tmpfs {SHM} && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, *sys.argv]
    return subprocess.call(command, env={**os.environ, _INSIDE: "1"})


if __name__ == "__main__":
    if _INSIDE not in os.environ:
        raise SystemExit(enter())
    record.main(RANKS, work)
    if not record.is_rank() and (left := sorted(path.name for path in SHM.iterdir())):
        raise SystemExit(f"left behind in {SHM}: {', '.join(left)}")
