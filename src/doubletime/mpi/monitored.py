"""The barrier that names who does not come: rank 0 collects everyone's word and answers each."""

from __future__ import annotations

import time
from typing import Any

from doubletime.errors import CollectiveError
from doubletime.mpi.group import Group

_COME_TAG, _GO_TAG = 11, 12
_EVERY_S = 0.0005


def barrier(group: Group, timeout_s: float, wait_all_ranks: bool) -> None:
    """Wait until all ranks have come.

    Args:
        group: of the ranks.
        timeout_s: how long rank 0 waits for the others, and they for it, in seconds.
        wait_all_ranks: name all ranks that are missing, not just the first found.

    Raises:
        CollectiveError: on rank 0 naming the ranks that did not come; on the others, that it failed.
    """
    group.barriers += 1
    if group.rank == 0:
        _collect(group, timeout_s, wait_all_ranks)
    else:
        _report(group, timeout_s)


def _collect(group: Group, timeout_s: float, wait_all_ranks: bool) -> None:
    comm, mpi, number = group.comm, group.job.mpi, group.barriers
    waiting = set(range(1, group.world_size))
    end_s = time.monotonic() + timeout_s
    status = mpi.Status()
    while waiting and time.monotonic() < end_s:
        if not comm.Iprobe(mpi.ANY_SOURCE, _COME_TAG, status):
            time.sleep(_EVERY_S)
            continue
        source = status.Get_source()
        # a rank that came too late for an earlier barrier left its word behind
        if comm.recv(source=source, tag=_COME_TAG) == number:
            waiting.discard(source)
    missing = sorted(waiting)
    answers = [comm.isend((number, missing), rank, _GO_TAG) for rank in range(1, group.world_size)]
    if not missing:
        _finish(answers)
        return
    group.unanswered.extend(answers)
    named = missing if wait_all_ranks else missing[:1]
    ranks = ", ".join(str(group.ranks[rank]) for rank in named)
    raise CollectiveError(
        f"{'Ranks' if len(named) > 1 else 'Rank'} {ranks} failed to pass monitoredBarrier in "
        f"{timeout_s * 1000:.0f} ms"
    )


def _report(group: Group, timeout_s: float) -> None:
    comm, number = group.comm, group.barriers
    group.unanswered.append(comm.isend(number, 0, _COME_TAG))
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if not comm.Iprobe(0, _GO_TAG):
            time.sleep(_EVERY_S)
            continue
        answered, missing = comm.recv(source=0, tag=_GO_TAG)
        if answered != number:
            continue
        if missing:
            ranks = ", ".join(str(group.ranks[rank]) for rank in missing)
            raise CollectiveError(
                f"Rank {group.ranks[group.rank]} successfully reached monitoredBarrier, but received "
                f"errors while waiting for send/recv from rank 0: ranks {ranks} did not come"
            )
        return
    raise CollectiveError(
        f"Rank {group.ranks[group.rank]} successfully reached monitoredBarrier, but received errors "
        f"while waiting for send/recv from rank 0: it did not answer in {timeout_s * 1000:.0f} ms. "
        "Please check rank 0 logs for faulty rank."
    )


def _finish(requests: list[Any]) -> None:
    for request in requests:
        request.wait()
