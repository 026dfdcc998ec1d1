"""`algorithm="auto"` after `doubletime bench tune` against the best of all, on one host and on up to four.

Several hosts are virtual ones with 1 Gbit/s links: that needs root, and what the tests' virtual cluster
needs. Small messages are compared with the mpi backend's own way, with bare MPI and with gloo as well.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import record
import torch
import torch.distributed as dist

from doubletime.cluster import supervise
from doubletime.collectives import run
from doubletime.collectives.choice import NATIVE, Choice
from doubletime.collectives.functions import all_reduce
from doubletime.collectives.party import Party, party_of
from doubletime.collectives.places import profile_path, table_path
from doubletime.collectives.table import Table
from doubletime.planning import machine, peers, tune
from doubletime.planning.load import busy_share
from doubletime.planning.question import GLOO, MPI, RAW
from doubletime.planning.timing import spread
from doubletime.planning.tune import Sized
from doubletime.planning.turns import Work, by_turns
from doubletime.units import format_nbytes, format_seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from vcluster import jobs
from vcluster.cluster import VirtualCluster

SIZES = tuple(1 << power for power in range(10, 27))
SMALL = (4, 64, 1024, 4096)
OF_BEST, OF_NATIVE, OF_GLOO = 1.05, 1.3, 4.0


@dataclass(frozen=True)
class Case:
    """A job: how many ranks, on how many hosts."""

    ranks: int
    hosts: int

    @property
    def name(self) -> str:
        """In the table."""
        on = "one host" if self.hosts == 1 else f"{self.hosts} hosts"
        return f"{self.ranks} ranks on {on}"


CASES = (
    *(Case(ranks, 1) for ranks in (2, 3, 4, 8)),
    *(Case(ranks, min(ranks, 4)) for ranks in (2, 3, 4, 8)),
)


def rank(output: Path, seconds: float, is_small: bool) -> None:
    """One rank: tune, then time auto and the best by turns; rank 0 leaves JSON."""
    torch.set_num_threads(1)
    with peers.join((GLOO,) if is_small else ()) as job:
        group = job.groups[MPI]
        found = _small(job, group) if is_small else _tuned(job, group, seconds)
        if job.rank == 0:
            output.write_text(json.dumps(found))


def _tuned(job: peers.Job, group: Any, seconds: float) -> list[dict[str, Any]]:
    sized: list[Sized] = []

    def observe(event: object) -> None:
        if isinstance(event, Sized):
            sized.append(event)

    party = party_of(group)
    measured = tune.all_reduce(job, party, SIZES, seconds, observe)
    if job.rank == 0:
        profile_path().parent.mkdir()
        table_path(profile_path()).write_text(Table().with_new(measured).text())
    job.comm.Barrier()
    found: list[dict[str, Any]] = []
    for size in sized:
        tensor = torch.zeros(size.decision.nbytes // 4)
        choices = [choice for choice, _ in size.finalists]
        calls = [_auto(tensor, group), *(_by(party, tensor, choice) for choice in choices)]
        works = [Work(call, lambda: dist.barrier(group=group)) for call in calls]
        taken = [
            asdict(spread(samples)) for samples in by_turns(job.comm, works, seconds, _ignored)
        ]
        best = min(range(1, len(taken)), key=lambda each: float(taken[each]["median_s"]))
        found.append(
            {
                "nbytes": tensor.nbytes,
                "chosen": str(size.decision.choice),
                "auto": taken[0],
                "best": str(choices[best - 1]),
                "others": dict(zip(map(str, choices), taken[1:], strict=True)),
                "over_best": taken[0]["median_s"] / taken[best]["median_s"],
            }
        )
    return found


def _small(job: peers.Job, group: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for nbytes in SMALL:
        tensor = torch.zeros(nbytes // 4)
        works = [Work(_auto(tensor, group), job.peer(MPI).barrier)]
        for name in (MPI, RAW, GLOO):
            peer = job.peer(name)
            works.append(Work(_through(peer, tensor), peer.barrier))
        taken = by_turns(job.comm, works, 0.5, _ignored)
        names = ("auto", NATIVE, RAW, GLOO)
        found.append(
            {
                "nbytes": nbytes,
                **{n: asdict(spread(s)) for n, s in zip(names, taken, strict=True)},
            }
        )
    return found


def _auto(tensor: torch.Tensor, group: Any) -> Callable[[], None]:
    return lambda: all_reduce(tensor, group=group, algorithm="auto")


def _by(party: Party, tensor: torch.Tensor, choice: Choice) -> Callable[[], None]:
    if choice.algorithm == NATIVE:  # as people call it
        return lambda: dist.all_reduce(tensor, group=party.group)
    return lambda: run.all_reduce(party, tensor, dist.ReduceOp.SUM, choice)


def _through(peer: peers.Peer, tensor: torch.Tensor) -> Callable[[], None]:
    return lambda: peer.all_reduce(tensor)


def _ignored(_event: object) -> None:
    """No progress is shown: a cluster's ranks have no terminal."""


def measure(case: Case, seconds: float, *, is_small: bool = False) -> list[dict[str, Any]]:
    """Run a case with a configuration folder of its own, and read what rank 0 left."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "found.json")
        # A configuration of its own: what this machine was tuned for before does not count.
        env = {"XDG_CONFIG_HOME": folder, "OMP_NUM_THREADS": "1"}
        args = ["rank", str(output), str(seconds), "small" if is_small else "tuned"]
        if case.hosts == 1:
            command = [sys.executable, __file__, *args]
            exit_code = supervise.run_local(command, case.ranks, environment=env, bind=False)
            if exit_code:
                raise SystemExit(exit_code)
        else:
            with VirtualCluster(hosts=case.hosts) as cluster:
                cluster.shape("1gbit")
                jobs.mpiexec(
                    cluster, "mpich", Path(__file__), case.ranks, case.ranks // case.hosts,
                    args=args, env=env, timeout=560,
                ).check()  # fmt: skip
        found: list[dict[str, Any]] = json.loads(output.read_text())
    return found


def row(case: Case, found: Sequence[dict[str, Any]]) -> record.Row:
    """A case's sizes, as one row."""
    worst = max(found, key=lambda each: float(each["over_best"]))
    within = sum(each["over_best"] <= OF_BEST for each in found)
    chosen = ", ".join(dict.fromkeys(each["chosen"] for each in found))
    return record.Row(
        case.name,
        [
            f"{within} of {len(found)}",
            f"{worst['over_best']:.2f} at {format_nbytes(worst['nbytes'])}",
            chosen,
        ],
        f"all within {OF_BEST} of the best",
        within == len(found),
    )


def small_row(each: dict[str, Any]) -> record.Row:
    """One small size."""
    times = {name: float(each[name]["median_s"]) for name in ("auto", NATIVE, RAW, GLOO)}
    over_native, under_gloo = times["auto"] / times[NATIVE], times[GLOO] / times["auto"]
    shown = ", ".join(f"{name} {format_seconds(time_s)}" for name, time_s in times.items())
    return record.Row(
        f"{format_nbytes(each['nbytes'])}, 2 ranks on one host",
        [f"{over_native:.2f} of native", f"{under_gloo:.1f} times faster than gloo", shown],
        f"within {OF_NATIVE} of native, {OF_GLOO:g} times faster than gloo",
        over_native <= OF_NATIVE and under_gloo >= OF_GLOO,
    )


def main() -> None:
    """Measure all cases, or those whose name contains a word, and publish them."""
    words = sys.argv[1:]
    seconds = float(os.environ.get("SECONDS_EACH", "0.15"))
    busy = busy_share(1.0)
    rows: list[record.Row] = []
    figures: dict[str, Any] = {}
    if not words:
        figures["small"] = measure(Case(2, 1), 0.5, is_small=True)
        rows += [small_row(each) for each in figures["small"]]
    for case in CASES:
        if words and not any(word in case.name for word in words):
            continue
        figures[case.name] = measure(case, seconds)
        rows.append(row(case, figures[case.name]))
        print(f"{rows[-1].what}: {' | '.join(rows[-1].cells)}", file=sys.stderr, flush=True)
    torch.set_num_threads(1)  # as in the ranks
    here = machine.describe("MPICH")
    report = record.Report(
        title="all_reduce of float32 by auto, after bench tune, against the best of all algorithms "
        "and the backend's own, 1 KiB to 64 MiB",
        headings=["case", "sizes within 1.05", "worst", "chosen, by size"],
        rows=rows, machine=asdict(here), caption=here.show(), figures=figures,
    )  # fmt: skip
    record.publish(report, busy, is_whole=not words)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "small")
    else:
        main()
