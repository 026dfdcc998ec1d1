"""Steps of a 10 M-parameter MLP over 4 virtual hosts whose links are slow: gradients plain and compressed.

Needs root, and what the tests' virtual cluster needs (iproute2, openssh-server, a C compiler).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import record
import torch
import torch.distributed as dist
from ddp_step import BATCH, mlp
from torch import nn

from doubletime.mpi import library
from doubletime.planning import machine
from doubletime.planning.load import busy_share
from doubletime.planning.timing import Spread, spread
from doubletime.training import session
from doubletime.training.parallelize import parallelize
from doubletime.training.sender import Sender
from doubletime.training.sending import Sending
from doubletime.training.waiting import WaitingClock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from vcluster import jobs
from vcluster.cluster import VirtualCluster

HOSTS = 4
LINKS = {"1gbit": 125e6, "100mbit": 12.5e6}  # bytes per second
SECONDS = 5.0  # on each kind of step, at least two of them
LOCAL_STEPS = 16
COMPUTING, PLAIN, GLOO = "computing alone", "plain", "DDP over gloo"
KINDS: dict[str, Sending] = {
    PLAIN: Sending(),
    "ring": Sending(algorithm="ring"),
    "fp16": Sending(compress="fp16"),
    "int8": Sending(compress="int8"),
    "powersgd:2": Sending(compress="powersgd:2"),
    "topk:0.01": Sending(compress="topk:0.01"),
    f"every {LOCAL_STEPS} steps": Sending(local_steps=LOCAL_STEPS),
}
GAIN = {"1gbit": 2.2, "100mbit": 10.0}  # samples/s of the best, in those of plain
WITHIN = 1.08  # of the bound max(computing, communication), plain at 1 Gbit/s
OVERLAP = 0.6


def rank(backend: str) -> None:
    """One rank: each kind of step, and rank 0's findings as JSON."""
    torch.set_num_threads(1)
    joined = session.init(backend)
    generator = torch.Generator().manual_seed(joined.rank)
    inputs = torch.randn(BATCH, 784, generator=generator)
    labels = torch.randint(10, (BATCH,), generator=generator)
    kinds = KINDS if backend == "mpi" else {GLOO: Sending()}
    found: dict[str, Any] = {}
    for name, sending in [(COMPUTING, Sending(local_steps=1 << 30)), *kinds.items()]:
        model = parallelize(mlp())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        sender = Sender(sending, model, optimizer, WaitingClock())
        chunk = LOCAL_STEPS if sending.local_steps == LOCAL_STEPS else 1
        taken = _timed(model, optimizer, sender, inputs, labels, chunk)
        found[name] = {"step": asdict(spread(taken)), "sent_share": sender.sent_share}
        sender.close()
        if joined.rank == 0:
            print(f"{name}: {spread(taken).median_s:.3f} s", file=sys.stderr, flush=True)
    if joined.rank == 0:
        what = library.describe() if backend == "mpi" else backend
        print(json.dumps({"library": what, "kinds": found}))
    session.leave()


def _timed(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sender: Sender,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    chunk: int,
) -> list[float]:
    """Seconds a step of the slowest rank, of each chunk of steps; the first is not counted."""

    def steps() -> float:
        began_s = perf_counter()
        for _ in range(chunk):
            with sender.step():
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
        return (perf_counter() - began_s) / chunk

    steps()
    dist.barrier()
    own = [steps()]
    first = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(first, dist.ReduceOp.MAX)
    count = max(2, min(60, math.ceil(SECONDS / (chunk * float(first)))))
    taken = torch.tensor(own + [steps() for _ in range(count - 1)], dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return [float(each) for each in taken]


def measure(cluster: VirtualCluster, backend: str) -> dict[str, Any]:
    """One job over the cluster's hosts."""
    env = {"OMP_NUM_THREADS": "1"}
    done = jobs.mpiexec(
        cluster, "mpich", Path(__file__), HOSTS, 1, args=["rank", backend], env=env, timeout=400
    ).check()
    return dict(json.loads(next(line for line in done.stdout.splitlines() if line[0] == "{")))


def rows(rate: str, kinds: dict[str, Any]) -> list[record.Row]:
    """A link's figures beside their targets."""
    times = {name: Spread(**kind["step"]) for name, kind in kinds.items()}
    nbytes = sum(parameter.nbytes for parameter in mlp().parameters())
    sending_s = 2 * (HOSTS - 1) / HOSTS * nbytes / LINKS[rate]
    computing_s, plain_s = times[COMPUTING].median_s, times[PLAIN].median_s
    ours = [name for name in times if name not in (COMPUTING, PLAIN, GLOO)]
    best = min(
        (name for name in ours if not name.startswith("every")), key=lambda n: times[n].median_s
    )
    found = []
    for name, taken in times.items():
        target, is_met = "", None
        if name == PLAIN and rate == "1gbit":
            bound_s = max(computing_s, sending_s)
            overlap = (computing_s + sending_s - plain_s) / min(computing_s, sending_s)
            target = (
                f"at most {WITHIN} of the bound {bound_s:.3f} s (is {plain_s / bound_s:.2f}); "
                f"overlap at least {OVERLAP} (is {overlap:.2f})"
            )
            is_met = plain_s <= WITHIN * bound_s and overlap >= OVERLAP
        elif name == best:
            target = f"at least {GAIN[rate]} of plain's samples/s"
            is_met = plain_s / taken.median_s >= GAIN[rate]
        share = kinds[name]["sent_share"]
        sent = "0" if name == COMPUTING else "1" if share is None else f"1/{1 / share:,.3g}"
        samples_per_s = HOSTS * BATCH / taken.median_s
        cells = [
            record.show(taken),
            f"{samples_per_s:,.0f}",
            f"{plain_s / taken.median_s:.2f}",
            sent,
        ]
        found.append(record.Row(f"{rate}, {name}", cells, target, is_met))
    return found


def main() -> None:
    """Measure both links, and publish them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("links", nargs="*", help=f"only these of {', '.join(LINKS)}")
    asked = parser.parse_args().links or list(LINKS)
    busy = busy_share(1.0)
    table: list[record.Row] = []
    figures: dict[str, Any] = {}
    what = ""
    with VirtualCluster(hosts=HOSTS) as cluster:
        for rate in asked:
            cluster.shape(rate)
            ours = measure(cluster, "mpi")
            what = str(ours["library"])
            kinds = dict(ours["kinds"])
            kinds[GLOO] = measure(cluster, "gloo")["kinds"][GLOO]
            figures[rate] = kinds
            table += rows(rate, kinds)
    for row in table:
        print(f"{row.what}: {' | '.join(row.cells)}", file=sys.stderr)
    torch.set_num_threads(1)  # as in the ranks
    here = machine.describe(what)
    parameters = sum(parameter.numel() for parameter in mlp().parameters())
    report = record.Report(
        title=f"a step of an MLP of {parameters / 1e6:.1f} M parameters, batch {BATCH} per rank, on "
        f"{HOSTS} virtual hosts of one machine, 1 rank each",
        headings=["link, gradients", "step: median (quartiles)", "samples/s", "of plain's", "bytes sent"],
        rows=table, machine=asdict(here), caption=here.show(), figures=figures,
    )  # fmt: skip
    record.publish(report, busy, is_whole=set(asked) == set(LINKS))


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2])
    else:
        main()
