"""Several steps of each rank by itself, then one message: local SGD, for slow links.

Ranks start a round with the same parameters, make so many steps on their own samples, and meet: the mean
of their parameters becomes everyone's (Stich 2019; after a synchronous start it is the post-local SGD of
Lin et al. 2020, arXiv:1808.07217). Or the mean of how far they have come is the gradient of an outer
step of SGD with Nesterov's momentum (DiLoCo: Douillard et al. 2023, arXiv:2311.08105).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from doubletime.training.local_steps import LocalSteps


class LocalSGD:
    """Counts a run's steps, and lets ranks meet where a round ends.

    Args:
        steps: how.
        model: this rank's, not wrapped.
        average: makes a flat tensor the mean over the ranks, in place.
    """

    def __init__(
        self, steps: LocalSteps, model: nn.Module, average: Callable[[Tensor], None]
    ) -> None:
        self._steps, self._average = steps, average
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._buffers = [each for each in model.buffers() if each.is_floating_point()]
        self._made = self._since = 0
        self._start: list[Tensor] = []
        self._velocity: list[Tensor] = []

    @property
    def is_apart(self) -> bool:
        """Whether the next step is this rank's own."""
        return self._made >= self._steps.after

    @torch.no_grad()
    def before_step(self) -> None:
        """A step is about to be made."""
        if self.is_apart and not self._start and not self._steps.is_mean:
            self._start = [parameter.detach().clone() for parameter in self._parameters]

    def after_step(self) -> None:
        """A step was made; collective."""
        if self.is_apart:
            self._since += 1
        self._made += 1
        if self._since == self._steps.every:
            self.meet()

    @torch.no_grad()
    def meet(self) -> None:
        """End the round, wherever it is; collective. Afterwards all ranks have the same parameters."""
        if not self._since:
            return
        self._since = 0
        means = self._means([*self._parameters, *self._buffers])
        for buffer, mean in zip(self._buffers, means[len(self._parameters) :], strict=True):
            buffer.copy_(mean)
        if self._steps.is_mean:
            for parameter, mean in zip(self._parameters, means, strict=False):
                parameter.copy_(mean)
            return
        if not self._velocity:
            self._velocity = [torch.zeros_like(start) for start in self._start]
        momentum, lr = self._steps.outer_momentum, self._steps.outer_lr
        for parameter, start, velocity, mean in zip(
            self._parameters, self._start, self._velocity, means, strict=False
        ):
            gradient = start - mean
            velocity.mul_(momentum).add_(gradient)
            start.sub_(gradient.add_(velocity, alpha=momentum), alpha=lr)
            parameter.copy_(start)

    def state(self) -> dict[str, Any]:
        """What the next round begins with, where one has just ended; the same on all ranks."""
        return {"made": self._made, "velocity": self._velocity}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with the parameters as they are."""
        self._made, self._since, self._start = int(state["made"]), 0, []
        self._velocity = [
            each.to(parameter.device)
            for each, parameter in zip(state["velocity"], self._parameters, strict=False)
        ]

    def _means(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Their means over the ranks, in one message for each type."""
        found: dict[int, Tensor] = {}
        numbered = sorted(enumerate(tensors), key=lambda each: str(each[1].dtype))
        for _, same in itertools.groupby(numbered, key=lambda each: each[1].dtype):
            group = list(same)
            flat = torch.cat([tensor.detach().reshape(-1) for _, tensor in group])
            self._average(flat)
            parts = flat.split([tensor.numel() for _, tensor in group])
            for (number, tensor), part in zip(group, parts, strict=True):
                found[number] = part.view(tensor.shape)
        return [found[number] for number in range(len(tensors))]
