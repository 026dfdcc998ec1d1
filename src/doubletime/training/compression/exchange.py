"""DistributedDataParallel's gradients, averaged by a thread of their own while others are computed.

Compressing takes time, and several messages, of which the later ones depend on what the earlier have
brought. A thread carries out one bucket after the other, so that all ranks exchange in one order, over a
process group of its own, so that no other message comes between.
"""

# No `from __future__ import annotations`: DDP compares a hook's annotations with the classes themselves.

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from doubletime.collectives.choice import NATIVE
from doubletime.errors import UnsupportedError
from doubletime.training.compression.channel import Channel, all_reduce_nbytes
from doubletime.training.compression.plain import Plain
from doubletime.training.compression.power_sgd import PowerSGD
from doubletime.training.compression.residuals import Residuals
from doubletime.training.compression.spec import BF16, FP16, INT8, POWERSGD, Compression
from doubletime.training.compression.topk import TopK
from doubletime.training.compression.two_hops import InHalf, InInt8


class Averaging(Protocol):
    """A way to find the mean over the ranks."""

    @property
    def residuals(self) -> Residuals | None:
        """What it has not sent; None where it keeps nothing."""

    def average(
        self, channel: Channel, parameters: Sequence[nn.Parameter], gradients: Tensor
    ) -> None:
        """The mean over the ranks of a bucket's gradients, flat, in place, the same bits on all."""


class Exchange:
    """Averages a model's gradients from now on, in place of what DistributedDataParallel does itself.

    Args:
        model: not trained yet; all its ranks make one alike.
        compression: None for none.
        algorithm: by which reduction algorithm its collectives go, as for `doubletime.all_reduce`.
        on_launched: told when a bucket has been handed over.
        on_waited: told when each collective began and ended; from the thread.

    Attributes:
        channel: to the other ranks; counts what is sent.
        plain_nbytes: what an all_reduce of the gradients as they are would have had to send.

    Raises:
        ScheduleError: if there is no such algorithm.
        UnsupportedError: if gradients are no floating-point numbers.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        compression: Compression | None,
        algorithm: str = NATIVE,
        on_launched: Callable[[], None] | None = None,
        on_waited: Callable[[float, float], None] | None = None,
    ) -> None:
        trained = {
            name: each for name, each in model.module.named_parameters() if each.requires_grad
        }
        for name, parameter in trained.items():
            if compression is not None and not parameter.is_floating_point():
                raise UnsupportedError(
                    f"{name} is {str(parameter.dtype).removeprefix('torch.')}: "
                    f"its gradient cannot be compressed",
                    "leave out --compress",
                )
        self._names = {parameter: name for name, parameter in trained.items()}
        self._averaging = _averaging(compression, list(trained.values()))
        self.channel = Channel(_group_like(model.process_group), algorithm, on_waited)
        self.plain_nbytes = 0.0
        self._on_launched = on_launched
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="doubletime-exchange")
        self._stream: torch.cuda.Stream | None = None
        model.register_comm_hook(None, self._hook)

    @property
    def keeps(self) -> bool:
        """Whether something is kept from step to step, which belongs into checkpoints."""
        return self._averaging.residuals is not None

    def own(self) -> dict[str, Tensor]:
        """What this rank has not sent, by the parameters' names; for `load`."""
        residuals = self._averaging.residuals
        return {} if residuals is None else residuals.state(self._names)

    def shared(self) -> dict[str, Tensor]:
        """What steps hand on that is the same on all ranks; for `load`."""
        averaging = self._averaging
        return averaging.state(self._names) if isinstance(averaging, PowerSGD) else {}

    def load(
        self, shared: Mapping[str, Tensor], own: Sequence[Mapping[str, Tensor]], world_size: int
    ) -> None:
        """Go on with what ranks kept; nothing that is due is lost, on however many ranks.

        Args:
            shared: as `shared` returned it.
            own: what this rank kept; where another number of ranks saved, what all of them kept, on one
                rank, and nothing on the others.
            world_size: how many ranks saved.
        """
        # A rank's gradients count for 1/p of the mean, so does what it has kept of them.
        factor = self.channel.world_size / world_size
        kept: dict[str, Tensor] = {}
        for each in own:
            for name, residual in each.items():
                part = residual if factor == 1 else residual * factor
                kept[name] = kept[name] + part if name in kept else part
        if self._averaging.residuals is not None:
            self._averaging.residuals.load(kept, self._names)
        if isinstance(self._averaging, PowerSGD):
            self._averaging.load(shared, self._names)

    def forget_spoilt(self) -> None:
        """Keep nothing that is not finite: it would spoil all steps to come."""
        if self._averaging.residuals is not None:
            self._averaging.residuals.forget_spoilt()
        if isinstance(self._averaging, PowerSGD):
            self._averaging.load({}, self._names)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _hook(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        gradients = bucket.buffer()
        parameters: list[Any] = bucket.parameters()
        self.plain_nbytes += all_reduce_nbytes(gradients.nbytes, self.channel.world_size)
        is_cuda = gradients.is_cuda
        future: torch.futures.Future[Tensor] = torch.futures.Future(
            devices=[gradients.device] if is_cuda else None
        )
        ready = torch.cuda.current_stream(gradients.device).record_event() if is_cuda else None
        self._thread.submit(self._carry_out, future, parameters, gradients, ready)
        if self._on_launched is not None:
            self._on_launched()
        return future.then(_outcome)

    def _carry_out(
        self,
        future: torch.futures.Future[Tensor],
        parameters: Sequence[nn.Parameter],
        gradients: Tensor,
        ready: torch.cuda.Event | None,
    ) -> None:
        try:
            with torch.no_grad():
                if ready is None:
                    self._averaging.average(self.channel, parameters, gradients)
                    future.set_result(gradients)
                    return
                if self._stream is None:
                    self._stream = torch.cuda.Stream(gradients.device)
                with torch.cuda.device(gradients.device), torch.cuda.stream(self._stream):
                    self._stream.wait_event(ready)
                    self._averaging.average(self.channel, parameters, gradients)
                    future.set_result(gradients)
        except Exception as error:  # whatever it is, backward() must end with it
            future.set_exception(error)  # type: ignore[arg-type]  # torch's stub is wrong


def _outcome(done: torch.futures.Future[Tensor]) -> Tensor:
    """Raises what the thread met: of an error that is set, DDP sees nothing but an odd result."""
    return done.value()


def _averaging(compression: Compression | None, parameters: Sequence[nn.Parameter]) -> Averaging:
    if compression is None:
        return Plain()
    if compression.kind == FP16:
        return InHalf(torch.float16)
    if compression.kind == BF16:
        return InHalf(torch.bfloat16)
    if compression.kind == INT8:
        return InInt8()
    if compression.kind == POWERSGD:
        return PowerSGD(int(compression.number), parameters)
    return TopK(compression.number)


def _group_like(group: Any) -> Any:
    """Another process group of the same ranks; collective among them."""
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) == dist.get_world_size():
        return dist.new_group()
    return dist.new_group(ranks, use_local_synchronization=True)
