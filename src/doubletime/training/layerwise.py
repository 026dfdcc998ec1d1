"""Optimizers for very large batches, which give each layer a learning rate of its own.

Both scale a layer's update to the norm of its weights, so that no layer moves too far at the large rates
that large batches want. Vectors, that is biases and the scales of normalizations, get the plain update and
no weight decay, as in the published implementations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from doubletime.errors import TrainingError

_Groups = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class _Layerwise(torch.optim.Optimizer, ABC):
    """What both share: the walk over parameters, and numbers that are in range."""

    def __init__(self, params: _Groups, defaults: dict[str, Any]) -> None:
        for name in ("lr", "weight_decay", "eps", "momentum", "trust"):
            if name in defaults and not defaults[name] >= 0:
                raise TrainingError(f"{name} is {defaults[name]!r}", f"give {name} 0 or more")
        for beta in (*defaults.get("betas", ()), defaults.get("momentum", 0.0)):
            if not 0 <= beta < 1:
                raise TrainingError(f"{beta!r} is no share of what was before", "give 0 to below 1")
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group, self.state[parameter])
        return loss

    @abstractmethod
    def _update(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        """Update one parameter in place."""


class Lars(_Layerwise):
    """Layer-wise adaptive rate scaling: SGD whose rate in each layer follows from two norms.

    With weights w and gradient g of a layer: rate = trust · ‖w‖ / (‖g‖ + weight_decay · ‖w‖), where both
    norms are above 0, else 1; v = momentum · v + lr · rate · (g + weight_decay · w); w = w - v.
    Source: You, Gitman, Ginsburg 2017 (arXiv:1708.03888), algorithm 1.

    Args:
        params: as for any optimizer.
        lr: the rate of all layers; large, as `trust` is small.
        momentum: how much of the velocity is kept.
        weight_decay: of matrices and kernels.
        trust: how far a layer may move, as a share of its norm.
    """

    def __init__(
        self,
        params: _Groups,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        )

    def _update(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        direction, rate = gradient, 1.0
        if parameter.ndim > 1:
            decay = group["weight_decay"]
            weights, gradients = _norm(parameter), _norm(gradient)
            if weights > 0 and gradients > 0:
                rate = group["trust"] * weights / (gradients + decay * weights)
            if decay:
                direction = gradient.add(parameter, alpha=decay)
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(parameter)
        velocity: Tensor = state["velocity"]
        velocity.mul_(group["momentum"]).add_(direction, alpha=group["lr"] * rate)
        parameter.sub_(velocity)


class Lamb(_Layerwise):
    """Adam whose update in each layer is scaled to the norm of the layer's weights.

    With m and v as in Adam, both corrected for their start at 0, and weights w of a layer:
    u = m / (sqrt(v) + eps) + weight_decay · w; w = w - lr · ‖w‖ / ‖u‖ · u, where both norms are above 0, else
    w - lr · u. Source: You et al. 2020 (arXiv:1904.00962), algorithm 2, phi the identity.

    Args:
        params: as for any optimizer.
        lr: the share of its norm by which a layer moves in a step.
        betas: how much of the means of gradients and of their squares is kept.
        eps: keeps the quotient finite.
        weight_decay: of matrices and kernels.
    """

    def __init__(
        self,
        params: _Groups,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def _update(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        if "mean" not in state:
            state["steps"] = 0
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        first, second = group["betas"]
        state["steps"] += 1
        mean: Tensor = state["mean"]
        square: Tensor = state["square"]
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = square.sqrt().div_((1 - second ** state["steps"]) ** 0.5).add_(group["eps"])
        update = mean.div(root).div_(1 - first ** state["steps"])
        rate = 1.0
        if parameter.ndim > 1:
            if group["weight_decay"]:
                update.add_(parameter, alpha=group["weight_decay"])
            weights, updates = _norm(parameter), _norm(update)
            if weights > 0 and updates > 0:
                rate = weights / updates
        parameter.sub_(update, alpha=group["lr"] * rate)


def replace(name: str, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """An optimizer of this name, with the groups and the numbers of another where it knows them.

    Args:
        name: "lars" or "lamb".
        optimizer: as a task made it, over its parameters.
    """
    kind: type[Lars | Lamb] = Lars if name == "lars" else Lamb
    known = {"lars": ("momentum",), "lamb": ("betas",)}[name]
    groups = [
        {key: group[key] for key in ("params", "lr", "weight_decay", *known) if key in group}
        for group in optimizer.param_groups
    ]
    for group in groups:
        if not group.get("momentum", 1):
            del group["momentum"]  # a task's plain SGD: here it is wanted
    return kind(groups, lr=optimizer.param_groups[0].get("lr", 1.0))


def _norm(tensor: Tensor | nn.Parameter) -> float:
    """Over all elements, on all ranks that hold some."""
    norm = torch.linalg.vector_norm(tensor)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
