"""A task's model as one rank of a mesh has it: what it trains, and how it computes with the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from doubletime.errors import MeshError
from doubletime.training import reproducible, session
from doubletime.training.axes import Axes
from doubletime.training.backward import Backward, Gradients
from doubletime.training.checkpoint.exchange import of_all
from doubletime.training.data import Batches, to_device
from doubletime.training.parallelize import divide_stages, parallelize, share_state
from doubletime.training.pipeline.pipeline import Pipeline
from doubletime.training.pipeline.schedules import DEFAULT
from doubletime.training.pipelined import PipelinedBackward
from doubletime.training.precision import LossScale
from doubletime.training.recipe import Recipe
from doubletime.training.task import Task
from doubletime.training.tensor_parallel.plan import Plan
from doubletime.training.tensor_parallel.written import plan_of
from doubletime.training.waiting import WaitingClock

_NOT_IN_A_PIPELINE = {
    "accumulate": "a pipeline divides each batch into microbatches already",
    "checkpoint_activations": "a model that computes its activations again cannot be cut",
    "compile": "stages are not compiled",
    "sync_batchnorm": "stages take mean and variance over microbatches",
}
_IN_A_PIPELINE_ONLY = ("schedule", "microbatches")


class Division:
    """One rank's part of a task's model; all ranks of the mesh must make it alike.

    Args:
        task: whose loss and metrics.
        model: the whole model; rank 0's parameters and buffers become everyone's.
        axes: of the mesh that divides it.
        recipe: the run's numbers and switches.
        batches: the training data.

    Attributes:
        part: what this rank has of the model, to be optimized and saved.
        wrapped: what the loss calls.
        parameters: how many are trained, on all ranks together.
        notices: what people must know of how it is divided.

    Raises:
        MeshError: if the model, or a switch of the recipe, does not go with the mesh.
    """

    def __init__(
        self, task: Task, model: nn.Module, axes: Axes, recipe: Recipe, batches: Batches
    ) -> None:
        self._task, self._axes, self._batches = task, axes, batches
        self._switches = recipe.switches
        self._joined = session.current()
        self._pipeline: Pipeline | None = None
        self.notices: tuple[str, ...] = ()
        self.parameters = sum(each.numel() for each in model.parameters() if each.requires_grad)
        if axes.mesh.pp == 1:
            self._refuse_pipelines_switches()
        if axes.mesh.pp > 1:
            self._pipeline = self._piped(model, recipe.seed)
            self.part = self.wrapped = self._pipeline.module
            self.notices += self._pipeline.notices
        elif self._switches.reproducible:  # sums gradients itself
            self.part = self.wrapped = model.to(self._joined.device)
            share_state(model)
        else:
            self.part = model
            self.wrapped = parallelize(model, axes.mesh, tensor_parallel_plan=self._plan(model))

    def _refuse_pipelines_switches(self) -> None:
        for name in self._switches.turned():
            if name in _IN_A_PIPELINE_ONLY:
                raise MeshError(
                    f'--{name} is a pipeline\'s, and mesh "{self._axes.mesh}" has none',
                    f"leave out --{name}, or add pp: --mesh pp={max(2, self._axes.mesh.size)}",
                )

    def _piped(self, model: nn.Module, seed: int) -> Pipeline:
        mesh = self._axes.mesh
        for name in self._switches.turned():
            if name in _NOT_IN_A_PIPELINE:
                option = f"--{name.replace('_', '-')}"
                raise MeshError(
                    f'{option} does not go with mesh "{mesh}": {_NOT_IN_A_PIPELINE[name]}',
                    f"leave out {option}, or pp",
                )
        if mesh.fsdp > 1:
            raise MeshError(
                f'mesh "{mesh}" divides parameters of pipeline stages: fsdp does not go with pp',
                f"--mesh pp={mesh.pp},dp={mesh.data_size}"
                f"{f',tp={mesh.tp}' if mesh.tp > 1 else ''}, or leave out pp",
            )
        model = model.to(self._joined.device)
        share_state(model)
        pipeline = Pipeline(
            model,
            self._task.loss,
            to_device(self._batches.specimen(), self._joined.device),
            group=self._axes.sub_mesh("pp").get_group(),
            device=self._joined.device,
            schedule=self._switches.schedule or DEFAULT,
            micro_batches=self._switches.microbatches or None,
            seed=seed + self._axes.data_rank,  # what the loss draws is drawn alike along pp and tp
        )
        if mesh.tp > 1:
            styles = self._task.tensor_parallel_plan(model)
            plan_of(
                model, mesh.tp, styles
            )  # a model that cannot be divided is refused by all ranks
            plans = divide_stages(list(pipeline.parts.values()), self._axes, styles)
            self._tell_of_stages(dict(zip(pipeline.parts, plans, strict=True)))
        return pipeline

    def _tell_of_stages(self, plans: Mapping[int, Plan | None]) -> None:
        """How each is divided along tp; other ranks' too, as rank 0 alone is heard; collective.

        Raises:
            MeshError: if none is.
        """
        mine = {number: plan and plan.describe() for number, plan in plans.items()}
        told = {number: text for rank in of_all(mine) for number, text in rank.items()}
        if not any(told.values()):
            raise MeshError(
                f"no stage of the {len(told)} has a layer that can be divided along tp",
                "leave tp out of the mesh, or take fewer stages: of a pair of layers both must be in one",
            )
        for number, text in sorted(told.items()):
            if text is None:
                text = "no layer can be: all ranks along tp hold and compute all of it"
            self.notices += (f"tp={self._axes.mesh.tp} divides layers of stage {number}:\n{text}",)

    def _plan(self, model: nn.Module) -> Plan | None:
        """How layers are divided along tp, which people are told."""
        size = self._axes.mesh.tp
        if size == 1:
            return None
        plan = plan_of(model, size, self._task.tensor_parallel_plan(model))
        self.notices += (f"tp={size} divides layers:\n{plan.describe()}",)
        return plan

    def backward(self, scale: LossScale, clock: WaitingClock) -> Gradients:
        """What computes the gradients of each step."""
        if self._pipeline is not None:
            return PipelinedBackward(
                self._pipeline, self._batches, self._switches, scale, self._axes.data_group
            )
        kind = reproducible.ReproducibleBackward if self._switches.reproducible else Backward
        return kind(self._task.loss, self.wrapped, self._batches, self._switches, scale, clock)

    def bubble(self) -> str | None:
        """How long a pipeline's ranks have waited for each other since this was last asked; collective.

        Returns:
            A line for people; None where there is no pipeline.
        """
        if self._pipeline is None:
            return None
        found, pipeline = self._pipeline.bubble(), self._pipeline
        return (
            f"stages waited for each other {found.share:.0%} of the time: {pipeline.schedule.name}, "
            f"{pipeline.micro_batches} microbatches; {found.expected:.0%} where all take equally long"
        )

    def train(self, is_training: bool = True) -> None:
        """Put this rank's layers into training or evaluation mode."""
        self.wrapped.train(is_training)
        if self._pipeline is not None:
            for stage in self._pipeline.parts.values():
                stage.train(is_training)

    def metrics(self, batch: Any) -> Mapping[str, Tensor | float]:
        """The task's, of a batch; all ranks along pp and tp must ask for the same."""
        if self._pipeline is not None:
            found: Mapping[str, Tensor | float] = self._pipeline.forward(batch, self._task.metrics)
            return found
        return self._task.metrics(self.part, batch)
