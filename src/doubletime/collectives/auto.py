"""`auto`: the algorithm that the cost model finds best for a size on these ranks, the same on every rank."""

from __future__ import annotations

from functools import lru_cache

from doubletime.collectives.catalogue import ALGORITHMS, find
from doubletime.collectives.choice import NATIVE, Choice, problem
from doubletime.collectives.cost import evaluate
from doubletime.collectives.model import Link, Parameters
from doubletime.collectives.party import Party
from doubletime.collectives.schedule import Collective
from doubletime.collectives.topology import Topology

AUTO = "auto"
# Below this size the backend's own way wins: it is one call.
NATIVE_BELOW_NBYTES = 64 << 10
# What is assumed of a cluster that has not been measured: shared memory inside, 1 Gbit/s between.
ASSUMED = Parameters(Link(20e-6, 0.4e-9), Link(60e-6, 8e-9), 0.2e-9)


def choose(party: Party, collective: Collective, nbytes: int) -> Choice:
    """What to do for a message of this size; every rank of the group gets the same."""
    topology = party.topology
    if nbytes < NATIVE_BELOW_NBYTES or topology.ranks == 1 or topology.host_count == 1:
        return Choice(NATIVE)
    return _best(collective, topology, 1 << (nbytes - 1).bit_length())


@lru_cache(maxsize=1024)
def _best(collective: Collective, topology: Topology, nbytes: int) -> Choice:
    able = [name for name, each in ALGORITHMS.items() if collective in each.collectives]
    return min(
        (Choice(name) for name in able), key=lambda c: _time_s(c, collective, topology, nbytes)
    )


def _time_s(choice: Choice, collective: Collective, topology: Topology, nbytes: int) -> float:
    asked = problem(choice, collective, topology, 0, nbytes)
    return evaluate(find(choice.algorithm).schedule(asked), nbytes, ASSUMED).time_s
