"""One stage on its rank: what it is given, what it makes of it, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.pipelining import PipelineStage

from doubletime.errors import PipelineError


class Stopwatch:
    """How long a rank computes, of how long its steps take."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.busy_s = 0.0
        self.total_s = 0.0
        self._running: list[tuple[Any, Any]] = []

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Within, the rank computes."""
        if self.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._running.append((begin, end))
            return
        started_s = time.perf_counter()
        yield
        self.busy_s += time.perf_counter() - started_s

    @contextmanager
    def step(self) -> Iterator[None]:
        """Within, the rank computes or waits."""
        started_s = time.perf_counter()
        yield
        if self._running:
            torch.cuda.synchronize(self.device)
            self.busy_s += sum(begin.elapsed_time(end) for begin, end in self._running) / 1e3
            self._running.clear()
        self.total_s += time.perf_counter() - started_s

    def reset(self) -> None:
        """Begin anew."""
        self.busy_s = self.total_s = 0.0


class Runner(nn.Module):
    """A stage's module between what feeds the first one and what ends the last one.

    Args:
        part: the module.
        feed: for the first stage: the model's inputs for a microbatch, by its number.
        finish: for the last stage: the loss of a microbatch, of its number and the model's output.
        likes: for all other stages: what it shall make, without content.
        must_own: whether what it makes must share no memory with anything, nor be needed backward.
    """

    def __init__(
        self,
        part: nn.Module,
        feed: Callable[[int], tuple[Tensor, ...]] | None,
        finish: Callable[[int, Any], Tensor] | None,
        likes: tuple[Tensor, ...],
        *,
        must_own: bool = False,
    ) -> None:
        super().__init__()
        self.part = part
        self.feed = feed
        self.finish = finish
        self.micro_batch = 0
        self.likes = likes
        self.must_own = must_own

    def forward(self, *tensors: Tensor) -> Any:
        """What the stage makes of a microbatch: tensors to send, or the loss."""
        if self.feed is not None:
            tensors = self.feed(self.micro_batch)
        made = self.part(*tensors)
        if self.finish is not None:
            return self.finish(self.micro_batch, made)
        sent = as_sent(made, self.likes)
        if self.must_own:
            return tuple(tensor.clone() for tensor in sent)
        return sent


def as_sent(tensors: Sequence[Tensor], likes: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a stage has made as the next one expects it: contiguous, and of the type without autocast.

    Raises:
        PipelineError: if it has other shapes than were found beforehand.
    """
    for tensor, like in zip(tensors, likes, strict=True):
        if tensor.shape != like.shape:
            raise PipelineError(
                f"a stage makes a tensor of shape {tuple(tensor.shape)}, {tuple(like.shape)} was expected",
                "shapes must not depend on what tensors hold: pad them, or train without pp",
            )
    return tuple(
        _sendable(tensor.to(like.dtype)) for tensor, like in zip(tensors, likes, strict=True)
    )


def _sendable(tensor: Tensor) -> Tensor:
    """Contiguous, and there: layers that are divided along tp return before their results are."""
    if isinstance(tensor, AsyncCollectiveTensor):
        return tensor.clone(memory_format=torch.contiguous_format)  # waits, and keeps the graph
    return tensor.contiguous()


class TimedStage(PipelineStage):
    """PyTorch's stage, which says which microbatch is at hand, and is timed."""

    stopwatch: Stopwatch
    runner: Runner

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """As in PyTorch's."""
        self.runner.micro_batch = fwd_chunk_id
        with self.stopwatch.busy():
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """As in PyTorch's; the gradients that it leaves to be sent are contiguous."""
        with self.stopwatch.busy():
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
            gradients = self.bwd_cache.get(bwd_chunk_id, ())
            self.bwd_cache[bwd_chunk_id] = tuple(
                None if gradient is None else _sendable(gradient) for gradient in gradients
            )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """As in PyTorch's."""
        with self.stopwatch.busy():
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
