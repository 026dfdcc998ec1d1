"""BatchNorm over the global batch, on any device: mean and variance of all ranks' samples together."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from doubletime.errors import TrainingError
from doubletime.training import session

_Module = TypeVar("_Module", bound=nn.Module)

_are_ignored = False  # a process computes one batch at a time


@contextlib.contextmanager
def samples_ignored() -> Iterator[None]:
    """While open, what passes is borrowed: it is normalized, and counts for nothing."""
    global _are_ignored
    before, _are_ignored = _are_ignored, True
    try:
        yield
    finally:
        _are_ignored = before


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm*d` whose mean and variance are those of all ranks' samples together.

    For inputs of any shape with channels second. Ranks may hold different numbers of samples. torch's own
    class of this name computes on GPUs only; this one where its input is. All ranks must pass the same
    layers in the same order, as training in step does.

    Args:
        num_features, eps, momentum, affine, track_running_stats: as in BatchNorm.
        group: whose ranks; all by default.

    Raises:
        TrainingError: if there are not two values a channel, or the input has no channels.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.group = group

    @classmethod
    def convert(cls, model: _Module, group: dist.ProcessGroup | None = None) -> _Module | Any:
        """The model with every BatchNorm in it replaced; parameters, buffers and names stay.

        Args:
            model: changed in place; returned, but for a BatchNorm itself, whose successor is.
            group: as in the class.
        """
        if isinstance(model, _BatchNorm) and not isinstance(model, cls):
            return cls._from(model, group)
        for name, child in model.named_children():
            setattr(model, name, cls.convert(child, group))
        return model

    @classmethod
    def _from(cls, other: _BatchNorm, group: dist.ProcessGroup | None) -> SyncBatchNorm:
        made = cls(
            other.num_features,
            other.eps,
            other.momentum,
            other.affine,
            other.track_running_stats,
            group=group,
            device="meta",
        )
        made.weight, made.bias = other.weight, other.bias
        for name, buffer in other.named_buffers(recurse=False):
            made._buffers[name] = buffer
        return made.train(other.training)

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        """A copy over the same ranks."""
        memo[id(self.group)] = self.group
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({name: copy.deepcopy(each, memo) for name, each in vars(self).items()})
        return made

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # messages cannot be compiled
    def forward(self, input: Tensor) -> Tensor:
        """The input, normalized over all dims but the second; of its shape.

        Raises:
            TrainingError: as the class says.
        """
        self._check_input_dim(input)
        takes_batch = self.training or self.running_mean is None
        if not takes_batch or session.current().world_size == 1:
            return super().forward(input)
        total, mean, variance = _moments(input.detach(), self.group)
        if total < 2:
            raise TrainingError(
                f"BatchNorm got {total:.0f} value a channel over all ranks, and needs 2",
                "a larger --global-batch, or a number of samples that leaves no last batch of 1",
            )
        if self.training and self.running_mean is not None:
            self._track(total, mean, variance)
        normalize: Callable[..., Tensor] = _Normalize.apply
        scale = (variance + self.eps).rsqrt()
        normalized = normalize(input, mean, scale, total, not _are_ignored, self.group)
        if not self.affine:
            return normalized.to(input.dtype)
        shape = (1, -1, *[1] * (input.dim() - 2))
        scaled = normalized * self.weight.view(shape) + self.bias.view(shape)
        return scaled.to(input.dtype)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise TrainingError(
                f"BatchNorm over {self.num_features} channels got an input of shape "
                f"{list(input.shape)}",
                f"give it samples x {self.num_features} x any",
            )

    @torch.no_grad()
    def _track(self, total: float, mean: Tensor, variance: Tensor) -> None:
        """Let the running mean and the running variance follow; the latter is the unbiased one."""
        if self.running_mean is None or self.running_var is None:
            return
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1 / float(self.num_batches_tracked)
        unbiased = variance * (total / (total - 1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.lerp_(new.to(running.dtype), 0.1 if momentum is None else momentum)


@torch.no_grad()
def _moments(input: Tensor, group: dist.ProcessGroup | None) -> tuple[float, Tensor, Tensor]:
    """How many values a channel has over all ranks, their mean, and their (biased) variance.

    One message of 2 · channels + 1 numbers in float64, in which sums of squares keep their digits.
    """
    dims = _but_channels(input)
    count = 0 if _are_ignored else input.numel() // input.shape[1]
    wide = input if input.dtype == torch.float64 else input.float()
    variance, mean = torch.var_mean(wide, dims, correction=0)
    variance, mean = variance.double(), mean.double()
    sums = torch.cat(
        [mean * count, (variance + mean.square()) * count, mean.new_tensor([float(count)])]
    )
    if not count:
        sums.zero_()  # 0 times a value that is not finite is not 0
    dist.all_reduce(sums, group=group)
    total = float(sums[-1])
    mean, square = (sums[:-1] / max(total, 1.0)).chunk(2)
    variance = (square - mean.square()).clamp_(min=0.0)
    return total, mean.to(wide.dtype), variance.to(wide.dtype)


class _Normalize(torch.autograd.Function):
    """(x - mean) / deviation, where mean and deviation depend on the samples of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        mean: Tensor,
        scale: Tensor,
        total: float,
        counts: bool,
        group: dist.ProcessGroup | None,
    ) -> Tensor:
        shape = (1, -1, *[1] * (input.dim() - 2))
        normalized = (input.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
        ctx.save_for_backward(normalized, scale)
        ctx.total, ctx.counts, ctx.group, ctx.dtype = total, counts, group, input.dtype
        return normalized

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """With g the gradient and y the output: scale · (g - mean(g) - y · mean(g · y))."""
        (gradient,) = gradients
        normalized, scale = ctx.saved_tensors
        dims = _but_channels(gradient)
        sums = torch.cat([gradient.sum(dims), (gradient * normalized).sum(dims)])
        dist.all_reduce(sums, group=ctx.group)
        if ctx.counts:
            shape = (1, -1, *[1] * (gradient.dim() - 2))
            first, second = (sums / ctx.total).chunk(2)
            gradient = gradient - first.view(shape) - normalized * second.view(shape)
            gradient = gradient * scale.view(shape)
        else:  # the means do not depend on it
            gradient = gradient * scale.view((1, -1, *[1] * (gradient.dim() - 2)))
        return gradient.to(ctx.dtype), None, None, None, None, None


def _but_channels(tensor: Tensor) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]
