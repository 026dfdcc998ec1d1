"""A process group as algorithms see it: who is on which host, and how messages travel."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from doubletime import environment
from doubletime.collectives.choice import Choice
from doubletime.collectives.execution import Wire
from doubletime.collectives.knowledge import Knowledge
from doubletime.collectives.schedule import Collective
from doubletime.collectives.topology import Topology
from doubletime.collectives.wires import BatchWire, C10dWire
from doubletime.mpi.process_group import ProcessGroupMPI

# How many rounds may be open at once: on MPI, whose conditions do not wait, and elsewhere.
AHEAD_MPI, _AHEAD_C10D, _AHEAD_BATCH = 6, 4, 1


class Party:
    """The ranks of one process group.

    Args:
        group: any process group of this process.

    Attributes:
        is_mpi: whether the group is one of the mpi backend.
        knowledge: what `auto` knows of the cluster once it has been used.
        decided: what it has chosen, by collective and the size's power of two.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.is_mpi = isinstance(group, ProcessGroupMPI)
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self.knowledge: Knowledge | None = None
        self.decided: dict[tuple[Collective, int], Choice] = {}

    @cached_property
    def hosts(self) -> list[str]:
        """The name of each rank's host; the first use is a collective of the group unless it is one of mpi."""
        if self.is_mpi:
            lane = self.group._first_lane
            return [lane.job.hosts[rank] for rank in lane.ranks]
        machines: list[Any] = [None] * self.world_size
        dist.all_gather_object(machines, environment.machine(), group=self.group)
        return environment.hosts_of(machines)

    @cached_property
    def topology(self) -> Topology:
        """Where the ranks are; the first use is a collective, as that of `hosts`."""
        return Topology.of(self.hosts)

    def wire(self, tensor: torch.Tensor) -> tuple[Wire, int]:
        """How a group of another backend carries this tensor's messages, and how many rounds at once."""
        if tensor.is_cuda:
            return BatchWire(self.group), _AHEAD_BATCH
        return C10dWire(self.group), _AHEAD_C10D


_parties: WeakKeyDictionary[Any, Party] = WeakKeyDictionary()


def party_of(group: Any | None) -> Party:
    """The party of a group; of all ranks by default."""
    group = dist.group.WORLD if group is None else group
    party = _parties.get(group)
    if party is None:
        party = _parties[group] = Party(group)
    return party
