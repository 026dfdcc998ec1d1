"""Time one collective: checked first, all peers in one job by turns, the slowest rank counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import torch

from doubletime.errors import CollectiveError
from doubletime.planning.peers import Job, Peer
from doubletime.planning.timing import Advance, Samples, Timing, summarise
from doubletime.units import format_nbytes

_WARM_UP = 5  # calls before the first that counts
_BLOCK_S = 0.02  # a peer's turn; short, so that noise hits all peers alike
_BLOCK_CALLS = 100
_MIN_TURNS = 5
_PERIOD = 251  # of the test data: prime, so that a shifted chunk is seen, and exact in float32


Observer = Callable[[Advance | Timing], None]


def all_reduce(
    job: Job, names: Sequence[str], sizes: Sequence[int], seconds: float, observe: Observer
) -> list[Timing]:
    """Time float32 all_reduce by each peer at each size.

    Args:
        job: the ranks; every one of them makes this call alike.
        names: the peers.
        sizes: in bytes, multiples of 4.
        seconds: to spend on each size and peer, about.
        observe: is told progress and every timing, on every rank.

    Returns:
        One timing per size and peer, sizes in the given order; the same on every rank.

    Raises:
        CollectiveError: on every rank, if a peer sums wrongly on any.
    """
    peers = [job.peer(name) for name in names]
    timings: list[Timing] = []
    for index, nbytes in enumerate(sizes):
        tensor = torch.empty(nbytes // 4)
        for peer in peers:
            _check(job, peer, tensor)

        def advance(share: float, index: int = index, nbytes: int = nbytes) -> None:
            observe(Advance((index + share) / len(sizes), nbytes))

        for peer, samples in zip(peers, _sample(job, peers, tensor, seconds, advance), strict=True):
            timing = summarise(
                samples,
                collective="all_reduce",
                peer=peer.name,
                nbytes=nbytes,
                ranks=job.world_size,
            )
            timings.append(timing)
            observe(timing)
    return timings


def _check(job: Job, peer: Peer, tensor: torch.Tensor) -> None:
    pattern = torch.arange(tensor.numel(), dtype=torch.int32).remainder_(_PERIOD).float()
    tensor.copy_(pattern + job.rank)
    peer.all_reduce(tensor)
    ranks = job.world_size
    expected = pattern.mul_(ranks).add_(ranks * (ranks - 1) // 2)
    is_wrong = not torch.equal(tensor, expected)
    wrong = [rank for rank, bad in enumerate(job.comm.allgather(is_wrong)) if bad]
    if wrong:
        size = format_nbytes(tensor.nbytes)
        raise CollectiveError(
            f"all_reduce of {size} by {peer.name} gave wrong sums on rank {wrong[0]}"
            f" ({len(wrong)} of {ranks} ranks)",
            f"leave {peer.name} out, and report its version and this line",
        )


def _sample(
    job: Job,
    peers: Sequence[Peer],
    tensor: torch.Tensor,
    seconds: float,
    advance: Callable[[float], None],
) -> list[Samples]:
    """The times of every call in seconds, per peer, each the largest over the ranks."""
    tensor.zero_()  # sums of zeros stay finite however often they are added
    calls = [_calls(job, peer, tensor) for peer in peers]
    taken: list[list[float]] = [[] for _ in peers]
    budget_s, start, turn, goes_on = seconds * len(peers), perf_counter(), 0, True
    while goes_on:
        for offset in range(len(peers)):  # another peer begins each turn
            which = (turn + offset) % len(peers)
            taken[which].extend(_block(job, peers[which], tensor, calls[which]))
        turn += 1
        spent = (perf_counter() - start) / budget_s
        advance(min(1.0, spent, turn / _MIN_TURNS))
        goes_on = job.comm.bcast(turn < _MIN_TURNS or spent < 1)
    return [_slowest(job, samples) for samples in taken]


def _calls(job: Job, peer: Peer, tensor: torch.Tensor) -> int:
    """Warm up, and find how many calls make a turn."""
    fastest = float(np.min(_slowest(job, _block(job, peer, tensor, _WARM_UP))))
    return int(max(1, min(_BLOCK_CALLS, _BLOCK_S / fastest)))


def _block(job: Job, peer: Peer, tensor: torch.Tensor, calls: int) -> list[float]:
    barrier, carry_out, samples = job.comm.Barrier, peer.all_reduce, []
    carry_out(tensor)  # wakes what slept during the other peers' turns; not counted
    for _ in range(calls):
        barrier()
        start = perf_counter()
        carry_out(tensor)
        samples.append(perf_counter() - start)
    return samples


def _slowest(job: Job, samples: Sequence[float]) -> Samples:
    gathered = np.asarray(job.comm.allgather(list(samples)), dtype=np.float64)
    return np.asarray(gathered.max(axis=0))
