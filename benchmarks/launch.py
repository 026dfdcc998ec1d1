"""What `doubletime run` adds to a bare mpiexec: the time of a whole small job on four hosts, by turns.

Needs root, and what the tests' virtual cluster needs (iproute2, openssh-server). All hosts share this
machine's cores; hosts of their own would start sooner, both ways.
"""

from __future__ import annotations

import argparse
import compileall
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

import record

import doubletime
from doubletime.planning import machine
from doubletime.planning.load import busy_share
from doubletime.planning.timing import spread

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from ranks import start_command, venv
from vcluster import jobs
from vcluster.cluster import VirtualCluster

HOSTS = 4
TIMES = 9
TARGET_S = 0.5
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI", "intel": "Intel MPI"}
_PROGRAM = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"


def commands(cluster: VirtualCluster, mpi: str) -> dict[str, list[str]]:
    """The same job by the MPI's own mpiexec and by ours, as words to run on the first host."""
    program = jobs.script(cluster, _PROGRAM)
    python = str(venv(mpi) / "bin" / "python")
    bare = jobs.command(
        mpi, [python, str(program)],
        ssh=cluster.ssh, hosts=cluster.hosts, ranks=HOSTS, ranks_per_host=1,
    )  # fmt: skip
    hosts = ",".join(f"{host}:1" for host in cluster.hosts)
    ours = ["run", "--hosts", hosts, "--ssh-command", str(cluster.ssh), str(program)]
    return {"bare": bare, "ours": [python, "-m", "doubletime", *ours]}


def seconds(cluster: VirtualCluster, mpi: str, command: list[str]) -> float:
    """One run of the job, in seconds."""
    with start_command([*cluster.enter(cluster.hosts[0]), *command], mpi=mpi) as job:
        exit_code = job.process.wait(60)
        taken_s = time.monotonic() - job.started
        if exit_code:
            raise RuntimeError(f"{' '.join(command)}: exit code {exit_code}\n{job.output()[1]}")
    return taken_s


def main() -> None:
    """Measure each MPI by turns, judge, publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="how often each is measured")
    times = parser.parse_args().times
    busy = busy_share(1.0)
    # As in an installed package; a working tree may lack it, and PYTHONDONTWRITEBYTECODE keep it so.
    compileall.compile_dir(Path(doubletime.__file__).parent, quiet=1)
    rows: list[record.Row] = []
    figures: dict[str, dict[str, list[float]]] = {}
    with VirtualCluster(HOSTS) as cluster:
        for mpi, name in MPIS.items():
            ways = commands(cluster, mpi)
            taken: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(times + 1):  # the first fills the file cache
                for way, command in ways.items():
                    taken_s = seconds(cluster, mpi, command)
                    if turn:
                        taken[way].append(taken_s)
            added_s = median(taken["ours"]) - median(taken["bare"])
            cells = [record.show(spread(samples)) for samples in taken.values()]
            target = f"at most {TARGET_S} s more"
            rows.append(record.Row(name, [*cells, f"{added_s:.2f} s"], target, added_s <= TARGET_S))
            figures[name] = taken
    here = machine.describe("three MPIs")
    report = record.Report(
        title=f"a job of one barrier on {HOSTS} hosts, from its command to its end: median of {times} (quartiles)",
        headings=["MPI", "bare mpiexec", "doubletime run", "more"],
        rows=rows,
        machine=asdict(here),
        caption=here.show(),
        figures=figures,
    )
    record.publish(report, busy, is_whole=times == TIMES)


if __name__ == "__main__":
    main()
