"""What a checkpoint holds: models and optimizers as named tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from doubletime.errors import CheckpointError
from doubletime.training.axes import Axes
from doubletime.training.checkpoint.exchange import of_all

Stored = Mapping[str, TensorStorageMetadata | BytesStorageMetadata]

RUN = "run"  # an object: whatever is no tensor, as rank 0 has it
_RANK, _MODEL, _OPTIMIZER = "rank/", "model/", "optimizer/"
_NAMED = 3  # so many keys of each kind are named


@dataclass(frozen=True)
class Parts:
    """What is trained, and what trains it; what is None is not saved, and not looked for.

    Attributes:
        model, optimizer, lr_schedule: of this rank.
        axes: of the mesh that divides the model; data parallel over all ranks by default.
    """

    model: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    lr_schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    axes: Axes | None = None

    @property
    def is_staged(self) -> bool:
        """Whether other ranks have other layers."""
        return self.axes is not None and self.axes.mesh.pp > 1

    @property
    def bare_model(self) -> nn.Module | None:
        """The model itself where it is wrapped for its gradients to be averaged."""
        if isinstance(self.model, DistributedDataParallel):
            wrapped: nn.Module = self.model.module
            return wrapped
        return self.model


def rank_key(rank: int) -> str:
    """The name of the object that one rank alone saves."""
    return f"{_RANK}{rank}"


def rank_keys(stored: Stored) -> list[str]:
    """Those of all ranks that saved."""
    return [key for key in stored if key.startswith(_RANK)]


def flatten(
    parts: Parts, run: Mapping[str, Any], own: Mapping[str, Any], rank: int
) -> dict[str, Any]:
    """This rank's part of a checkpoint: tensors, not copied, and objects, by name; collective.

    What all ranks have alike stands under the same name on all, and is written once, by one of them.
    Buffers are those of the ranks with the first samples: training begins each step with those.

    Args:
        parts: what is trained.
        run: what else belongs to the run; rank 0's is saved.
        own: what belongs to this rank.
        rank: this one.
    """
    state: dict[str, Any] = {rank_key(rank): dict(own)}
    objects: dict[str, Any] = {"run": dict(run)}
    model = parts.bare_model
    if model is not None:
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        is_first = rank == 0 if parts.axes is None else parts.axes.data_rank == 0
        for name, value in model.state_dict().items():
            if is_first or name in parameters or isinstance(value, DTensor):
                state[_MODEL + name] = value
    if parts.optimizer is not None:
        names, values = _names(parts), {}
        for parameter, entries in parts.optimizer.state.items():
            name = names[id(parameter)]
            tensors = {key: each for key, each in entries.items() if isinstance(each, Tensor)}
            state |= {f"{_OPTIMIZER}{name}/{key}": each for key, each in tensors.items()}
            values[name] = {key: each for key, each in entries.items() if key not in tensors}
        objects["optimizer_kind"] = type(parts.optimizer).__name__
        objects["optimizer"] = _of_all_stages(parts, {"groups": _groups(parts), "values": values})
    if parts.lr_schedule is not None:
        objects["lr_schedule"] = parts.lr_schedule.state_dict()
    if rank == 0:
        state[RUN] = objects
    return state


def changes_with_steps_only(parts: Parts) -> frozenset[str]:
    """The names of what nothing but `optimizer.step()` changes: trained parameters, and its own state."""
    found: set[str] = set()
    model = parts.bare_model
    if model is not None and parts.optimizer is not None:
        trained = {id(each) for group in parts.optimizer.param_groups for each in group["params"]}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if id(parameter) in trained:
                found.add(_MODEL + name)
    if parts.optimizer is not None:
        names = _names(parts)
        for each, entries in parts.optimizer.state.items():
            found.update(f"{_OPTIMIZER}{names[id(each)]}/{key}" for key in entries)
    return frozenset(found)


def shapes(parts: Parts) -> dict[str, str] | None:
    """Type and shape of each tensor of the model, on all ranks; None without a model. Collective."""
    model = parts.bare_model
    if model is None:
        return None
    here = {name: _shape(value) for name, value in model.state_dict().items()}
    if not parts.is_staged:
        return here
    return {name: shape for stage in of_all(here) for name, shape in stage.items()}


def check_model(here: Mapping[str, str] | None, stored: Stored, where: str) -> None:
    """Whether the model is the one that was saved, before anything is changed.

    Args:
        here: its `shapes`.
        stored: what the checkpoint holds.
        where: to name it.

    Raises:
        CheckpointError: if it is not; it names what is missing, unexpected or of another shape.
    """
    if here is None:
        return
    saved = {
        key.removeprefix(_MODEL): _stored_shape(value)
        for key, value in stored.items()
        if key.startswith(_MODEL)
    }
    found = differences(here, saved)
    if found:
        raise CheckpointError(
            f"{where} is of another model: {'; '.join(found)}",
            "train the model that it was made of, or begin anew: --resume never, under another --name",
        )


def differences(here: Mapping[str, str], saved: Mapping[str, str]) -> list[str]:
    """How the names and shapes of two models differ; empty where they do not. Pure.

    Args:
        here: the shape of each tensor of the model at hand.
        saved: the same of the checkpoint.
    """
    found = []
    for what, names in (
        ("it lacks", [name for name in here if name not in saved]),
        ("it has, and this model lacks,", [name for name in saved if name not in here]),
    ):
        if names:
            found.append(f"{what} {_some(names)}")
    other = [
        f"{name} ({saved[name]} there, {shape} here)"
        for name, shape in here.items()
        if name in saved and saved[name] != shape
    ]
    if other:
        found.append(f"of another shape: {_some(other)}")
    return found


def targets(parts: Parts, stored: Stored) -> dict[str, Any]:
    """Room for what is to be read: fresh tensors, sharded as the parts are here."""
    found: dict[str, Any] = {RUN: None}
    model = parts.bare_model
    if model is not None:
        for name, value in model.state_dict().items():
            is_tensor = isinstance(value, Tensor)
            found[_MODEL + name] = torch.empty_like(value) if is_tensor else None
    if parts.optimizer is not None:
        parameters = _parameters(parts)
        for key, about in stored.items():
            if key.startswith(_OPTIMIZER) and isinstance(about, TensorStorageMetadata):
                name = key.removeprefix(_OPTIMIZER).rpartition("/")[0]
                if parts.is_staged and name not in parameters:
                    continue  # another rank's
                found[key] = _room(parameters.get(name), about)
    return found


def apply(parts: Parts, loaded: Mapping[str, Any], where: str) -> None:
    """Give the parts what was read.

    Raises:
        CheckpointError: if it does not fit; `check_model` has been asked before.
    """
    objects = loaded[RUN]
    model, optimizer = parts.bare_model, parts.optimizer
    names = [group["params"] for group in _groups(parts)]
    saved = objects.get("optimizer")
    there = [] if saved is None else [group["params"] for group in saved["groups"]]
    kind = type(optimizer).__name__
    if optimizer is not None and objects.get("optimizer_kind", kind) != kind:
        before = objects["optimizer_kind"]
        raise CheckpointError(
            f"{where} was made with the optimizer {before}, this run has {kind}",
            f"train with {before}, or begin anew: --resume never, under another --name",
        )
    if optimizer is not None and not _are_of(names, there, parts):
        raise CheckpointError(
            f"{where} was made with an optimizer of other parameters",
            "give the optimizer the parameters in the groups that it had",
        )
    if parts.lr_schedule is not None and "lr_schedule" not in objects:
        raise CheckpointError(f"{where} was made without a learning rate schedule")
    # Nothing has changed so far.
    if model is not None:
        model.load_state_dict(_within(loaded, _MODEL))
    if optimizer is not None:
        tensors = _within(loaded, _OPTIMIZER)
        optimizer.load_state_dict(_optimizer_state(saved, tensors, names))
    if parts.lr_schedule is not None:
        parts.lr_schedule.load_state_dict(objects["lr_schedule"])


def _are_of(names: list[list[str]], there: list[list[str]], parts: Parts) -> bool:
    """Whether an optimizer's parameters are those that were saved, or this stage's of them, by group."""
    if len(names) != len(there):
        return False
    if parts.is_staged:
        return all(set(own) <= set(saved) for own, saved in zip(names, there, strict=True))
    return [sorted(own) for own in names] == [sorted(saved) for saved in there]


def _of_all_stages(parts: Parts, optimizer: dict[str, Any]) -> dict[str, Any]:
    """What is to be saved of the optimizers of all stages, as of one over the whole model."""
    if parts.axes is None or not parts.is_staged:
        return optimizer
    everyone = of_all(optimizer)
    stages = [everyone[rank] for rank in parts.axes.mesh.groups("pp")[0]]
    groups = [
        {**group[0], "params": [name for each in group for name in each["params"]]}
        for group in zip(*(stage["groups"] for stage in stages), strict=True)
    ]
    values = {name: entries for stage in stages for name, entries in stage["values"].items()}
    return {"groups": groups, "values": values}


def _optimizer_state(
    saved: Mapping[str, Any], tensors: Mapping[str, Tensor], names: list[list[str]]
) -> dict[str, Any]:
    """What an optimizer takes back, which knows its parameters by number, those of `names` in order."""
    own = [name for group in names for name in group]
    number_of = {name: number for number, name in enumerate(own)}
    state: dict[int, dict[str, Any]] = {}
    for name, entries in saved["values"].items():
        if name in number_of:
            state.setdefault(number_of[name], {}).update(entries)
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        state.setdefault(number_of[name], {})[entry] = tensor
    groups = [
        {**group, "params": [number_of[name] for name in of_group]}
        for group, of_group in zip(saved["groups"], names, strict=True)
    ]
    return {"state": state, "param_groups": groups}


def _groups(parts: Parts) -> list[dict[str, Any]]:
    """The optimizer's groups, parameters by name."""
    names = _names(parts)
    return [
        {**group, "params": [names[id(parameter)] for parameter in group["params"]]}
        for group in (parts.optimizer.param_groups if parts.optimizer is not None else ())
    ]


def _parameters(parts: Parts) -> dict[str, Tensor]:
    """The optimizer's parameters by name: the model's names, or their places in the groups."""
    model = parts.bare_model
    names = (
        {}
        if model is None
        else {id(parameter): name for name, parameter in model.named_parameters()}
    )
    return {
        names.get(id(parameter), f"group{place}.{number}"): parameter
        for place, group in enumerate(parts.optimizer.param_groups if parts.optimizer else ())
        for number, parameter in enumerate(group["params"])
    }


def _names(parts: Parts) -> dict[int, str]:
    return {id(parameter): name for name, parameter in _parameters(parts).items()}


def _room(parameter: Tensor | None, about: TensorStorageMetadata) -> Tensor:
    dtype = about.properties.dtype
    if isinstance(parameter, DTensor) and parameter.shape == about.size:
        return torch.empty_like(parameter, dtype=dtype)
    return torch.empty(about.size, dtype=dtype)


def _within(loaded: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        key.removeprefix(prefix): value for key, value in loaded.items() if key.startswith(prefix)
    }


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "object"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _stored_shape(about: TensorStorageMetadata | BytesStorageMetadata) -> str:
    if not isinstance(about, TensorStorageMetadata):
        return "object"
    return f"{str(about.properties.dtype).removeprefix('torch.')} {list(about.size)}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
