"""CUDA tensors: handed straight to an MPI that takes them, else by way of pinned host memory.

The order is the stream's: what the caller queued before the call is finished before MPI reads, and what
it queues after `wait()` sees the outcome. `Device` is all that is asked of an accelerator, so the order
can be tested where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


class Device(Protocol):
    """What staging asks of an accelerator."""

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Host memory, page-locked, of the tensor's type and shape."""

    def record(self) -> Any:
        """An event behind everything queued so far on the current stream."""

    def finish(self, event: Any) -> None:
        """Block this thread until the event has come."""

    def side_copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """Queue `target.copy_(source)` for all pairs on a stream of its own; an event behind them."""

    def follow(self, event: Any) -> None:
        """Let what is queued from now on the current stream wait for the event."""


class Cuda:
    """`Device` for one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Host memory, page-locked, of the tensor's type and shape, contiguous."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)

    def record(self) -> torch.cuda.Event:
        """An event on the current stream."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def finish(self, event: torch.cuda.Event) -> None:
        """Block until the event has come."""
        event.synchronize()

    def side_copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.cuda.Event:
        """Copies on the side stream."""
        event = torch.cuda.Event()
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            event.record(self._stream)
        return event

    def follow(self, event: torch.cuda.Event) -> None:
        """The current stream waits for the event."""
        torch.cuda.current_stream(self._device).wait_event(event)


@dataclass
class Staged:
    """Tensors of one operation on their way through host memory.

    Attributes:
        host: what MPI works on, one for each of the operation's tensors.
    """

    device: Device
    tensors: list[torch.Tensor]
    outputs: list[int]
    host: list[torch.Tensor] = field(default_factory=list)
    _ready: Any = None
    _written: Any = None

    def begin(self) -> None:
        """In the caller's thread: queue the copies to the host behind what the stream holds."""
        for tensor in self.tensors:
            pinned = self.device.pinned_like(tensor)
            pinned.copy_(tensor, non_blocking=True)
            self.host.append(pinned)
        self._ready = self.device.record()

    def before(self) -> None:
        """In the thread that communicates: wait until MPI may read."""
        self.device.finish(self._ready)

    def after(self) -> None:
        """In the thread that communicates: queue the copies back of what was written."""
        self._written = self.device.side_copy(
            [(self.tensors[index], self.host[index]) for index in self.outputs]
        )

    def settle(self) -> None:
        """In the thread that waits: later work on its stream follows the outcome."""
        if self._written is not None:
            self.device.follow(self._written)


@dataclass
class Direct:
    """Tensors that MPI takes where they are: only the order remains to be kept."""

    device: Device
    tensors: list[torch.Tensor]
    _ready: Any = None

    @property
    def host(self) -> list[torch.Tensor]:
        """The tensors themselves."""
        return self.tensors

    def begin(self) -> None:
        """In the caller's thread: mark what must be finished first."""
        self._ready = self.device.record()

    def before(self) -> None:
        """In the thread that communicates: wait until MPI may read."""
        self.device.finish(self._ready)

    def after(self) -> None:
        """Nothing: MPI wrote in place."""

    def settle(self) -> None:
        """Nothing: MPI's writes are complete when the operation is."""


_devices: dict[int, Cuda] = {}


def plan(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[int],
    is_cuda_aware: Callable[[], bool],
) -> Staged | Direct | None:
    """How to bring an operation's tensors before MPI.

    Args:
        tensors: all tensors of the operation.
        outputs: the indices of those it writes.
        is_cuda_aware: whether MPI takes CUDA memory.

    Returns:
        None for host tensors.
    """
    first = next((tensor for tensor in tensors if tensor.is_cuda), None)
    if first is None:
        return None
    index = first.device.index or 0
    device = _devices.setdefault(index, Cuda(first.device))
    if is_cuda_aware():
        return Direct(device, list(tensors))
    return Staged(device, list(tensors), list(outputs))
