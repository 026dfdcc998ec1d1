"""all_reduce of float32 by the mpi backend, bare MPI and gloo: 2 ranks, 1 thread, one host."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import record

from doubletime.mpi import library
from doubletime.planning import machine, measure, peers
from doubletime.planning.question import GLOO, MPI, RAW
from doubletime.planning.timing import Advance, Timing
from doubletime.units import format_nbytes, format_seconds

RANKS = 2
SECONDS = 1.5  # on each size and peer


@dataclass(frozen=True)
class Claim:
    """That the mpi backend takes at most the rival's time over `factor`, plus `slack_s` seconds."""

    rival: str
    factor: float = 1.0
    slack_s: float = 0.0

    def show(self) -> str:
        """The claim in words."""
        slack = f" + {format_seconds(self.slack_s)}" if self.slack_s else ""
        over = f" / {self.factor:g}" if self.factor != 1 else ""
        return f"at most {self.rival}{over}{slack}"

    def holds(self, medians: dict[str, float]) -> bool:
        """Whether it is true of these medians in seconds, by peer."""
        return medians[MPI] <= medians[self.rival] / self.factor + self.slack_s


TARGETS = {
    4: [Claim(RAW, slack_s=20e-6), Claim(GLOO, 6)],
    64 << 10: [Claim(GLOO, 5)],
    1 << 20: [Claim(GLOO, 3)],
    16 << 20: [Claim(GLOO, 2.7)],
    64 << 20: [Claim(RAW, 2)],
}


def work() -> record.Report | None:
    """Time every size by every peer."""
    with peers.join((GLOO, RAW)) as job:
        timings = measure.all_reduce(job, (MPI, RAW, GLOO), list(TARGETS), SECONDS, _ignore)
        here = machine.describe(library.describe())
    if job.rank != 0:
        return None
    rows = []
    for nbytes, claims in TARGETS.items():
        found = {timing.peer: timing for timing in timings if timing.nbytes == nbytes}
        rows.append(_row(nbytes, found, claims))
    return record.Report(
        title=f"all_reduce of float32, {RANKS} ranks, one host: median (quartiles)",
        headings=["size", "mpi", "raw MPI", "gloo", "gloo / mpi", "raw / mpi"],
        rows=rows,
        machine=asdict(here),
        caption=here.show(),
        figures=[timing.record() for timing in timings],
    )


def _row(nbytes: int, found: dict[str, Timing], claims: list[Claim]) -> record.Row:
    medians = {peer: timing.time.median_s for peer, timing in found.items()}
    ratios = [f"{medians[rival] / medians[MPI]:.2f}" for rival in (GLOO, RAW)]
    return record.Row(
        what=format_nbytes(nbytes),
        cells=[*(record.show(found[peer].time) for peer in (MPI, RAW, GLOO)), *ratios],
        target="; ".join(claim.show() for claim in claims),
        is_met=all(claim.holds(medians) for claim in claims),
    )


def _ignore(event: Advance | Timing) -> None:
    """Nothing is shown while it runs: a terminal costs time too."""


if __name__ == "__main__":
    record.main(RANKS, work)
