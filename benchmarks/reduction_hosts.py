"""all_reduce between hosts: ours and each MPI's own, on a virtual cluster with 1 Gbit/s links.

Needs root, and what the tests' virtual cluster needs (iproute2, openssh-server, a C compiler).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import record
import torch
import torch.distributed as dist

from doubletime.collectives import run
from doubletime.collectives.choice import NATIVE, Choice
from doubletime.collectives.party import party_of
from doubletime.mpi import library
from doubletime.planning import machine
from doubletime.planning.load import busy_share
from doubletime.planning.timing import Spread, spread
from doubletime.units import format_nbytes, format_seconds, parse_nbytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from vcluster import jobs
from vcluster.cluster import VirtualCluster

LINK = 125e6  # bytes per second: 1 Gbit/s
MIB = 1 << 20
MPIS = ("mpich", "openmpi", "intel")
FLAT = tuple(f"pipelined_ring@{segment}" for segment in ("256K", "512K", "1M"))
TWO_LEVEL = tuple(
    f"two_level@{segment}@{overlap}" for segment in ("512K", "1M") for overlap in (2, 4)
)
REPEATS = 7
# What the transport itself can: each rank's messages to the next one, as many bytes as a ring sends,
# by bare MPI, without reducing and without one waiting for another.
BARE = "bare"
_BARE_NBYTES, _BARE_IN_FLIGHT = MIB, 4


@dataclass(frozen=True)
class Case:
    """One table row.

    Attributes:
        hosts, ranks_per_host, nbytes: what is reduced where.
        mpi: by which MPI.
        delay: one-way delay of the links, "" for that of the shaped bridge.
        candidates: what is timed, `algorithm@segment[@overlap]`; the best of ours counts.
        share: of the bound 2(h-1)/h·n/B that it must reach; None where nothing is asked.
    """

    hosts: int
    ranks_per_host: int
    nbytes: int
    mpi: str
    delay: str
    candidates: tuple[str, ...]
    share: float | None

    @property
    def bound_s(self) -> float:
        """What each host's link must carry, in seconds (Patarasuk & Yuan 2009)."""
        return 2 * (self.hosts - 1) / self.hosts * self.nbytes / LINK

    @property
    def name(self) -> str:
        """The row's first cell."""
        delay = f", {self.delay} each way" if self.delay else ""
        size = format_nbytes(self.nbytes) if self.nbytes % MIB == 0 else "10 MB"
        return f"{self.hosts} hosts x {self.ranks_per_host}, {size}{delay}, {self.mpi}"


CASES = [
    *(Case(h, 1, 16 * MIB, mpi, "", (NATIVE, "ring", *FLAT), 0.93) for h in (2, 4, 8) for mpi in MPIS),
    *(Case(4, 2, 16 * MIB, mpi, "", (NATIVE, "ring", *FLAT, *TWO_LEVEL), 0.9) for mpi in MPIS),
    Case(4, 1, 10_000_000, "mpich", "1ms", (NATIVE, "ring", *FLAT), 0.9),
    Case(4, 1, 10_000_000, "mpich", "10ms", (NATIVE, "ring", *FLAT), 0.7),
]  # fmt: skip


def rank(backend: str, nbytes: int, candidates: Sequence[str]) -> None:
    """One rank of a case: check, time by turns, and print rank 0's findings as JSON."""
    torch.set_num_threads(1)
    if backend != "mpi":
        os.environ["RANK"], os.environ["WORLD_SIZE"] = (
            os.environ["PMI_RANK"],
            os.environ["PMI_SIZE"],
        )
    dist.init_process_group(backend)
    party = party_of(None)
    tensor = torch.empty(nbytes // 4)
    choices = [_choice(words) for words in candidates]
    for choice in choices:
        tensor.copy_(torch.arange(tensor.numel(), dtype=torch.int32).remainder_(251))
        expected = tensor * party.world_size
        run.all_reduce(party, tensor, dist.ReduceOp.SUM, choice)
        assert torch.equal(tensor, expected), f"{choice} sums wrongly"
    tensor.zero_()
    calls = [
        *(partial(run.all_reduce, party, tensor, dist.ReduceOp.SUM, each) for each in choices),
        *([partial(_bare, nbytes, party.world_size, party.rank)] if backend == "mpi" else []),
    ]
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for call, samples in zip(calls, taken, strict=True):
            dist.barrier()
            start = perf_counter()
            call()
            samples.append(perf_counter() - start)
    slowest = torch.tensor(taken, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if party.rank == 0:
        spreads = [asdict(spread(samples)) for samples in slowest.tolist()]
        what = library.describe() if backend == "mpi" else backend
        print(json.dumps({"library": what, "spreads": spreads}))
    dist.destroy_process_group()


def _bare(nbytes: int, ranks: int, rank: int) -> None:
    mpi = library.load()
    left_nbytes = 2 * (ranks - 1) * nbytes // ranks
    out, into = bytearray(_BARE_NBYTES), [bytearray(_BARE_NBYTES) for _ in range(_BARE_IN_FLIGHT)]
    under_way: deque[list[Any]] = deque()
    for number in range(-(-left_nbytes // _BARE_NBYTES)):
        size = min(_BARE_NBYTES, left_nbytes - number * _BARE_NBYTES)
        if len(under_way) == _BARE_IN_FLIGHT:
            mpi.Request.Waitall(under_way.popleft())
        place = into[number % _BARE_IN_FLIGHT]
        received = mpi.COMM_WORLD.Irecv([place, size, mpi.BYTE], (rank - 1) % ranks)
        sent = mpi.COMM_WORLD.Isend([out, size, mpi.BYTE], (rank + 1) % ranks)
        under_way.append([received, sent])
    for requests in under_way:
        mpi.Request.Waitall(requests)


def _choice(words: str) -> Choice:
    name, *numbers = words.split("@")
    if not numbers:
        return Choice(name)
    overlap = int(numbers[1]) if len(numbers) > 1 else 0
    return Choice(name, parse_nbytes(numbers[0]), overlap)


def measure(case: Case, backend: str = "mpi") -> dict[str, Spread]:
    """Bring the hosts up, run the job, and take everything down again."""
    with VirtualCluster(hosts=case.hosts) as cluster:
        if case.delay:
            cluster.wan("1gbit", case.delay)
        else:
            cluster.shape("1gbit")
        candidates = case.candidates if backend == "mpi" else (NATIVE,)
        env = {"OMP_NUM_THREADS": "1"}
        if backend == "gloo":
            env |= {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
        done = jobs.mpiexec(
            cluster, case.mpi, Path(__file__), case.hosts * case.ranks_per_host,
            case.ranks_per_host, args=["rank", backend, str(case.nbytes), ",".join(candidates)],
            env=env, timeout=240,
        ).check()  # fmt: skip
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    spreads = [Spread(**values) for values in found["spreads"]]
    names = candidates if backend != "mpi" else (*candidates, BARE)
    return dict(zip(names, spreads, strict=True))


def row(case: Case, found: dict[str, Spread], gloo: Spread) -> record.Row:
    """A case's figures beside its target."""
    ours = {name: taken for name, taken in found.items() if name not in (NATIVE, BARE)}
    best = min(ours, key=lambda name: ours[name].median_s)
    share = case.bound_s / ours[best].median_s
    is_met = None if case.share is None else share >= case.share
    target = "" if case.share is None else f"at least {case.share} of the bound"
    if case.ranks_per_host > 1:
        target += ", not slower than a flat ring"
        levels = min(taken.median_s for name, taken in ours.items() if name.startswith("two_level"))
        flat = min(
            taken.median_s for name, taken in ours.items() if "ring" in name.partition("@")[0]
        )
        share = case.bound_s / levels
        is_met = share >= (case.share or 0) and levels <= flat
    return record.Row(
        case.name,
        [
            format_seconds(case.bound_s), record.show(ours[best]), best, f"{share:.3f}",
            f"{case.bound_s / found[NATIVE].median_s:.2f}", f"{case.bound_s / gloo.median_s:.2f}",
            "" if case.ranks_per_host > 1 else f"{case.bound_s / found[BARE].median_s:.3f}",
        ],
        target, is_met,
    )  # fmt: skip


def main() -> None:
    """Measure all cases, or those whose name contains a word, and publish them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only the cases whose names contain one of these")
    words = parser.parse_args().words
    busy = busy_share(1.0)
    rows: list[record.Row] = []
    figures: dict[str, Any] = {}
    gloo: dict[tuple[int, int, int, str], Spread] = {}
    for case in CASES:
        if words and not any(word in case.name for word in words):
            continue
        shape = (case.hosts, case.ranks_per_host, case.nbytes, case.delay)
        if shape not in gloo:
            gloo[shape] = measure(Case(**{**vars(case), "mpi": "mpich"}), "gloo")[NATIVE]
        found = measure(case)
        figures[case.name] = {name: asdict(taken) for name, taken in found.items()}
        figures[case.name]["gloo"] = asdict(gloo[shape])
        rows.append(row(case, found, gloo[shape]))
        print(f"{rows[-1].what}: {' | '.join(rows[-1].cells)}", file=sys.stderr, flush=True)
    torch.set_num_threads(1)  # as in the ranks
    here = machine.describe("three MPIs")
    report = record.Report(
        title="all_reduce of float32 over virtual hosts with 1 Gbit/s links: share of the bound "
        "2(h-1)/h·n/B; median (quartiles)",
        headings=["case", "bound", "best of ours", "which", "share", "the MPI's own", "gloo",
                  "bare messages"],
        rows=rows, machine=asdict(here), caption=here.show(), figures=figures,
    )  # fmt: skip
    record.publish(report, busy, is_whole=not words)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2], int(sys.argv[3]), sys.argv[4].split(","))
    else:
        main()
