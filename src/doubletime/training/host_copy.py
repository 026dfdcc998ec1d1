"""Synchronous SGD for ranks of one host: one copy of the parameters, and of the optimizer's state.

Where DistributedDataParallel lets every rank hold all parameters, sum all gradients and make the whole
update, here the parameters lie in memory that the ranks share. Backward passes leave their gradients in
shared memory, too; each rank then sums its slice of everyone's gradients and updates its slice of the
parameters (the partition of the update is that of ZeRO: Rajbhandari et al. 2020, arXiv:1910.02054).
Nothing is sent, and an update costs each rank 1/N of the work.

It is exact for optimizers that treat each element by itself, as a slice has no layers.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from doubletime.errors import TrainingError
from doubletime.mpi import segments
from doubletime.mpi.shared_memory import is_switched_on
from doubletime.training import session

_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
)
_ALIGNMENT_NBYTES = 64  # two ranks shall not write to one line of the cache


@dataclass(frozen=True)
class _Place:
    """Where one parameter lies among all numbers."""

    name: str
    start: int
    stop: int


class HostCopy:
    """A model whose parameters all ranks of the host share; see the module.

    The optimizer goes on to be used as ever: `zero_grad`, then any number of backward passes, then
    `step`, which all ranks must call alike. Afterwards its parameters are this rank's slices, one for
    each of its groups; `state_dict` of the optimizer holds this rank's part only.

    Attributes:
        waited_s: seconds spent waiting for other ranks, so far.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, shared: segments.Shared
    ) -> None:
        """Take over model and optimizer; all ranks at once, rank 0's parameters become everyone's."""
        joined = session.current()
        self.waited_s = 0.0
        self._world_size = joined.world_size
        self._rank = joined.rank
        self._shared = shared
        names = {parameter: name for name, parameter in model.named_parameters()}
        groups = [group["params"] for group in optimizer.param_groups]
        self._places: dict[nn.Parameter, _Place] = {}
        self._filled: set[nn.Parameter] = set()
        total, bounds = _layout(groups, names, self._places)
        dtype = groups[0][0].dtype
        # The parameters lie in the first rank's segment, each rank's gradients in its own.
        whole = [_numbers(segment, dtype, total) for segment in shared.mapped]
        self._parameters = whole[0][0]
        self._gradients = [gradients for _, gradients in whole]
        self._mine = self._gradients[joined.rank]
        for parameter, place in self._places.items():
            room = self._parameters[place.start : place.stop].view(parameter.shape)
            if joined.rank == 0:
                room.copy_(parameter.detach())
            parameter.data = room
            parameter.register_post_accumulate_grad_hook(self._take)
        others = [p for p in model.parameters() if p not in self._places]
        for tensor in (*others, *model.buffers()):
            dist.broadcast(tensor.detach(), 0)
        self._slices = [self._slice(start, stop) for start, stop in bounds]
        for group, slice_ in zip(optimizer.param_groups, self._slices, strict=True):
            group["params"] = [slice_.parameter]
        optimizer.register_step_pre_hook(self._sum)
        optimizer.register_step_post_hook(self._await_all)
        self._wait()

    def _slice(self, start: int, stop: int) -> _Slice:
        """This rank's part of the numbers of one group."""
        bounds = _bounds(start, stop, self._world_size, self._parameters.element_size())
        mine = slice(bounds[self._rank], bounds[self._rank + 1])
        parameter = nn.Parameter(self._parameters[mine])
        return _Slice(parameter, torch.empty_like(parameter.data), mine)

    def _take(self, parameter: nn.Parameter) -> None:
        """Move a gradient that is complete to shared memory, divided by the number of ranks."""
        gradient = parameter.grad
        if gradient is None:
            return
        place = self._places[parameter]
        room = self._mine[place.start : place.stop].view(parameter.shape)
        if parameter in self._filled:  # a second backward pass before the step
            room.add_(gradient, alpha=1 / self._world_size)
        else:
            torch.mul(gradient, 1 / self._world_size, out=room)
            self._filled.add(parameter)
        parameter.grad = None

    def _sum(self, *_: Any) -> None:
        """Before the optimizer's step: the mean of all ranks' gradients, for this rank's slices."""
        if len(self._filled) < len(self._places):
            missing = [self._places[each].name for each in self._places if each not in self._filled]
            raise TrainingError(
                f"rank {self._rank}: no gradient for {', '.join(missing[:5])}"
                f"{' and more' * (len(missing) > 5)}: the loss does not depend on "
                f"{'it' if len(missing) == 1 else 'them'}",
                "let every parameter take part, or set requires_grad = False on it",
            )
        self._filled.clear()
        self._wait()
        for slice_ in self._slices:
            first, *rest = (gradients[slice_.bounds] for gradients in self._gradients)
            if rest:
                torch.add(first, rest[0], out=slice_.gradient)
            for other in rest[1:]:
                slice_.gradient.add_(other)
            slice_.parameter.grad = slice_.gradient

    def _await_all(self, *_: Any) -> None:
        """After it: nobody computes with parameters that are not all updated."""
        self._wait()

    def _wait(self) -> None:
        started_s = time.perf_counter()
        dist.barrier()
        self.waited_s += time.perf_counter() - started_s


@dataclass(frozen=True)
class _Slice:
    """What one rank updates of one group: the numbers `bounds` of all."""

    parameter: nn.Parameter
    gradient: Tensor
    bounds: slice


def share(model: nn.Module, optimizer: torch.optim.Optimizer) -> HostCopy | None:
    """Let all ranks of this host hold one copy of the model, where that is possible; collective.

    Args:
        model: on the CPU; its trainable parameters are moved, their values become rank 0's.
        optimizer: over these parameters, not stepped yet; from now on it updates this rank's part.

    Returns:
        None, on all ranks alike, where `obstacle` names a reason or memory cannot be shared; then
        nothing has changed.
    """
    is_possible = is_switched_on() and obstacle(model, optimizer) is None
    nbytes = _nbytes(optimizer) if is_possible else None
    shared = segments.share(nbytes, _allgather)
    if shared is None:
        return None
    is_there = all(_allgather(_has_memory(shared, nbytes or 0)))
    os.close(shared.descriptor)  # what is mapped stays
    if is_there:
        return HostCopy(model, optimizer, shared)
    for segment in shared.mapped:
        segment.close()
    return None


def obstacle(model: nn.Module, optimizer: torch.optim.Optimizer) -> str | None:
    """Why ranks cannot share one copy of the model; None where they may."""
    joined = session.current()
    trainable = {parameter for parameter in model.parameters() if parameter.requires_grad}
    updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    checks: dict[str, Callable[[], bool]] = {
        "there is one rank": lambda: joined.world_size == 1,
        "ranks are on several hosts": lambda: joined.hosts > 1,
        "the model is not on the CPU": lambda: any(p.device.type != "cpu" for p in trainable),
        "the model has buffers, which each rank's forward may change": lambda: any(
            True for _ in model.buffers()
        ),
        f"{type(optimizer).__name__} may look at whole parameters": lambda: (
            type(optimizer) not in _ELEMENTWISE
        ),
        "the optimizer has state already": lambda: bool(optimizer.state),
        "the optimizer's parameters are not the model's": lambda: (
            set(updated) != trainable or len(updated) != len(trainable)
        ),
        "a group of the optimizer is empty": lambda: any(
            not group["params"] for group in optimizer.param_groups
        ),
        "parameters differ in type": lambda: len({p.dtype for p in trainable}) > 1,
        "parameters are not plain tensors": lambda: any(
            p.layout != torch.strided or type(p) is not nn.Parameter for p in trainable
        ),
    }
    return next((reason for reason, applies in checks.items() if applies()), None)


def _layout(
    groups: Sequence[Sequence[nn.Parameter]],
    names: dict[nn.Parameter, str],
    places: dict[nn.Parameter, _Place],
) -> tuple[int, list[tuple[int, int]]]:
    """Put parameters one behind the other, each group on its own: all numbers, each group's bounds."""
    start, bounds = 0, []
    for group in groups:
        first = start
        for parameter in group:
            places[parameter] = _Place(names[parameter], start, start + parameter.numel())
            start += parameter.numel()
        bounds.append((first, start))
        start = _aligned(start, group[0].element_size())
    return start, bounds


def _bounds(start: int, stop: int, parts: int, itemsize: int) -> list[int]:
    """Where each of so many parts begins, and the last one ends; some may be empty."""
    each = _aligned(-(-(stop - start) // parts), itemsize)
    return [min(stop, start + part * each) for part in range(parts)] + [stop]


def _aligned(count: int, itemsize: int) -> int:
    step = _ALIGNMENT_NBYTES // itemsize
    return -(-count // step) * step


def _nbytes(optimizer: torch.optim.Optimizer) -> int:
    groups = [group["params"] for group in optimizer.param_groups]
    itemsize: int = groups[0][0].element_size()
    count: int = sum(_aligned(sum(p.numel() for p in group), itemsize) for group in groups)
    return segments.HEADER_NBYTES + 2 * count * itemsize


def _numbers(segment: mmap.mmap, dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor]:
    """A segment's room for the parameters and for the gradients."""
    both = torch.frombuffer(segment, dtype=dtype, count=2 * count, offset=segments.HEADER_NBYTES)
    return both[:count], both[count:]


def _has_memory(shared: segments.Shared, nbytes: int) -> bool:
    """Whether the host gives this rank's segment its memory, the parameters' part on rank 0 only."""
    half = (nbytes - segments.HEADER_NBYTES) // 2
    first = segments.HEADER_NBYTES + (0 if session.current().rank == 0 else half)
    try:
        os.posix_fallocate(shared.descriptor, first, nbytes - first)
    except OSError:
        return False
    return True


def _allgather(value: object) -> list[object]:
    everyone: list[object] = [None] * session.current().world_size
    dist.all_gather_object(everyone, value)
    return everyone
