"""Less memory for activations: those of a block are computed again when its gradients are.

Between blocks activations are kept. With as many layers in a block as there are blocks, memory grows with
the square root of the depth, for one forward pass more (Chen et al. 2016, arXiv:1604.06174).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from doubletime.errors import TrainingError

_FEW = 4  # a sequence of fewer layers is one block


def recompute_activations(model: nn.Module) -> int:
    """Let the model compute activations twice instead of keeping them; changed in place, names stay.

    Blocks are the modules of each `nn.ModuleList`, and runs of layers of each `nn.Sequential` that no
    block holds. Random draws, such as what drops out, and running means are those of the first pass.

    Args:
        model: not parallelized yet.

    Returns:
        How many blocks there are.

    Raises:
        TrainingError: if the model has neither.
    """
    blocks = _mark(model)
    if not blocks:
        raise TrainingError(
            f"{type(model).__name__} holds no sequence of layers whose activations could be computed again",
            "keep repeated layers in an nn.ModuleList or nn.Sequential, or leave out "
            "--checkpoint-activations",
        )
    return blocks


def _mark(module: nn.Module) -> int:
    if isinstance(module, nn.ModuleList):
        for block in module:
            block.forward = _twice(block.forward, [block])
        return len(module)
    if type(module) is nn.Sequential and len(module) >= _FEW:
        layers = list(module)
        size = math.ceil(math.sqrt(len(layers)))
        runs = [layers[first : first + size] for first in range(0, len(layers), size)]
        # The last run's activations are wanted at once: there is nothing to save.
        steps = [_twice(_chain(run), run) for run in runs[:-1]] + [_chain(runs[-1])]
        module.forward = _chain(steps)  # type: ignore[method-assign]
        return len(steps) - 1
    return sum(_mark(child) for child in module.children())


def _chain(steps: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def forward(input: Any) -> Any:
        for step in steps:
            input = step(input)
        return input

    return forward


def _twice(forward: Callable[..., Any], modules: Sequence[nn.Module]) -> Callable[..., Any]:
    """The same, but for what it keeps until its backward pass: its inputs only."""
    options: dict[str, Any] = {"use_reentrant": False}
    has_buffers = any(True for module in modules for _ in module.buffers())
    if has_buffers:
        options["context_fn"] = lambda: (contextlib.nullcontext(), _buffers_kept(modules))

    def again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, **options, **kwargs)

    # The compiler knows no contexts of ours: such a block is left as it is.
    uncompiled: Callable[..., Any] = torch.compiler.disable(again) if has_buffers else again
    return uncompiled


@contextlib.contextmanager
def _buffers_kept(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Leave buffers as they are: a BatchNorm's running mean moves once a step, not twice."""
    buffers = [buffer for module in modules for buffer in module.buffers()]
    before: list[Tensor] = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
