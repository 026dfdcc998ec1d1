"""Gradients averaged over ranks that hold the same parameters, or the same shards of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from doubletime.errors import TrainingError
from doubletime.training import session

_BUCKET_NBYTES = 25 << 20  # as DistributedDataParallel's: sent at once
_NAMED = 5


class GradientAveraging:
    """Averages a model's gradients over a group at the end of each backward pass.

    For models that DistributedDataParallel does not take: those whose parameters are DTensors, each
    rank's shard of a layer that is divided along another axis of the mesh. Averaging is idempotent, so
    gradients of several backward passes may be accumulated.

    Args:
        model: whose parameters; all ranks of the group have the same.
        group: over which; None for all ranks.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._names = {
            parameter: name
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self._ready: set[nn.Parameter] = set()
        for parameter in self._names:
            parameter.register_post_accumulate_grad_hook(self._note)

    def _note(self, parameter: nn.Parameter) -> None:
        if not self._ready:  # the first of this pass
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._average)
        self._ready.add(parameter)

    def _average(self) -> None:
        """At the end of the pass.

        Raises:
            TrainingError: if the loss does not depend on a parameter: the others would wait for it.
        """
        missing = [name for parameter, name in self._names.items() if parameter not in self._ready]
        self._ready.clear()
        refuse_missing(missing)
        average(list(self._names), self._group)


def refuse_missing(names: Sequence[str]) -> None:
    """Refuse parameters that have no gradient on this rank: other ranks would wait for it.

    Raises:
        TrainingError: if there are any.
    """
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise TrainingError(
            f"rank {session.current().rank}: no gradient for {', '.join(names[:_NAMED])}{more}: "
            f"the loss does not depend on {'it' if len(names) == 1 else 'them'}",
            "let every parameter take part, or set requires_grad = False on it",
        )


@torch.no_grad()
def average(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None) -> None:
    """Give each of these parameters the mean of its gradients over the group; collective.

    Args:
        parameters: which have a gradient on all ranks of the group, or on none.
        group: None for all ranks.
    """
    world_size = dist.get_world_size(group)
    if world_size == 1:
        return
    for bucket in _buckets([_local(p) for p in parameters if p.grad is not None]):
        numbers = torch.cat([gradient.reshape(-1) for gradient in bucket])
        numbers.div_(world_size)
        dist.all_reduce(numbers, group=group)
        sizes = [gradient.numel() for gradient in bucket]
        for gradient, mean in zip(bucket, numbers.split(sizes), strict=True):
            gradient.copy_(mean.view(gradient.shape))


def _local(parameter: nn.Parameter) -> Tensor:
    """What this rank has of the gradient, laid out as what it has of the parameter."""
    gradient = parameter.grad
    if not isinstance(gradient, DTensor):
        if gradient is None:
            raise AssertionError("only gradients that are there are averaged")
        return gradient
    data = parameter.data
    if isinstance(data, DTensor) and gradient.placements != data.placements:
        gradient = gradient.redistribute(placements=data.placements)
        parameter.grad = gradient
    return gradient.to_local()


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one type, one after the other, until so many bytes are reached."""
    bucket: list[Tensor] = []
    nbytes = 0
    for gradient in gradients:
        if bucket and (nbytes >= _BUCKET_NBYTES or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, nbytes = [], 0
        bucket.append(gradient)
        nbytes += gradient.nbytes
    if bucket:
        yield bucket
