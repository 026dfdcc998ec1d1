"""A task's loss, called twice on each microbatch: where the model's inputs are, and where its output is.

The first stage calls it with a model that notes what it is called with; the last one with a model that
returns what came out of the stages. So the loss may compute anything before and after the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from doubletime.errors import PipelineError
from doubletime.training.pipeline.tracing import Call

Function = Callable[[nn.Module, Any], Any]  # of a model and a batch: a task's loss or metrics


def record(function: Function, batch: Any) -> Call:
    """What the function calls the model with.

    Raises:
        PipelineError: if it does not call the model, or asks something else of it.
    """
    try:
        with torch.no_grad():
            function(_Recorder(), batch)
    except _Recorded as recorded:
        return recorded.call
    raise PipelineError(
        f"{_name(function)} does not call the model", f"let {_name(function)} call model(inputs)"
    )


def replay(function: Function, batch: Any, output: Any) -> Any:
    """What the function makes of the model's output.

    Raises:
        PipelineError: if it calls the model more than once, or asks something else of it.
    """
    return function(_Player(output, _name(function)), batch)


@contextmanager
def drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Have both calls draw the same numbers, and leave the generators as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class Microbatches:
    """A batch in parts, and what a function makes of each at both ends of the pipeline.

    Args:
        function: a task's loss or metrics.
        batches: the parts, all of one shape.
        known: the call with which the model was followed: every other must be like it.
        seed: of what the function draws.
        device: where the tensors lie.

    Attributes:
        shapes: shape and type of each tensor that the model is called with.
    """

    def __init__(
        self, function: Function, batches: list[Any], known: Call, seed: int, device: torch.device
    ) -> None:
        self.batches = batches
        self._function, self._known = function, known
        self._seed, self._device = seed, device
        self._first = self._record(0)
        self.shapes = tuple((tuple(t.shape), t.dtype) for t in self._first.tensors)

    def inputs(self, number: int) -> tuple[Tensor, ...]:
        """What the model is called with."""
        call = self._record(number) if number else self._first
        if not call.is_like(self._known):
            raise PipelineError(
                "the model is called with other arguments than in the first batch",
                "let loss() and metrics() call the model alike for every batch",
            )
        return call.tensors

    def finish(self, number: int, output: Any) -> Any:
        """What is made of the model's output."""
        with drawing(self._seed + number, self._device):
            return replay(self._function, self.batches[number], output)

    def _record(self, number: int) -> Call:
        with drawing(self._seed + number, self._device):
            return record(self._function, self.batches[number])


class _Recorded(BaseException):  # no Exception: a loss that catches those must not stop it
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call


class _AskedError(PipelineError, AttributeError):
    """The model was asked for something that no stage has; hasattr() says False."""


class _StandIn(nn.Module):
    """A model that can be called, and has nothing else."""

    def __getattr__(self, name: str) -> Any:
        raise _asked(f".{name}")

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise _asked("'s parameters")

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise _asked("'s layers")

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise _asked("'s state")


class _Recorder(_StandIn):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise _Recorded(Call(args, kwargs))


class _Player(_StandIn):
    def __init__(self, output: Any, caller: str) -> None:
        super().__init__()
        self._played = [output]
        self._caller = caller

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        if not self._played:
            raise PipelineError(
                f"{self._caller} calls the model more than once, a pipeline runs it once a batch",
                "join the inputs and call the model once, or train without pp",
            )
        return self._played.pop()


def _asked(what: str) -> _AskedError:
    return _AskedError(
        f"the task uses model{what}: in a pipeline no rank has the whole model",
        "let loss() and metrics() only call the model, or train without pp",
    )


def _name(function: Function) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)}()"
