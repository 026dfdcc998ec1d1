"""How long the doctor looks at 4 and at 16 healthy hosts: the whole command, on virtual hosts.

Needs root, and what the tests' virtual cluster needs (iproute2, openssh-server). All hosts share this
machine's cores; hosts of their own would answer sooner.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

import record

from doubletime.planning import machine
from doubletime.planning.load import busy_share
from doubletime.planning.timing import spread

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from vcluster.cluster import VirtualCluster

FEW, MANY = 4, 16
TIMES = 7
TARGET_S, TARGET_RATIO = 5.0, 2.0


def seconds(cluster: VirtualCluster, hosts: int, *, has_bandwidth: bool) -> float:
    """One run of the command on the first hosts, which must find nothing wrong; in seconds."""
    command = [sys.executable, "-m", "doubletime", "doctor", "--json", "--no-save"]
    options = ["--ssh-command", str(cluster.ssh), "--hosts", f"node[1-{hosts}]"]
    bandwidth = "--bandwidth" if has_bandwidth else "--no-bandwidth"
    begin_s = time.perf_counter()
    done = cluster.exec(cluster.hosts[0], [*command, *options, bandwidth], timeout=120)
    taken_s = time.perf_counter() - begin_s
    found = json.loads(done.stdout)["findings"]
    if found:
        raise RuntimeError(f"these hosts are not healthy: {found}")
    return taken_s


def main() -> None:
    """Measure by turns, judge, publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="how often each is measured")
    times = parser.parse_args().times
    busy = busy_share(1.0)
    taken: dict[int, list[float]] = {FEW: [], MANY: []}
    with_bandwidth: dict[int, float] = {}
    with VirtualCluster(MANY) as cluster:
        for hosts in (FEW, MANY):
            seconds(cluster, hosts, has_bandwidth=False)  # fills the file cache
        for _ in range(times):
            for hosts, samples in taken.items():
                samples.append(seconds(cluster, hosts, has_bandwidth=False))
        for hosts in taken:
            with_bandwidth[hosts] = seconds(cluster, hosts, has_bandwidth=True)
    few_s = median(taken[FEW])
    ratios = {hosts: median(samples) / few_s for hosts, samples in taken.items()}
    targets = {
        FEW: (f"at most {TARGET_S:.0f} s", few_s <= TARGET_S),
        MANY: (f"at most {TARGET_RATIO:.0f} times as long", ratios[MANY] <= TARGET_RATIO),
    }
    rows = [
        record.Row(
            f"{hosts} hosts",
            [
                record.show(spread(samples)),
                f"{ratios[hosts]:.2f}",
                f"{with_bandwidth[hosts]:.1f} s",
            ],
            *targets[hosts],
        )
        for hosts, samples in taken.items()
    ]
    here = machine.describe("virtual hosts")
    report = record.Report(
        title=f"`doubletime doctor` on healthy hosts, the whole command: median of {times} (quartiles)",
        headings=["hosts", "without bandwidth", f"times {FEW} hosts'", "with bandwidth"],
        rows=rows,
        machine=asdict(here),
        caption=here.show(),
        figures={"taken_s": taken, "with_bandwidth_s": with_bandwidth},
    )
    record.publish(report, busy, is_whole=times == TIMES)


if __name__ == "__main__":
    main()
