"""Time one collective at many sizes: checked first, then all peers by turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from doubletime.errors import CollectiveError
from doubletime.planning import room
from doubletime.planning.peers import Job, Peer
from doubletime.planning.timing import Advance, Timing, spread
from doubletime.planning.turns import Work, by_turns
from doubletime.units import format_nbytes

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
        LaunchError: on every rank, if some host has not the memory.
    """
    room.check(job.comm, max(sizes))
    peers = [job.peer(name) for name in names]
    timings: list[Timing] = []
    for index, nbytes in enumerate(sizes):
        tensor = torch.empty(nbytes // 4)
        for peer in peers:
            _check(job, peer, tensor)

        def advance(share: float, index: int = index, nbytes: int = nbytes) -> None:
            observe(Advance((index + share) / len(sizes), nbytes))

        tensor.zero_()  # sums of zeros stay finite however often they are added
        works = [Work(partial(peer.all_reduce, tensor), peer.barrier) for peer in peers]
        taken = by_turns(job.comm, works, seconds, advance)
        for peer, samples in zip(peers, taken, strict=True):
            timing = Timing("all_reduce", peer.name, nbytes, job.world_size, spread(samples))
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
