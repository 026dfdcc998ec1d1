"""Sends what a run's ranks must know of each other's steps, as it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from doubletime.collectives.choice import NATIVE
from doubletime.errors import TrainingError
from doubletime.training import session
from doubletime.training.compression import spec
from doubletime.training.compression.channel import Channel, all_reduce_nbytes
from doubletime.training.compression.exchange import Exchange
from doubletime.training.local_sgd import LocalSGD
from doubletime.training.sending import Sending
from doubletime.training.waiting import WaitingClock


class Sender:
    """Sends what a run's ranks must know of each other's steps.

    Args:
        sending: how.
        model: as `parallelize` returned it.
        optimizer: over its parameters; where ranks go apart, each has a state of its own.
        clock: that measures how long gradients are waited for; watches the model from now on.

    Raises:
        TrainingError: if the model is not one that ranks hold copies of, and something else than the
            default is asked.
    """

    def __init__(
        self,
        sending: Sending,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        clock: WaitingClock,
    ) -> None:
        self.sending = sending
        self._model, self._optimizer = model, optimizer
        self._world_size = session.current().world_size
        copies = isinstance(model, DistributedDataParallel)
        if sending.given() and not copies and self._world_size > 1:
            raise TrainingError(
                f"{', '.join(sending.given())}: only where ranks hold copies of the whole model",
                "leave it out, or divide data only, as by default",
            )
        algorithm = sending.algorithm or NATIVE
        self._exchange: Exchange | None = None
        if isinstance(model, DistributedDataParallel):
            if sending.compress is None and sending.algorithm is None:
                clock.watch(model)
            else:
                how = None if sending.compress is None else spec.parse(sending.compress)
                self._exchange = Exchange(model, how, algorithm, clock.launched, clock.transferred)
        self._channel = Channel(None, algorithm, clock.waited) if copies else None
        bare = model.module if isinstance(model, DistributedDataParallel) else model
        local = sending.local
        self._local = None if local is None else LocalSGD(local, bare, self._average)
        gradients = sum(each.nbytes for each in bare.parameters() if each.requires_grad)
        self._each_nbytes = all_reduce_nbytes(gradients, self._world_size)
        self._plain_nbytes = self._sent_nbytes = 0.0

    @property
    def keeps(self) -> bool:
        """Whether steps depend on what was not sent before."""
        return self._exchange is not None and self._exchange.keeps

    @property
    def sent_share(self) -> float | None:
        """Bytes sent, as a share of what an all_reduce of all gradients at each step sends.

        None where that is what is done, and where nothing was sent.
        """
        is_other = self._exchange is not None or self._local is not None
        if not is_other or not self._plain_nbytes:
            return None
        sent = self._sent_nbytes
        if self._exchange is not None:
            sent += self._exchange.channel.sent_nbytes
        if self._channel is not None:
            sent += self._channel.sent_nbytes
        return sent / self._plain_nbytes

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a whole step, the update too; collective."""
        local = self._local
        is_apart = local is not None and local.is_apart
        self._plain_nbytes += self._each_nbytes
        if self._exchange is None and not is_apart:
            self._sent_nbytes += self._each_nbytes
        if local is None:
            yield
            return
        local.before_step()
        model = self._model
        if is_apart and isinstance(model, DistributedDataParallel):
            with model.no_sync():
                yield
        else:
            yield
        local.after_step()

    def meet(self) -> None:
        """Let all ranks have the same parameters; collective."""
        if self._local is not None:
            self._local.meet()

    def after_skip(self) -> None:
        """A step was skipped for a number that is not finite: do not send it later."""
        if self._exchange is not None:
            self._exchange.forget_spoilt()

    def shared(self) -> dict[str, Any]:
        """What a checkpoint holds of it that is the same on all ranks."""
        found: dict[str, Any] = {}
        if self._exchange is not None and (state := self._exchange.shared()):
            found["exchange"] = state
        if self._local is not None:
            found["local"] = self._local.state()
        return found

    def own(self) -> dict[str, Any]:
        """What a checkpoint holds of it for this rank."""
        found: dict[str, Any] = {}
        if self.keeps and self._exchange is not None:
            found["exchange"] = self._exchange.own()
        if self._local is not None and self._world_size > 1:
            found["optimizer"] = self._optimizer.state_dict()
        return found

    def go_on(
        self, shared: Mapping[str, Any], own: Sequence[Mapping[str, Any]], world_size: int
    ) -> list[str]:
        """Go on from what a checkpoint holds.

        Args:
            shared: as `shared` returned it.
            own: what this rank saved; where another number of ranks saved, all of theirs on rank 0, and
                nothing on the others.
            world_size: how many ranks saved.

        Returns:
            What people should know.
        """
        notes = []
        kept = [each["exchange"] for each in own if "exchange" in each]
        if self._exchange is not None:
            self._exchange.load(shared.get("exchange", {}), kept, world_size)
        if kept and not self.keeps:
            notes.append(
                "gradients that --compress had kept for later are lost: it is left out now"
            )
        if self._local is not None and "local" in shared:
            self._local.load(shared["local"])
        if self._local is not None and world_size == self._world_size:
            for each in own:
                if "optimizer" in each:
                    self._optimizer.load_state_dict(each["optimizer"])
        return notes

    def close(self) -> None:
        """End the threads."""
        if self._exchange is not None:
            self._exchange.close()

    def _average(self, flat: Tensor) -> None:
        if self._channel is not None:
            self._channel.mean(flat)
