"""Who can carry out a collective in one and the same job: the mpi backend, gloo, bare MPI, an algorithm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from doubletime import environment
from doubletime.cluster import network
from doubletime.collectives import functions
from doubletime.mpi import ending, library
from doubletime.planning.question import GLOO, MPI, RAW, RIVALS


@dataclass(frozen=True)
class Peer:
    """One way to carry out a collective.

    Attributes:
        name: `mpi`, `gloo`, `raw`, or a reduction algorithm.
        all_reduce: sums a contiguous float32 CPU tensor over all ranks, in place.
        barrier: waits for all ranks.
    """

    name: str
    all_reduce: Callable[[torch.Tensor], None]
    barrier: Callable[[], None]


@dataclass(frozen=True)
class Job:
    """The ranks that measure.

    Attributes:
        rank, world_size: this process's place among them.
        comm: the communicator that the measuring itself uses, apart from every peer.
        groups: the torch process group of each peer that has one, by peer's name; None where that
            is the default group.
    """

    rank: int
    world_size: int
    comm: Any
    groups: dict[str, dist.ProcessGroup | None] = field(default_factory=dict)

    def peer(self, name: str) -> Peer:
        """The peer of that name; an algorithm is carried out over the mpi group."""
        if name == RAW:
            return self._raw()
        return self._through_torch(name) if name in self.groups else self._algorithm(name)

    def _algorithm(self, name: str) -> Peer:
        group = self.groups[MPI]

        def all_reduce(tensor: torch.Tensor) -> None:
            functions.all_reduce(tensor, group=group, algorithm=name)

        def barrier() -> None:
            dist.barrier(group=group)

        return Peer(name, all_reduce, barrier)

    def _through_torch(self, name: str) -> Peer:
        group = self.groups[name]

        def all_reduce(tensor: torch.Tensor) -> None:
            dist.all_reduce(tensor, group=group)

        def barrier() -> None:
            dist.barrier(group=group)

        return Peer(name, all_reduce, barrier)

    def _raw(self) -> Peer:
        mpi = library.load()
        comm, in_place = mpi.COMM_WORLD, mpi.IN_PLACE

        def all_reduce(tensor: torch.Tensor) -> None:
            comm.Allreduce(in_place, tensor.numpy())

        return Peer(RAW, all_reduce, comm.Barrier)


@contextmanager
def join(rivals: Sequence[str] = RIVALS) -> Iterator[Job]:
    """Join the job that the launcher started, with a process group for mpi and for each rival.

    Raises:
        LauncherMismatchError, MPIError: as the mpi backend raises them.
    """
    hook_before = sys.excepthook
    library.initialize()
    world = library.load().COMM_WORLD
    comm = world.Dup()
    groups: dict[str, dist.ProcessGroup | None] = {}
    if GLOO in rivals:
        store = _store(comm)
        dist.init_process_group(GLOO, store=store, rank=comm.rank, world_size=comm.size)
        groups[GLOO] = None
        groups[MPI] = dist.new_group(backend=MPI)
    else:
        dist.init_process_group(MPI)
        groups[MPI] = None
    # init_process_group does so where mpi is the default group; here gloo may be.
    ending.install(hook_before)
    yield Job(comm.rank, comm.size, comm, groups)
    # Only where all went well: after an error here the others may be anywhere, and leaving in
    # order would wait for them.
    comm.Barrier()  # rank 0 holds gloo's store: nobody may need it once it goes
    dist.destroy_process_group()
    comm.Free()


def _store(comm: Any) -> TCPStore:
    """The store through which gloo's ranks find each other, held by rank 0."""
    hosts = environment.hosts_of(comm.allgather(environment.machine()))
    store, at = None, None
    if comm.rank == 0:
        store = TCPStore("0.0.0.0", 0, comm.size, is_master=True, wait_for_workers=False)
        # By address: its name may lead elsewhere on other hosts, or nowhere.
        interface = network.interface_to(environment.job_hosts() or hosts)
        at = interface.address if interface else hosts[0], store.port
    address, port = comm.bcast(at)
    if store is not None:
        return store
    address = "127.0.0.1" if len(set(hosts)) == 1 else address
    return TCPStore(address, port, comm.size, is_master=False)
