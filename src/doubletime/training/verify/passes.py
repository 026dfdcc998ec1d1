"""One pass: the training loop over some steps, recorded on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from doubletime.errors import TaskError
from doubletime.training import loop, session
from doubletime.training.axes import axes_of
from doubletime.training.data import ShardedSampler, Share, length_of
from doubletime.training.events import Event, StepDone
from doubletime.training.recipe import Recipe
from doubletime.training.task import Data, Task
from doubletime.training.verify.averaging import Averaging
from doubletime.training.verify.draws import Draws, foreign_draws
from doubletime.training.verify.graph import unreached
from doubletime.training.verify.records import Account, After, Before, Start, Step
from doubletime.training.verify.samples import digest, in_double, sample_digests
from doubletime.training.verify.watched import settings_of, watched
from doubletime.training.verify.whole import joined, whole

Take = Callable[[int, Step], None]
_Record = TypeVar("_Record")


class _Enough(Exception):
    """All that was to be seen has been seen."""


class Pass:
    """Carries a task out for some steps, and records them; every rank of the session must.

    Args:
        task: what to train; its `prepare` has been called.
        recipe: the numbers.
        steps: how many, or as many as there are.
        take: gets each step, from 1, on rank 0.
        is_double: compute in float64, whatever the task's own precision.

    Attributes:
        model: as the task made it; it goes on to be trained.
        training_data: the task's.
        initial: its state before the first step.
        first_batch: rank 0's, with the number of its samples.
        find_loss: the task's loss of a batch, on any model.
    """

    def __init__(
        self, task: Task, recipe: Recipe, steps: int, take: Take, *, is_double: bool = False
    ) -> None:
        self._task, self._recipe, self._steps, self._take = task, recipe, steps, take
        self._is_double = is_double
        self._joined = session.current()
        self._axes = axes_of(recipe.mesh)
        self._step = 0
        self._start: tuple[Start, ...] = ()
        self._before: list[tuple[Before, ...]] = []
        self._after: list[tuple[After, ...]] = []
        self._gradients: dict[str, Tensor] = {}
        self._settings: tuple[Mapping[str, float], ...] = ()
        self._averaging: Averaging | None = None
        self._is_staged = self._axes.mesh.pp > 1
        self._entered = ExitStack()
        self._draws = Draws()  # of all that stages compute, where there are stages
        self._updated: set[int] = set()
        self.first_batch: tuple[Any, int] | None = None

    def carry_out(self) -> Account:
        """Do it.

        Raises:
            TaskError: if the loss does not depend on the model, or the optimizer is not torch's.
            DoubletimeError: what the training loop raises.
        """
        with suppress(_Enough), self._entered:
            loop.run(watched(self._task, self), self._recipe, self._observe)
        averaging = {} if self._averaging is None else self._averaging.distances
        return Account(self._start, tuple(self._before), tuple(self._after), averaging)

    def data(self, data: Data) -> Data:
        """Note how long it is, and what each step should get of it."""
        self.training_data = data
        sampler = ShardedSampler(
            length_of(data),
            self._recipe.global_batch,
            rank=self._axes.data_rank,
            world_size=self._axes.mesh.data_size,
            seed=self._recipe.seed,
        )
        self._shares = _shares(sampler)
        return data

    def made(self, model: nn.Module) -> nn.Module:
        """Note its state."""
        state = {name: digest(tensor) for name, tensor in _state(model)}
        start = Start(length_of(self.training_data), self._recipe.global_batch, state)
        self._start = self._gather(start)
        self.model = model.double() if self._is_double else model
        self.initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if self._joined.world_size > 1 and self._axes.mesh.is_data_parallel:
            self._averaging = Averaging(model, self._joined)
        return self.model

    def loss(self, find: Callable[[Any], Tensor], batch: Any) -> Tensor:
        """Find it without randomness, and note what it depends on."""
        if self._is_staged:  # called at both ends of the pipeline, for each microbatch
            with _default_precision(self._is_double):
                return find(in_double(batch) if self._is_double else batch)
        share = next(self._shares)
        self._step += 1
        rows = max(1, len(share.indices))
        samples = sample_digests(batch, rows)[: len(share.indices)]
        batch = in_double(batch) if self._is_double else batch
        if self.first_batch is None:
            self.first_batch = batch, rows
        foreign: set[str] = set()
        draws = Draws()
        with foreign_draws(foreign), draws, _default_precision(self._is_double):
            loss = find(batch)
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            raise TaskError(
                f"the loss of {self._task.name} does not depend on the model's parameters",
                "compute it from the model's outputs, without detach(), item() or no_grad()",
            )
        before = Before(
            float(loss.detach()),
            len(share.indices),
            samples,
            tuple(sorted(draws.replaced)),
            tuple(sorted(draws.kept)),
            tuple(sorted(foreign)),
            draws.generator,
            self._unreached(loss),
        )
        self._before.append(self._of_others(self._gather(before)))
        # DistributedDataParallel waits for every gradient: to go on would be to wait for ever.
        if self._joined.world_size > 1 and any(each.unreached for each in self._before[-1]):
            raise _Enough
        return loss

    def _unreached(self, loss: Tensor) -> tuple[str, ...]:
        if self._axes.mesh.fsdp > 1:
            return ()  # what is computed with are not the parameters, but their shards gathered
        return unreached(loss, dict(self.model.named_parameters()))

    def prepared(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Look at every step of it."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TaskError(
                f"optimizer() of {self._task.name} returned a {type(optimizer).__name__}",
                "return a torch.optim.Optimizer",
            )
        optimizer.register_step_pre_hook(self._before_update)
        self._updated = {id(each) for group in optimizer.param_groups for each in group["params"]}
        if self._is_staged:
            self._entered.enter_context(self._draws)
        return optimizer

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """The gradients are averaged, and not used yet."""
        if self._averaging is not None:
            self._averaging.check()
        self._settings = settings_of(optimizer)
        self._gradients = whole(
            {
                name: parameter.grad
                for name, parameter in self._parameters().items()
                if parameter.grad is not None
            }
        )

    def _observe(self, event: Event) -> None:
        if not isinstance(event, StepDone):
            return
        if self._is_staged:
            self._note_step(event)
        parameters, buffers = whole(self._parameters()), whole(self._buffers())
        after = After(
            {name: digest(tensor) for name, tensor in parameters.items()},
            {name: digest(tensor) for name, tensor in buffers.items()},
            self._settings,
        )
        self._after.append(self._gather(after))
        parts = [self._gradients, parameters, buffers]
        if self._is_staged:
            parts = [joined(part) for part in parts]
        if self._joined.rank == 0:
            self._take(self._step, Step(self._global_loss(), *parts))
        if self._step == self._steps:
            raise _Enough

    def _note_step(self, event: StepDone) -> None:
        """What is known of a step whose loss each rank finds by a pipeline."""
        self._step += 1
        count = len(next(self._shares).indices)
        drawn = tuple(sorted(self._draws.replaced))
        before = Before(event.loss, count, (), drawn, (), (), None, ())
        self._before.append(self._of_others(self._gather(before)))

    def _parameters(self) -> dict[str, Tensor]:
        """Those that this rank has: of a pipeline, its stage's."""
        return {
            name: each
            for name, each in self.model.named_parameters()
            if not self._is_staged or id(each) in self._updated
        }

    def _buffers(self) -> dict[str, Tensor]:
        layers = {name.rpartition(".")[0] for name in self._parameters()}
        return {
            name: each
            for name, each in self.model.named_buffers()
            if not self._is_staged or name.rpartition(".")[0] in layers
        }

    def _global_loss(self) -> float:
        ranks = [each for each in self._before[-1] if each.count]
        total = sum(each.count for each in ranks)
        return math.fsum(each.count * each.loss for each in ranks) / total

    def _gather(self, record: _Record) -> tuple[_Record, ...]:
        """Each rank's record, on every rank."""
        if self._joined.world_size == 1:
            return (record,)
        everyone = [record] * self._joined.world_size
        dist.all_gather_object(everyone, record)
        return tuple(everyone)

    def _of_others(self, records: tuple[_Record, ...]) -> tuple[_Record, ...]:
        """Those of rank 0 and of the ranks with other samples, in the order of their shares."""
        return tuple(records[rank] for rank in self._axes.mesh.groups("dp", "fsdp")[0])


def _shares(sampler: ShardedSampler) -> Iterator[Share]:
    """This rank's, epoch after epoch."""
    for sampler.epoch in count():
        yield from sampler.shares()


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


@contextmanager
def _default_precision(is_double: bool) -> Iterator[None]:
    """What a loss that makes tensors of its own makes them in."""
    before = torch.get_default_dtype()
    if is_double:
        torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
