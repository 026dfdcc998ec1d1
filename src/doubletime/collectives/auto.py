"""`auto`: what is best for a size on these ranks, measured or by the cost model; the same on every rank.

The first use on a group is a collective: rank 0 reads the cluster's profile and decision table and tells
them to the others. From then on each rank decides for itself, by the same data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch.distributed as dist

from doubletime.collectives import knowledge
from doubletime.collectives.catalogue import ALGORITHMS, find
from doubletime.collectives.choice import NATIVE, Choice, problem
from doubletime.collectives.cluster import Cluster
from doubletime.collectives.cost import evaluate
from doubletime.collectives.knowledge import ASSUMED as ASSUMED
from doubletime.collectives.knowledge import Knowledge
from doubletime.collectives.model import Parameters, formula_s
from doubletime.collectives.party import AHEAD_MPI, Party
from doubletime.collectives.schedule import Collective
from doubletime.collectives.topology import Topology
from doubletime.mpi import library

# Unmeasured, below this size the backend's own way is taken: it is one call.
NATIVE_BELOW_NBYTES = 64 << 10
SEGMENTS_NBYTES = (256 << 10, 512 << 10, 1 << 20)
# Schedules of more ranks take too long to price message by message; the closed formulas will do.
_MOST_RANKS_PRICED = 8

_complained: set[str] = set()


def choose(party: Party, collective: Collective, nbytes: int) -> Choice:
    """What to do for a message of this size; every rank of the group gets the same.

    The first call on a group is a collective.
    """
    power = (nbytes - 1).bit_length()
    choice = party.decided.get((collective, power))
    if choice is None:
        # By the power of two, not by which size comes first.
        choice = party.decided[collective, power] = _decide(party, collective, 1 << power)
    return choice


def here(party: Party) -> Cluster:
    """The cluster that a group runs on, as files name it."""
    backend = "mpi" if party.is_mpi else str(dist.get_backend(party.group))
    return Cluster.of(party.hosts, library.describe() if party.is_mpi else "", backend)


def _decide(party: Party, collective: Collective, nbytes: int) -> Choice:
    if party.world_size == 1:
        return Choice(NATIVE)
    if party.knowledge is None:
        party.knowledge = _learn(party)
    measured = party.knowledge.table.find(here(party), collective)
    choice = None if measured is None else measured.choice(nbytes)
    if choice is None:
        choice = by_model(collective, party.topology, nbytes, party.knowledge.parameters)
    return choice


def _learn(party: Party) -> Knowledge:
    """What rank 0's files say, on every rank."""
    told: list[Any] = [knowledge.read() if party.rank == 0 else None]
    dist.broadcast_object_list(told, group=party.group, group_src=0)
    known = knowledge.judge(told[0], here(party))
    for complaint in known.complaints:
        if party.rank == 0 and complaint not in _complained:
            _complained.add(complaint)
            warnings.warn(complaint, stacklevel=2)
    return known


def by_model(
    collective: Collective, topology: Topology, nbytes: int, parameters: Parameters
) -> Choice:
    """What to do where nothing has been measured.

    The model knows nothing of the backend's own way. That is taken for small messages, and on one host,
    where it can use shared memory.
    """
    if nbytes < NATIVE_BELOW_NBYTES or topology.host_count == 1:
        return Choice(NATIVE)
    return _best(collective, topology, nbytes, parameters)


def candidates(collective: Collective, topology: Topology, nbytes: int) -> Iterator[Choice]:
    """All algorithms that could be best, pipelined ones in several segment sizes."""
    has_levels = 1 < topology.host_count < topology.ranks
    for name, algorithm in ALGORITHMS.items():
        if collective not in algorithm.collectives or (name == "two_level" and not has_levels):
            continue
        if not algorithm.is_pipelined:
            yield Choice(name)
            continue
        part = -(-nbytes // topology.ranks)
        for segment_nbytes in SEGMENTS_NBYTES:
            yield Choice(name, segment_nbytes)
            if segment_nbytes >= part:
                break  # larger ones are the same: a rank sends no more than that at a time


@lru_cache(maxsize=1024)
def _best(
    collective: Collective, topology: Topology, nbytes: int, parameters: Parameters
) -> Choice:
    def time_s(choice: Choice) -> float:
        asked = problem(choice, collective, topology, 0, nbytes)
        algorithm = find(choice.algorithm)
        if topology.ranks > _MOST_RANKS_PRICED:
            return formula_s(algorithm.formula(asked, nbytes), topology, parameters)
        schedule = algorithm.schedule(asked)
        return evaluate(schedule, nbytes, parameters, in_flight=AHEAD_MPI).time_s

    return min(candidates(collective, topology, nbytes), key=time_s)
