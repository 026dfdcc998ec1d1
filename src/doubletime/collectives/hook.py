"""Where training meets the algorithms: DDP's communication hook, and the mpi backend's own all_reduce."""

# No `from __future__ import annotations`: DDP compares a hook's annotations with the classes themselves.

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from doubletime.collectives import run
from doubletime.collectives.auto import choose
from doubletime.collectives.catalogue import AUTO
from doubletime.collectives.choice import NATIVE, Choice
from doubletime.collectives.party import Party, party_of

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def comm_hook(algorithm: str = AUTO, segment_nbytes: int | None = None) -> Hook:
    """A DDP communication hook that averages gradients by a reduction algorithm of your choice.

        model = DistributedDataParallel(net)
        model.register_comm_hook(None, doubletime.comm_hook("ring"))

    The first argument of `register_comm_hook` is the process group; None for the default one. On a group
    of the mpi backend buckets are reduced while backward goes on; on others within the hook.

    Args:
        algorithm: as for `all_reduce`.
        segment_nbytes: as for `all_reduce`.

    Raises:
        ScheduleError: if there is no such algorithm.
    """
    fixed = _fixed(algorithm, segment_nbytes)

    def hook(
        group: dist.ProcessGroup | None, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        party = party_of(group)
        gradients = bucket.buffer().div_(party.world_size)
        choice = fixed or choose(party, "all_reduce", gradients.nbytes)
        work = run.all_reduce(party, gradients, dist.ReduceOp.SUM, choice, is_async=True)
        if work is not None:
            return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(gradients)
        return future

    return hook


def in_place_of_native(group: Any, algorithm: str) -> Callable[[torch.Tensor, Any], Any]:
    """What an mpi group calls for each all_reduce of one tensor, to go by an algorithm.

    Args:
        group: the group.
        algorithm: as for `all_reduce`.

    Returns:
        A function of the tensor and the c10d options that returns the Work (None if all is done), or
        NotImplemented where the backend's own way is to be taken.

    Raises:
        ScheduleError: if there is no such algorithm.
    """
    fixed = _fixed(algorithm, None)

    def all_reduce(tensor: torch.Tensor, opts: Any) -> Any:
        party: Party = party_of(group)
        choice = fixed or choose(party, "all_reduce", tensor.nbytes)
        if choice.algorithm == NATIVE:
            return NotImplemented
        return run.all_reduce(party, tensor, opts.reduceOp, choice, is_async=opts.asyncOp)

    return all_reduce


def _fixed(algorithm: str, segment_nbytes: int | None) -> Choice | None:
    if algorithm == AUTO:
        return None
    return Choice(algorithm) if segment_nbytes is None else Choice(algorithm, segment_nbytes)
