"""The MPI job that this process is a rank of: joined once, shared by its process groups, left in order."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from doubletime import environment, failure
from doubletime.errors import CollectiveError
from doubletime.mpi import library
from doubletime.mpi.callbacks import await_users
from doubletime.mpi.calls import caller
from doubletime.mpi.waiting import drive, sharpen_timers
from doubletime.mpi.watchdog import Watchdog

_PRESENT_TAG = 4711
_HEAR_FOR_S = 2.0
_USERS_END_WITHIN_S = 0.5
_INLINE_SPIN_S = 5e-3
_THREAD_SPIN_S = 100e-6
_CROWDED_SPIN_S = 20e-6


class Job:
    """All ranks of the job, and what this process shares among its groups.

    Attributes:
        world: a duplicate of MPI_COMM_WORLD that only this package uses.
        rank, world_size: of this process in it.
        host: the name of this host.
        hosts: the name of each rank's host.
        is_crowded: whether the ranks of this host outnumber the cores they may run on.
        at_leaving: what ends each group's threads, by the group's name.
        watchdog: asks and answers where ranks are.
    """

    def __init__(self, timeout_s: float) -> None:
        mpi = library.load()
        everyone = library.initialize(timeout_s)
        sharpen_timers()
        self.mpi = mpi
        self.rank: int = everyone.Get_rank()
        self.world_size: int = everyone.Get_size()
        failure.enter()
        self.world = _duplicate(mpi, everyone, timeout_s)
        self._farewell = self.world.Dup()
        mine = environment.machine(), os.sched_getaffinity(0)
        machines, affinities = zip(*self.world.allgather(mine), strict=True)
        self.hosts = environment.hosts_of(machines)
        self.host = self.hosts[self.rank]
        self.watchdog = Watchdog(mpi, self.world.Dup(), self.host)
        everywhere = zip(self.hosts, affinities, strict=True)
        here = [cores for host, cores in everywhere if host == self.host]
        self.ranks_on_host = len(here)
        cores_of_host = min(len(set().union(*here)), environment.allowed_cores())
        self.at_leaving: dict[str, Callable[[], None]] = {}
        self.is_crowded = self.ranks_on_host > cores_of_host

    @property
    def inline_spin_s(self) -> float:
        """How long a thread that has nothing else to do may spin while it waits, in seconds."""
        return _CROWDED_SPIN_S if self.is_crowded else _INLINE_SPIN_S

    @property
    def thread_spin_s(self) -> float:
        """The same for a thread that shares its core with the computation, in seconds."""
        return _CROWDED_SPIN_S if self.is_crowded else _THREAD_SPIN_S

    def communicator(self, ranks: Sequence[int], name: str, timeout_s: float) -> Any:
        """A new communicator of these world ranks, in this order; collective over them.

        Raises:
            CollectiveError: if one of them does not come within `timeout_s`.
        """
        tag = zlib.crc32(name.encode()) % 30000 + 1
        self._meet(ranks, tag, name, timeout_s)
        group = self.world.Get_group()
        members = group.Incl(list(ranks))
        try:
            return self.world.Create_group(members, tag)
        finally:
            members.Free()
            group.Free()

    def _meet(self, ranks: Sequence[int], tag: int, name: str, timeout_s: float) -> None:
        """Wait, but not for ever, until all members create the group: MPI's own call knows no timeout."""
        token = bytearray(1)
        others = [rank for rank in ranks if rank != self.rank]
        requests = [self.world.Irecv([bytearray(1), self.mpi.BYTE], rank, tag) for rank in others]
        sent = [self.world.Isend([token, self.mpi.BYTE], rank, tag) for rank in others]
        where = caller()

        def give_up(waited_s: float) -> None:
            if waited_s > timeout_s:
                missing = [
                    rank
                    for rank, request in zip(others, requests, strict=True)
                    if not request.Test()
                ]
                raise CollectiveError(
                    f"the group of ranks {list(ranks)} ({name}), created at {where}, was not created by "
                    f"{_named(missing)} within {timeout_s:g} s",
                    "let all ranks make the same new_group calls in the same order",
                )

        drive((request.Test for request in [*requests, *sent]), self.inline_spin_s, give_up)

    def leave(self) -> bool:
        """Wait until every rank is at its end, then end MPI.

        Returns:
            False if another rank waits in a collective that this one will never enter: MPI is then left
            running, for the launcher to end the job when this process is gone.
        """
        self.watchdog.has_left = True
        all_here = self._farewell.Ibarrier()
        began_s = time.monotonic()
        while not all_here.Test():
            if self.watchdog.deserted is not None:
                return False
            time.sleep(0.0002 if time.monotonic() - began_s < 0.05 else 0.01)
        # A thread left running would abort the interpreter as it ends.
        for end_group in list(self.at_leaving.values()):
            end_group()
        await_users(_USERS_END_WITHIN_S)
        self.watchdog.stop()
        library.finalize()
        failure.leave()
        return True


_joined: Job | None = None
_joining = threading.Lock()


def join(timeout_s: float) -> Job:
    """The job; joins it at the first call, which all ranks must make.

    Raises:
        MPIError, LauncherMismatchError: see `library.initialize`.
        CollectiveError: if a rank does not join within `timeout_s`.
    """
    global _joined
    library.check_process()
    with _joining:
        if _joined is None:
            _joined = Job(timeout_s)
        return _joined


def joined() -> Job | None:
    """The job if this process has joined it."""
    return _joined if library.is_running() else None


def _duplicate(mpi: Any, everyone: Any, timeout_s: float) -> Any:
    """A duplicate of the world; names the ranks that do not come to make it."""
    copy, request = everyone.Idup()

    def give_up(waited_s: float) -> None:
        if waited_s > timeout_s:
            missing = _absent(mpi, everyone)
            raise CollectiveError(
                f"init_process_group, called at {caller()}, was not called by {_named(missing)} "
                f"within {timeout_s:g} s",
                "let every rank call init_process_group before anything that takes long",
            )

    drive((test for test in [request.Test]), _INLINE_SPIN_S, give_up)
    return copy


def _absent(mpi: Any, everyone: Any) -> list[int]:
    """The ranks from which nothing is heard when all who are here say so."""
    token = bytearray(1)
    others = [rank for rank in range(everyone.Get_size()) if rank != everyone.Get_rank()]
    heard = {rank: everyone.Irecv([bytearray(1), mpi.BYTE], rank, _PRESENT_TAG) for rank in others}
    for rank in others:
        everyone.Isend([token, mpi.BYTE], rank, _PRESENT_TAG)
    end_s = time.monotonic() + _HEAR_FOR_S
    missing = others
    while missing and time.monotonic() < end_s:
        missing = [rank for rank in missing if not heard[rank].Test()]
        time.sleep(0.01)
    return missing


def _named(ranks: Sequence[int]) -> str:
    if not ranks:
        return "a rank that came too late"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
