"""Error feedback: what a rank has not sent of its gradients, added to the next ones.

With it every gradient arrives sooner or later, whatever the compression leaves out of one step
(Seide et al. 2014; Karimireddy et al., arXiv:1901.09847).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class Residuals:
    """For each parameter what is still to be sent of its gradients.

    DistributedDataParallel puts gradients together in buckets, and divides them anew after its first
    step, so the memory lies as the buckets do and belongs to the parameters.
    """

    def __init__(self) -> None:
        self._flats: dict[tuple[nn.Parameter, ...], Tensor] = {}
        self._parts: dict[nn.Parameter, Tensor] = {}

    def of(self, parameters: Sequence[nn.Parameter], like: Tensor) -> Tensor:
        """What is kept for a bucket, flat; to be changed in place.

        Args:
            parameters: of the bucket, in its order.
            like: the bucket's gradients, flat.
        """
        key = tuple(parameters)
        flat = self._flats.get(key)
        if flat is None:
            flat = torch.zeros_like(like)
            here = set(key)
            self._flats = {
                other: kept for other, kept in self._flats.items() if here.isdisjoint(other)
            }
            for parameter, part in zip(key, self._split(key, flat), strict=True):
                if parameter in self._parts:
                    part.copy_(self._parts[parameter])
                self._parts[parameter] = part
            self._flats[key] = flat
        return flat

    def state(self, names: Mapping[nn.Parameter, str]) -> dict[str, Tensor]:
        """What is kept, by the parameters' names; not copied."""
        # A part is a view, and a view would be saved with all that it is a view of.
        return {names[each]: part.clone() for each, part in self._parts.items()}

    def load(self, state: Mapping[str, Tensor], names: Mapping[nn.Parameter, str]) -> None:
        """Keep this from now on, and nothing else."""
        self._flats.clear()
        self._parts = {
            parameter: state[name].to(parameter.device).flatten()
            for parameter, name in names.items()
            if name in state
        }

    def forget_spoilt(self) -> None:
        """Let go of what is not finite."""
        for part in self._parts.values():
            torch.nan_to_num_(part, nan=0.0, posinf=0.0, neginf=0.0)

    @staticmethod
    def _split(parameters: Sequence[nn.Parameter], flat: Tensor) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = flat.split([parameter.numel() for parameter in parameters])
        return parts
