"""Measure a cluster's links: every pair of hosts, the ranks of each host, and the reduction of a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from doubletime.cluster import tournament
from doubletime.collectives import run
from doubletime.collectives.choice import Choice
from doubletime.collectives.cluster import Cluster
from doubletime.collectives.party import party_of
from doubletime.collectives.profile import Estimate, Level, Pair, Profile
from doubletime.collectives.topology import Topology
from doubletime.mpi import job as mpi_job
from doubletime.mpi import library
from doubletime.planning import fit
from doubletime.planning.exchange import End, Exchanges, Times, rest
from doubletime.planning.peers import Job
from doubletime.planning.question import MPI
from doubletime.planning.slow import judged
from doubletime.planning.turns import Work, by_turns

_REDUCED_SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)


@dataclass(frozen=True)
class Progress:
    """How far measuring has come.

    Attributes:
        fraction: of the whole, 0 to 1.
        what: is measured next.
    """

    fraction: float
    what: str


Observer = Callable[[Progress], None]


def measure(job: Job, seconds: float, observe: Observer) -> Profile:
    """The profile of the cluster that this job runs on; every rank makes this call.

    Args:
        job: of the mpi backend.
        seconds: to spend on each size and way of each pair, about.
        observe: is told progress, on every rank.

    Returns:
        The same on every rank.
    """
    party = party_of(job.groups[MPI])
    cluster = Cluster.of(party.hosts, library.describe(), MPI)
    topology = party.topology
    schedule = tournament.rounds(topology.host_count)
    steps = len(schedule) + 4

    observe(Progress(0.0, "reducing"))
    gamma = _gamma(job, seconds)
    observe(Progress(1 / steps, "inside hosts"))
    inside = _inside(job, topology, seconds)
    pairs: dict[tuple[int, int], Exchanges] = {}
    for number, games in enumerate(schedule):
        where = f"between hosts, round {number + 1} of {len(schedule)}"
        observe(Progress((2 + number) / steps, where))
        pairs.update(_between(job, topology, games, seconds))
    observe(Progress((steps - 2) / steps, "rounds inside hosts"))
    fullest = max(topology.members, key=len)
    inside_rounds = _round_s(job, fullest, seconds)
    observe(Progress((steps - 1) / steps, "rounds between hosts"))
    between_rounds = _round_s(job, topology.leaders, seconds)
    observe(Progress(1.0, "done"))

    found = None
    if job.rank == 0:
        links = judged(
            [
                _pair((cluster.hosts[one], cluster.hosts[other]), exchanges)
                for (one, other), exchanges in sorted(pairs.items())
            ]
        )
        good = [
            exchanges
            for (_, exchanges), link in zip(sorted(pairs.items()), links, strict=True)
            if not link.is_slow
        ]
        found = Profile(
            cluster,
            _level(inside, inside_rounds),
            _level(good, between_rounds),
            gamma,
            tuple(links),
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            version("doubletime"),
        )
    return job.comm.bcast(found)  # type: ignore[no-any-return]


def _gamma(job: Job, seconds: float) -> Estimate:
    """Reduce with torch's kernels, on all ranks at once as in a collective."""
    samples: Times = {}
    for nbytes in _REDUCED_SIZES:
        one, other = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
        one.add_(other)
        job.comm.Barrier()
        samples[nbytes], end_s = [], perf_counter() + seconds
        while perf_counter() < end_s or len(samples[nbytes]) < 9:
            start = perf_counter()
            one.add_(other)
            samples[nbytes].append(perf_counter() - start)
    rest(job.comm)
    return fit.fit(_pooled(job.comm.allgather(samples))).beta_s_per_byte


def _inside(job: Job, topology: Topology, seconds: float) -> list[Exchanges]:
    """The ranks of each host two by two, all at once: they share its memory."""
    mine = topology.members[topology.hosts[job.rank]]
    local = mine.index(job.rank)
    found = None
    if local ^ 1 < len(mine):
        found = _end(job, mine[local ^ 1]).measure(seconds)
    rest(job.comm)
    measured: list[Exchanges | None] = job.comm.allgather(found)
    return [each for each in measured if each is not None]


def _between(
    job: Job, topology: Topology, games: Sequence[tuple[int, int]], seconds: float
) -> dict[tuple[int, int], Exchanges]:
    """Hosts two by two, by the lowest rank of each; no host is in two pairs."""
    found = None
    host = topology.hosts[job.rank]
    if topology.leaders[host] == job.rank:
        for one, other in games:
            if host in (one, other):
                peer = topology.leaders[other if host == one else one]
                found = (one, other), _end(job, peer).measure(seconds)
    rest(job.comm)
    return dict(each for each in job.comm.allgather(found) if each is not None)


def _end(job: Job, peer: int) -> End:
    joined = mpi_job.joined()
    spin_s = 0.0 if joined is None else joined.inline_spin_s
    return End(library.load(), job.comm, peer, spin_s)


def _round_s(job: Job, ranks: Sequence[int], seconds: float) -> Estimate | None:
    """What a round of a schedule takes as it is carried out: a ring of these ranks, almost empty."""
    if len(ranks) < 2:
        return None
    group = dist.new_group(list(ranks), backend=MPI)
    samples: list[float] = []
    comm = job.comm.Split(int(job.rank in ranks), job.rank)
    if job.rank in ranks:
        ring = partial(
            run.all_reduce, party_of(group), torch.zeros(len(ranks)), dist.ReduceOp.SUM,
            Choice("ring"),
        )  # fmt: skip
        (taken,) = by_turns(comm, [Work(ring, comm.Barrier)], 4 * seconds, _ignored)
        samples = [each / (2 * (len(ranks) - 1)) for each in taken]
        dist.destroy_process_group(group)
    comm.Free()
    rest(job.comm)
    return fit.estimate(job.comm.bcast(samples, root=ranks[0]))


def _ignored(_share: float) -> None:
    """Progress inside a step is not shown."""


def _pair(hosts: tuple[str, str], exchanges: Exchanges) -> Pair:
    line = fit.fit(exchanges.both_ways)
    return Pair(hosts, line.alpha_s, line.beta_s_per_byte, line.residual)


def _level(measured: Sequence[Exchanges], rounds: Estimate | None) -> Level | None:
    """The links of one level, as one."""
    if not measured:
        return None
    both = fit.fit(_pooled([each.both_ways for each in measured]))
    one_way = fit.fit(_pooled([each.one_way for each in measured]))
    alpha = both.alpha_s if rounds is None else rounds
    overheads = sorted(each.overhead_s() for each in measured)
    return Level(
        alpha_s=alpha,
        beta_s_per_byte=both.beta_s_per_byte,
        overhead_s=min(alpha.value, overheads[len(overheads) // 2]),
        residual=both.residual,
        message_alpha_s=one_way.alpha_s,
        one_way_beta_s_per_byte=one_way.beta_s_per_byte,
    )


def _pooled(times: Sequence[Times]) -> Times:
    """All samples of each size that all have measured."""
    sizes: Any = set.intersection(*(set(each) for each in times))
    return {size: [value for each in times for value in each[size]] for size in sorted(sizes)}
