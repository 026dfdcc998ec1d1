"""Time several pieces of work by turns in one job, so that noise hits all alike.

Short work is timed as the OSU benchmarks and nccl-tests do it: a sample is a row of calls without
pause, and counts as the mean of them. One call alone would be timed with the caches full of whatever
made the ranks meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from doubletime.planning.timing import Samples


@dataclass(frozen=True)
class Work:
    """What is timed.

    Attributes:
        carry_out: the work itself.
        meet: makes the ranks begin it together. It belongs to whoever does the work: after a
            barrier that polls, say, the threads of one that sleeps find their core taken.
    """

    carry_out: Callable[[], None]
    meet: Callable[[], None]


_WARM_UP = 5  # calls before the first that counts
_TURN_S = 0.02  # short, so that a disturbance does not fall to one piece of work alone
_TURN_SAMPLES = 20
_SAMPLE_S = 1e-3  # shorter work is timed in a row that takes about as long
_MIN_TURNS = 5


def by_turns(
    comm: Any, works: Sequence[Work], seconds: float, advance: Callable[[float], None]
) -> list[Samples]:
    """Time each piece of work, every sample begun together by all ranks.

    Args:
        comm: the communicator of all ranks, used by none of the works.
        works: what is timed; every rank gives the same.
        seconds: to spend on each work, about; five turns are taken at least.
        advance: is told the share that is done, 0 to 1.

    Returns:
        For each work its samples: seconds per call, each that of the slowest rank.
    """
    turns = [_turn_of(comm, work) for work in works]
    taken: list[list[float]] = [[] for _ in works]
    budget_s, start, turn, goes_on = seconds * len(works), perf_counter(), 0, True
    while goes_on:
        for offset in range(len(works)):  # another one begins each turn
            which = (turn + offset) % len(works)
            taken[which].extend(_take(works[which], *turns[which]))
        turn += 1
        spent = (perf_counter() - start) / budget_s
        advance(min(1.0, spent, turn / _MIN_TURNS))
        goes_on = comm.bcast(turn < _MIN_TURNS or spent < 1)
    return [slowest(comm, samples) for samples in taken]


def slowest(comm: Any, samples: Sequence[float]) -> Samples:
    """Each sample's largest value over the ranks, which must hold equally many."""
    gathered = np.asarray(comm.allgather(list(samples)), dtype=np.float64)
    return np.asarray(gathered.max(axis=0))


def _turn_of(comm: Any, work: Work) -> tuple[int, int]:
    """Warm up, and find how many samples make a turn, and how many calls a sample."""
    fastest_s = float(slowest(comm, _take(work, _WARM_UP, 1)).min())
    calls = max(1, int(_SAMPLE_S / fastest_s))
    return max(1, min(_TURN_SAMPLES, int(_TURN_S / (calls * fastest_s)))), calls


def _take(work: Work, samples: int, calls: int) -> list[float]:
    carry_out, meet, taken = work.carry_out, work.meet, []
    carry_out()  # wakes what slept during the others' turns; not counted
    for _ in range(samples):
        meet()
        start = perf_counter()
        for _ in range(calls):
            carry_out()
        taken.append((perf_counter() - start) / calls)
    return taken
