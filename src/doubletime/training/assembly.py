"""A task's model and optimizer, as the switches of a run change them."""

from __future__ import annotations

import os
import shutil

import torch
from torch import nn

from doubletime.errors import TaskError, TrainingError
from doubletime.training import layerwise
from doubletime.training.activations import recompute_activations
from doubletime.training.axes import Axes
from doubletime.training.switches import Switches
from doubletime.training.sync_batchnorm import SyncBatchNorm
from doubletime.training.task import Task

_COMPILERS = ("g++", "clang++", "c++")


def model_of(task: Task, switches: Switches, axes: Axes) -> nn.Module:
    """The task's model, not divided among ranks yet.

    Raises:
        TaskError: if it is no module, or has no parameters that want a gradient.
        TrainingError: if a switch does not fit it.
    """
    model: object = task.model()
    if not isinstance(model, nn.Module):
        raise TaskError(
            f"model() of {task.name} returned a {type(model).__name__}, no torch.nn.Module",
            "return the model from model()",
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TaskError(
            f"the model of {task.name} has no parameters to train",
            "give it layers with parameters, with requires_grad",
        )
    if switches.sync_batchnorm:
        model = SyncBatchNorm.convert(model)
    for module in model.modules():
        if isinstance(module, SyncBatchNorm) and module.group is None:
            module.group = axes.data_group  # others have the same samples, or other layers
    if switches.checkpoint_activations:
        recompute_activations(model)
    return model


def compile_model(model: nn.Module, device: torch.device) -> None:
    """Compile the model at its first call; in place.

    Not what DistributedDataParallel puts around it, whose messages are none of the compiler's business: it
    cuts its graphs so that gradients are sent while the rest is computed all the same.

    Args:
        model: itself, not what `parallelize` returned.
        device: where it computes.

    Raises:
        TrainingError: if that needs a compiler which is not there.
    """
    compilers = (os.environ.get("CXX"), *_COMPILERS)
    if device.type == "cpu" and not any(name and shutil.which(name) for name in compilers):
        raise TrainingError(
            "--compile needs a C++ compiler for models on the CPU, and there is none",
            "install g++, or leave out --compile",
        )
    model.compile()


def optimizer_of(task: Task, model: nn.Module, switches: Switches) -> torch.optim.Optimizer:
    """The task's optimizer over the model's parameters, or the one in its place."""
    optimizer = task.optimizer(model.parameters())
    if switches.optimizer is None:
        return optimizer
    return layerwise.replace(switches.optimizer, optimizer)
