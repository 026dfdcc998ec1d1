"""Time bare messages between two ranks: one way, both ways at once, many in a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from doubletime.mpi.waiting import Condition, drive
from doubletime.planning.fit import typical

SIZES = (8, 1 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20)
_WINDOW = 32  # messages in a row that show what each of them costs
_ONE_WAY_SIZES = (8, 1 << 10, 128 << 10, 512 << 10)
_SAMPLE_S = 1e-3  # shorter steps are timed in a row that takes about as long
_MIN_SAMPLES, _MOST_SAMPLES = 5, 100
# Links let some bytes through at once before their rate holds, and again after every pause, as shapers
# and buffers do: a row of messages of this size or larger carries so many that its mean tells the rate.
_RATED_NBYTES = 8 << 10
_ROW_NBYTES = 1 << 20
_LONG_STEP_S = 0.03  # where a step takes longer, larger sizes are left out
_RESTING_S = 1e-3
_TAG = 4713

Times = dict[int, list[float]]


@dataclass
class Exchanges:
    """What one rank of a pair has timed, in seconds by message size in bytes.

    Attributes:
        both_ways: each sends a message to the other at once, and both have arrived.
        one_way: half of there and back.
        window_s: that of `_WINDOW` smallest messages each way at once.
    """

    both_ways: Times = field(default_factory=dict)
    one_way: Times = field(default_factory=dict)
    window_s: list[float] = field(default_factory=list)

    def overhead_s(self) -> float:
        """What each further message of a row takes, in seconds."""
        first_s = typical(self.both_ways[min(self.both_ways)])
        return max(0.0, (typical(self.window_s) - first_s) / (_WINDOW - 1))


class End:
    """This rank's end of a pair; the other makes the same calls at the same time.

    Args:
        mpi: the MPI module.
        comm: a communicator that nothing else uses meanwhile.
        peer: the other rank in it.
        spin_s: how long waiting looks again at once; see `mpi.waiting.Pause`.
    """

    def __init__(self, mpi: Any, comm: Any, peer: int, spin_s: float) -> None:
        self._mpi = mpi
        self._comm = comm
        self._peer = peer
        self._spin_s = spin_s
        self._leads = comm.Get_rank() < peer
        self._out = np.zeros(max(SIZES), dtype=np.uint8)
        self._in = np.zeros(max(SIZES), dtype=np.uint8)

    def measure(self, seconds: float) -> Exchanges:
        """All that there is to time.

        Args:
            seconds: to spend on each size and way, about.
        """
        found = Exchanges()
        for nbytes in SIZES:
            taken = self._timed(partial(self._both_ways, nbytes), nbytes, seconds)
            found.both_ways[nbytes] = taken
            if nbytes in _ONE_WAY_SIZES:
                back = self._timed(partial(self._there_and_back, nbytes), nbytes, seconds)
                found.one_way[nbytes] = [each / 2 for each in back]
            if not self._agreed(typical(taken) < _LONG_STEP_S):
                break
        found.window_s = self._timed(self._window, SIZES[0], seconds)
        return found

    def _timed(self, step: Callable[[], None], nbytes: int, seconds: float) -> list[float]:
        """Seconds a step, of rows of steps; both ends do as many, the lower rank says how many."""
        fastest_s = float("inf")
        for _ in range(3):
            start = perf_counter()
            step()
            fastest_s = min(fastest_s, perf_counter() - start)
        calls = max(1, int(_SAMPLE_S / fastest_s))
        if nbytes >= _RATED_NBYTES:
            calls = max(calls, _ROW_NBYTES // nbytes)
        samples = int(seconds / (calls * fastest_s))
        samples = max(_MIN_SAMPLES, min(_MOST_SAMPLES, samples))
        calls, samples = self._agreed((calls, samples))
        for _ in range(calls):
            step()
        taken = []
        for _ in range(samples):
            start = perf_counter()
            for _ in range(calls):
                step()
            taken.append((perf_counter() - start) / calls)
        return taken

    def _agreed(self, value: Any) -> Any:
        """The lower rank's value, on both."""
        if self._leads:
            self._comm.send(value, self._peer, _TAG)
            return value
        return self._comm.recv(None, self._peer, _TAG)

    def _both_ways(self, nbytes: int) -> None:
        self._wait([self._receive(nbytes), self._send(nbytes)])

    def _there_and_back(self, nbytes: int) -> None:
        if self._leads:
            self._wait([self._send(nbytes)])
            self._wait([self._receive(nbytes)])
        else:
            self._wait([self._receive(nbytes)])
            self._wait([self._send(nbytes)])

    def _window(self) -> None:
        nbytes = SIZES[0]
        receives = [self._receive(nbytes) for _ in range(_WINDOW)]
        self._wait(receives + [self._send(nbytes) for _ in range(_WINDOW)])

    def _send(self, nbytes: int) -> Condition:
        request = self._comm.Isend([self._out[:nbytes], self._mpi.BYTE], self._peer, _TAG)
        return request.Test  # type: ignore[no-any-return]

    def _receive(self, nbytes: int) -> Condition:
        request = self._comm.Irecv([self._in[:nbytes], self._mpi.BYTE], self._peer, _TAG)
        return request.Test  # type: ignore[no-any-return]

    def _wait(self, conditions: Sequence[Condition]) -> None:
        drive((condition for condition in conditions), self._spin_s, _wait_on)


def rest(comm: Any) -> None:
    """Wait for all ranks as quietly as possible, since others still measure."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_RESTING_S)


def _wait_on(_waited_s: float) -> None:
    """A rank that is gone ends the job; nobody else stays away."""
