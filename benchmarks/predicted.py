"""The cost model against the clock: every algorithm and size, on 2, 4 and 8 virtual hosts with 1 Gbit/s links.

The links are measured first (as `doubletime bench links` does), then each algorithm is priced with that
profile and timed. Needs root, and what the tests' virtual cluster needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import record
import torch
import torch.distributed as dist

from doubletime.collectives import run
from doubletime.collectives.catalogue import ALGORITHMS, find
from doubletime.collectives.choice import Choice, problem
from doubletime.collectives.cost import evaluate
from doubletime.collectives.knowledge import ASSUMED
from doubletime.collectives.party import AHEAD_MPI, party_of
from doubletime.mpi import library
from doubletime.planning import links, machine, peers
from doubletime.planning.load import busy_share
from doubletime.planning.question import MPI
from doubletime.planning.timing import Samples, spread
from doubletime.planning.turns import slowest
from doubletime.units import format_nbytes, format_seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from vcluster import jobs
from vcluster.cluster import VirtualCluster

HOSTS = (2, 4, 8)
SIZES = tuple(1 << power for power in range(16, 27, 2))
MEDIAN, WORST = 0.10, 0.25
LEAST, MOST, LONG_S = 3, 15, 2.0  # samples of a call, as many as take about so long


def rank() -> None:
    """One rank: measure the links, then price and time every algorithm; rank 0 prints JSON."""
    torch.set_num_threads(1)
    with peers.join(()) as job:
        profile = links.measure(job, 0.02, _ignored)
        parameters = profile.parameters(ASSUMED)
        party = party_of(job.groups[MPI])
        found: list[dict[str, Any]] = []
        for nbytes in SIZES:
            tensor = torch.zeros(nbytes // 4)
            # Each host has one rank: two_level would be its outer algorithm.
            choices = [Choice(name) for name in ALGORITHMS if name != "two_level"]
            taken = _by_turns(job, [_call(party, tensor, choice) for choice in choices])
            for choice, samples in zip(choices, taken, strict=True):
                asked = problem(choice, "all_reduce", party.topology, 0, nbytes)
                schedule = find(choice.algorithm).schedule(asked)
                cost = evaluate(schedule, nbytes, parameters, itemsize=4, in_flight=AHEAD_MPI)
                found.append(
                    {
                        "algorithm": choice.algorithm,
                        "nbytes": nbytes,
                        "predicted_s": cost.time_s,
                        "measured": asdict(spread(samples)),
                    }
                )
        if job.rank == 0:
            print(json.dumps(found))


def _call(party: Any, tensor: torch.Tensor, choice: Choice) -> Any:
    return lambda: run.all_reduce(party, tensor, dist.ReduceOp.SUM, choice)


def _by_turns(job: peers.Job, calls: Sequence[Callable[[], None]]) -> list[Samples]:
    """Few samples of long calls, where `planning.turns` would take minutes; the first are not counted."""
    taken: list[list[float]] = [[] for _ in calls]
    repeats = MOST
    while len(taken[0]) <= repeats:
        for call, samples in zip(calls, taken, strict=True):
            job.comm.Barrier()
            start = perf_counter()
            call()
            samples.append(perf_counter() - start)
        if len(taken[0]) == 1:
            longest_s = job.comm.allreduce(
                max(samples[0] for samples in taken), op=library.load().MAX
            )
            repeats = max(LEAST, min(MOST, int(LONG_S / longest_s)))
    return [slowest(job.comm, samples[1:]) for samples in taken]


def _ignored(_event: object) -> None:
    """No progress is shown: a cluster's ranks have no terminal."""


def error(found: dict[str, Any]) -> float:
    """How far a prediction is off, as a share of what was measured."""
    measured_s: float = found["measured"]["median_s"]
    return abs(float(found["predicted_s"]) - measured_s) / measured_s


def main() -> None:
    """Measure on each cluster, and publish the errors of the model."""
    busy = busy_share(1.0)
    figures: dict[str, list[dict[str, Any]]] = {}
    for hosts in HOSTS:
        with VirtualCluster(hosts=hosts) as cluster:
            cluster.shape("1gbit")
            done = jobs.mpiexec(
                cluster, "mpich", Path(__file__), hosts, args=["rank"],
                env={"OMP_NUM_THREADS": "1"}, timeout=400,
            ).check()  # fmt: skip
        figures[f"{hosts} hosts"] = json.loads(
            next(line for line in done.stdout.splitlines() if line.startswith("[{"))
        )
        print(f"{hosts} hosts: done", file=sys.stderr, flush=True)
    everything = [found for all_of in figures.values() for found in all_of]
    rows = []
    for algorithm in dict.fromkeys(found["algorithm"] for found in everything):
        mine = [found for found in everything if found["algorithm"] == algorithm]
        rows.append(record.Row(algorithm, _cells(mine)))
    errors = [error(found) for found in everything]
    is_met = median(errors) <= MEDIAN and max(errors) <= WORST
    target = f"median at most {MEDIAN:.0%}, worst {WORST:.0%}"
    rows.append(record.Row("all", _cells(everything), target, is_met))
    torch.set_num_threads(1)  # as in the ranks
    here = machine.describe("MPICH")
    record.publish(
        record.Report(
            title=f"time predicted by the cost model against time measured: all_reduce of "
            f"{format_nbytes(SIZES[0])} to {format_nbytes(SIZES[-1])} on 2, 4 and 8 virtual hosts, "
            "MPICH",
            headings=["algorithm", "median error", "worst error", "the worst: predicted, measured"],
            rows=rows, machine=asdict(here), caption=here.show(), figures=figures,
        ),
        busy,
    )  # fmt: skip


def _cells(found: list[dict[str, Any]]) -> list[str]:
    worst = max(found, key=error)
    measured_s = worst["measured"]["median_s"]
    return [
        f"{median(map(error, found)):.0%}",
        f"{error(worst):.0%}",
        f"{worst['algorithm']} of {format_nbytes(worst['nbytes'])}: "
        f"{format_seconds(worst['predicted_s'])}, {format_seconds(measured_s)}",
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank()
    else:
        main()
