"""A model in stages on several ranks: steps of training, and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from doubletime.errors import PipelineError
from doubletime.training import splitting
from doubletime.training.pipeline import calling, schedules
from doubletime.training.pipeline.calling import Microbatches
from doubletime.training.pipeline.cutting import Cutter
from doubletime.training.pipeline.engine import Engine
from doubletime.training.pipeline.measuring import measure
from doubletime.training.pipeline.stage import Stopwatch, as_sent
from doubletime.training.pipeline.tracing import Call, trace

_KEPT_ENGINES = 8  # one for each number and size of microbatches that was met


def split(model: nn.Module, example_args: tuple[Any, ...], stages: int) -> list[nn.Module]:
    """The model as so many modules, each of which takes what the one before returns.

    Where to cut is found by measuring, here and now: two calls may cut differently.

    Args:
        model: any module whose forward does not branch on what its tensors hold.
        example_args: what it is called with.
        stages: how many.

    Returns:
        The stages, which share the model's parameters. The first takes the tensors of `example_args`,
        all others a tuple of tensors, `stage(*tensors)`; the last returns what the model returns.

    Raises:
        PipelineError: if it has fewer layers that can be cut apart, or cannot be followed.
    """
    call = Call(example_args, {})
    graph = trace(model, call)
    cutter = Cutter(graph, measure(graph, call.tensors))
    cuts = cutter.cut(stages)
    return [cutter.stage(cuts, number) for number in range(stages)]


@dataclass(frozen=True)
class Bubble:
    """How long ranks waited for each other in some steps.

    Attributes:
        share: of the time of all ranks.
        expected: by the schedule's formula, for stages that take equally long.
    """

    share: float
    expected: float


class Pipeline:
    """A model whose stages lie on the ranks of a group; all of them call each method alike.

    Args:
        model: the whole model, the same on all ranks. This object keeps this rank's stages only.
        loss: a task's: the mean over a batch's samples, given model and batch.
        example: a batch like those to come.
        group: the ranks that form the pipeline; all by default.
        device: where this rank computes.
        schedule: one of `schedules.SCHEDULES`.
        micro_batches: into how many each batch is divided; four for each rank by default, or as many
            as it has samples.
        seed: of what the loss itself draws; should differ between pipelines side by side.

    Raises:
        PipelineError: if the model cannot be cut into the stages that the schedule needs.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: calling.Function,
        example: Any,
        *,
        group: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
        schedule: str = schedules.DEFAULT,
        micro_batches: int | None = None,
        seed: int = 0,
    ) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.device = device or torch.device("cpu")
        self.schedule = schedules.named(schedule)
        self.micro_batches = 4 * self.ranks if micro_batches is None else micro_batches
        if self.micro_batches < 1:
            raise PipelineError(f"{micro_batches} microbatches", "give 1 or more")
        self.loss = loss
        self.stages = self.ranks * self.schedule.stages_per_rank
        self.stopwatch = Stopwatch(self.device)
        self._steps, self._seed = 0, seed
        self._engines: dict[Any, Engine] = {}
        self._evaluated: dict[Any, list[tuple[Tensor, ...]]] = {}
        samples = splitting.length(example)
        first = min(samples, -(-samples // self.micro_batches))
        specimen, *_ = splitting.split(example, [first, samples - first])
        with calling.drawing(seed, self.device):
            self._call = calling.record(loss, specimen)
        self._has_batch_norm = any(isinstance(module, _BatchNorm) for module in model.modules())
        cutter = self._cutter(trace(model.to(self.device), self._call))
        cuts = cutter.cut(self.stages)
        modules = [cutter.stage(cuts, number) for number in range(self.stages)]
        # What each stage makes of which shapes is found on copies without content.
        self._shapes_of = [copy.deepcopy(module).to("meta") for module in modules]
        self.parts = {
            number: modules[number] for number in self.schedule.stages_of(self.rank, self.ranks)
        }
        self.module = _together(cutter.graph, list(self.parts.values()))

    @property
    def notices(self) -> tuple[str, ...]:
        """What people must know before they compare its results with those of one process."""
        if not self._has_batch_norm or self.micro_batches == 1:
            return ()
        return (
            "BatchNorm takes mean and variance over a microbatch, not over the batch: results differ from "
            "one process; take GroupNorm or LayerNorm, or one microbatch",
        )

    @property
    def has_output(self) -> bool:
        """Whether this rank has the last stage."""
        return self.stages - 1 in self.parts

    def step(self, batch: Any, weight: float = 1.0) -> float:
        """Add to the parameters' gradients those of weight · loss(model, batch).

        Args:
            batch: the same on all ranks of the group.
            weight: as `Batches.weight`.

        Returns:
            The loss, the mean over the batch's samples, on all ranks.

        Raises:
            PipelineError: if the loss asks of the model what a pipeline cannot give.
        """
        samples = splitting.length(batch)
        losses: list[Tensor] = []
        with self.stopwatch.step():
            for count, part in self._rounds(batch, samples):
                size = splitting.length(part) // count
                micro = self._microbatches(splitting.split(part, [size] * count), self.loss)
                self._steps += 1
                engine = self._engine(micro)
                losses += engine.run(micro, size / samples, weight)
        total = torch.zeros(1, dtype=torch.float64, device=self.device)
        if losses:
            total += torch.stack(losses).sum()
        self._from_last(total)
        return float(total)

    @torch.no_grad()
    def forward(self, batch: Any, function: calling.Function) -> Any:
        """What a function such as a task's `metrics` makes of the model and a batch.

        The whole batch is sent through as one, as one process would compute it.

        Returns:
            The function's result, its tensors as numbers where they are 0-dim, on all ranks.
        """
        micro = self._microbatches([batch], function)
        if micro.shapes not in self._evaluated:
            self._evaluated[micro.shapes] = self._boundaries(micro.shapes)
        shapes = self._evaluated[micro.shapes]
        tensors: tuple[Tensor, ...] = ()
        result: list[Any] = [None]
        for number in range(self.stages):
            if number not in self.parts:
                continue
            if number == 0:
                tensors = micro.inputs(0)
            elif number - 1 not in self.parts:
                tensors = self._receive(number - 1, shapes[number - 1])
            made = self.parts[number](*tensors)
            if number == self.stages - 1:
                result[0] = _plain(micro.finish(0, made))
            else:
                tensors = as_sent(made, shapes[number])
                if number + 1 not in self.parts:
                    self._send(number + 1, tensors)
        root = self._global_rank(self.stages - 1)
        dist.broadcast_object_list(result, root, group=self.group, device=self.device)
        return result[0]

    def bubble(self) -> Bubble:
        """How much of the time the group's ranks waited, in the steps since this was last asked; collective."""
        clock = self.stopwatch
        times = torch.tensor([clock.busy_s, clock.total_s], dtype=torch.float64, device=self.device)
        clock.reset()
        dist.all_reduce(times, group=self.group)
        busy_s, total_s = times.tolist()
        return Bubble(
            1 - busy_s / total_s if total_s else 0.0,
            self.schedule.bubble(self.ranks, self.micro_batches),
        )

    def _cutter(self, graph: fx.GraphModule) -> Cutter:
        """All ranks of the job cut alike: as rank 0 has measured."""
        told: list[Any] = [None]
        if dist.get_rank() == 0:
            told[0] = measure(graph, self._call.tensors)
        dist.broadcast_object_list(told, 0, device=self.device)
        return Cutter(graph, told[0])

    def _rounds(self, batch: Any, samples: int) -> list[tuple[int, Any]]:
        """The batch as microbatches of one size, and what is left as one smaller one."""
        size = -(-samples // self.micro_batches)
        count = samples // size
        if count * size == samples:
            return [(count, batch)]
        most, rest = splitting.split(batch, [count * size, samples - count * size])
        return [(count, most), (1, rest)]

    def _engine(self, micro: Microbatches) -> Engine:
        key = (len(micro.batches), micro.shapes)
        if key not in self._engines:
            while len(self._engines) >= _KEPT_ENGINES:
                self._engines.pop(next(iter(self._engines)))
            self._engines[key] = Engine(
                self.parts,
                self.stages,
                self._boundaries(micro.shapes, is_training=True),
                self.schedule,
                len(micro.batches),
                self.group,
                self.stopwatch,
            )
        return self._engines[key]

    def _microbatches(self, batches: list[Any], function: calling.Function) -> Microbatches:
        seed = (self._seed * 1_000_003 + self._steps) * 1_009 % (1 << 62)
        return Microbatches(function, batches, self._call, seed, self.device)

    def _boundaries(self, shapes: Any, is_training: bool = False) -> list[tuple[Tensor, ...]]:
        """What each stage but the last makes, without content."""
        tensors = tuple(torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes)
        found = []
        with torch.set_grad_enabled(is_training):
            for part in self._shapes_of[:-1]:
                part.train(is_training)
                try:
                    tensors = tuple(made.contiguous() for made in part(*tensors))
                except (RuntimeError, NotImplementedError) as error:
                    raise PipelineError(
                        f"what a stage makes cannot be known beforehand: {error}",
                        "keep tensors that layers need as buffers (register_buffer)",
                    ) from error
                tensors = tuple(t.detach().requires_grad_(t.requires_grad) for t in tensors)
                found.append(tensors)
        return found

    def _receive(self, stage: int, shapes: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        tensors = tuple(
            torch.empty(like.shape, dtype=like.dtype, device=self.device) for like in shapes
        )
        for tensor in tensors:
            dist.recv(tensor, self._global_rank(stage), group=self.group)
        return tensors

    def _send(self, stage: int, tensors: tuple[Tensor, ...]) -> None:
        for tensor in tensors:
            dist.send(tensor, self._global_rank(stage), group=self.group)

    def _global_rank(self, stage: int) -> int:
        rank = self.schedule.rank_of(stage, self.ranks)
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _from_last(self, value: Tensor) -> None:
        dist.broadcast(value, self._global_rank(self.stages - 1), group=self.group)


def _together(root: fx.GraphModule, parts: list[nn.Module]) -> nn.Module:
    """The parts' layers in one module, under the names that the model gives them."""
    graph = fx.Graph()
    for part in parts:
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                if node.op in ("call_module", "get_attr"):
                    graph.create_node(node.op, node.target)
    graph.output(None)
    return fx.GraphModule(root, graph, "Stages")


def _plain(value: Any) -> Any:
    """Tensors of one number as numbers, others on the CPU."""
    if isinstance(value, Tensor):
        return value.item() if value.dim() == 0 else value.cpu()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_plain(each) for each in value)
    return value
