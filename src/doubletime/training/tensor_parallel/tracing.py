"""What a model computes, as graphs of its layers, by torch.fx; nothing is run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import fx, nn


@dataclass(frozen=True)
class Traced:
    """A module whose forward could be followed.

    Attributes:
        prefix: of the names of its modules within the model: "" or with a dot at its end.
        module: which.
        graphs: one for training and one for evaluation; each with and without optional arguments,
            where there are such.
    """

    prefix: str
    module: nn.Module
    graphs: tuple[fx.Graph, ...]


class _Layers(fx.Tracer):
    """Follows a model down to torch's own layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether what the module computes stays one node."""
        del module_qualified_name
        return m.__module__.startswith("torch.nn") and type(m) is not nn.Sequential


def trace(model: nn.Module) -> list[Traced]:
    """The model where its forward can be followed, else whichever of its parts can be.

    A forward cannot be followed where it branches by the values it is given.
    """
    return list(_parts(model, ""))


def _parts(module: nn.Module, prefix: str) -> Iterator[Traced]:
    if module.__module__.startswith("torch.nn") and type(module) is not nn.Sequential:
        if not isinstance(module, nn.ModuleList | nn.ModuleDict):
            return
        graphs = None  # it has no forward
    else:
        graphs = _graphs(module)
    if graphs is not None:
        yield Traced(prefix, module, graphs)
        return
    for name, child in module.named_children():
        yield from _parts(child, f"{prefix}{name}.")


def _graphs(module: nn.Module) -> tuple[fx.Graph, ...] | None:
    """Its graphs, or None where fx cannot follow it."""
    found = []
    for is_training in (True, False):
        with _mode(module, is_training):
            for arguments in _variants(module):
                try:
                    found.append(_Layers().trace(module, concrete_args=arguments))
                except Exception:  # whatever the module's own code raises of the stand-ins it gets
                    return None
    return tuple(found)


def _variants(module: nn.Module) -> list[dict[str, Any]]:
    """Arguments to fix: none; and, where some are optional, those at their defaults."""
    optional = {
        name: parameter.default
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    return [{}, optional] if optional else [{}]


@contextmanager
def _mode(module: nn.Module, is_training: bool) -> Iterator[None]:
    """For a while, every module in training, or in evaluation."""
    before = [(each, each.training) for each in module.modules()]
    module.train(is_training)
    try:
        yield
    finally:
        for each, was_training in before:
            each.training = was_training
