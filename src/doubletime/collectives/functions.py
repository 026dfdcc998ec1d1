"""The public collectives: `dt.all_reduce(x, algorithm="ring")` and its like, on any process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from doubletime.collectives import run
from doubletime.collectives.auto import choose
from doubletime.collectives.catalogue import AUTO
from doubletime.collectives.choice import Choice
from doubletime.collectives.party import Party, party_of
from doubletime.collectives.schedule import Collective
from doubletime.errors import ScheduleError

_SUM = dist.ReduceOp.SUM


def all_reduce(
    tensor: torch.Tensor,
    op: Any = _SUM,
    group: dist.ProcessGroup | None = None,
    algorithm: str = AUTO,
    segment_nbytes: int | None = None,
) -> None:
    """Reduce over all ranks of a group, in place on each, by a reduction algorithm of your choice.

    Args:
        tensor: of any shape, the same on every rank; all end with identical bits.
        op: a `torch.distributed.ReduceOp`.
        group: any process group (mpi, gloo, nccl); the default group if None.
        algorithm: `linear`, `binomial_tree`, `recursive_doubling`, `halving_doubling`, `ring`,
            `pipelined_ring`, `double_binary_tree`, `two_level` (or `two_level:INSIDE+BETWEEN`),
            `native` (the backend's own), `auto` (what is best here for this size).
        segment_nbytes: size in bytes of what pipelined algorithms send at a time.

    Raises:
        ScheduleError: if there is no such algorithm.
        UnsupportedError: if the operation makes no sense for the dtype.
        CollectiveError: if not all ranks come, within the group's timeout.
    """
    party = party_of(group)
    choice = _choice(party, "all_reduce", algorithm, segment_nbytes, tensor.nbytes)
    run.all_reduce(party, tensor, op, choice)


def reduce(
    tensor: torch.Tensor,
    root: int = 0,
    op: Any = _SUM,
    group: dist.ProcessGroup | None = None,
    algorithm: str = AUTO,
    segment_nbytes: int | None = None,
) -> None:
    """Reduce to one rank of the group, `root`; the others' tensors stay as they are. See `all_reduce`."""
    party = _with_root(group, root)
    choice = _choice(party, "reduce", algorithm, segment_nbytes, tensor.nbytes)
    run.reduce(party, tensor, root, op, choice)


def broadcast(
    tensor: torch.Tensor,
    root: int = 0,
    group: dist.ProcessGroup | None = None,
    algorithm: str = AUTO,
    segment_nbytes: int | None = None,
) -> None:
    """Give one rank's tensor to all; `root` is its rank in the group. See `all_reduce`."""
    party = _with_root(group, root)
    choice = _choice(party, "broadcast", algorithm, segment_nbytes, tensor.nbytes)
    run.broadcast(party, tensor, root, choice)


def reduce_scatter(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Any = _SUM,
    group: dist.ProcessGroup | None = None,
    algorithm: str = AUTO,
    segment_nbytes: int | None = None,
) -> None:
    """Reduce `input` over all ranks and leave rank i its i-th part along dim 0. See `all_reduce`.

    Args:
        output: one part; as many elements as `input` divided by the ranks.
        input: one part for each rank, one after the other; stays as it is.
        op: as for `all_reduce`.
        group: as for `all_reduce`.
        algorithm: as for `all_reduce`.
        segment_nbytes: as for `all_reduce`.
    """
    party = party_of(group)
    choice = _choice(party, "reduce_scatter", algorithm, segment_nbytes, input.nbytes)
    run.reduce_scatter(party, output, input, op, choice)


def all_gather(
    output: torch.Tensor,
    input: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    algorithm: str = AUTO,
    segment_nbytes: int | None = None,
) -> None:
    """Give every rank all ranks' `input`, one after the other in `output`. See `all_reduce`."""
    party = party_of(group)
    choice = _choice(party, "all_gather", algorithm, segment_nbytes, output.nbytes)
    run.all_gather(party, output, input, choice)


def _with_root(group: dist.ProcessGroup | None, root: int) -> Party:
    party = party_of(group)
    if not 0 <= root < party.world_size:
        raise ScheduleError(
            f"root {root} is none of the group's {party.world_size} ranks",
            f"name a rank of the group, 0 to {party.world_size - 1}",
        )
    return party


def _choice(
    party: Party, collective: Collective, algorithm: str, segment_nbytes: int | None, nbytes: int
) -> Choice:
    if algorithm == AUTO:
        return choose(party, collective, nbytes)
    if segment_nbytes is None:
        return Choice(algorithm)
    return Choice(algorithm, segment_nbytes)
