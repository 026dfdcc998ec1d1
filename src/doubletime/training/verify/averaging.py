"""Is the gradient that a rank goes on with the mean of all ranks' own?"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from doubletime.training.session import Session


class Averaging:
    """Keeps this rank's own gradients as they are computed, and averages them a second time.

    By one plain all_reduce of float64, which shares nothing with the buckets, hooks and
    number formats by which training averages them.

    Args:
        model: on every rank, before it is wrapped.
        joined: the ranks.

    Attributes:
        distances: by parameter, over all steps so far, the largest ‖mean - exact mean‖ over the mean
            of the ranks' norms; see `distance.averaging_bound`.
    """

    def __init__(self, model: nn.Module, joined: Session) -> None:
        self._joined = joined
        self._parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self._own: dict[str, Tensor] = {}
        self.distances: dict[str, float] = {}
        for name, parameter in self._parameters.items():
            parameter.register_hook(lambda gradient, name=name: self._keep(name, gradient))

    def _keep(self, name: str, gradient: Tensor) -> None:
        self._own[name] = gradient.detach().double()

    def check(self) -> None:
        """Compare what this step's gradients have become; every rank must."""
        world_size = self._joined.world_size
        own = [
            self._own.get(name, torch.zeros_like(parameter, dtype=torch.float64))
            for name, parameter in self._parameters.items()
        ]
        norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in own])
        sums = torch.cat([norms, *(gradient.reshape(-1) for gradient in own)])
        dist.all_reduce(sums)
        means = (sums / world_size).split([len(own), *(gradient.numel() for gradient in own)])
        for size, mean, (name, parameter) in zip(
            means[0], means[1:], self._parameters.items(), strict=True
        ):
            if parameter.grad is None:
                continue
            apart = torch.linalg.vector_norm(parameter.grad.double().reshape(-1) - mean)
            distance = float(apart / size) if size else float(apart)
            self.distances[name] = max(distance, self.distances.get(name, 0.0))
        self._own.clear()
