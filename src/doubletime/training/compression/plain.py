"""Gradients as they are, by a reduction algorithm of one's choice."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from doubletime.training.compression.channel import Channel
from doubletime.training.compression.residuals import Residuals


class Plain:
    """Nothing is left out, and nothing kept."""

    def __init__(self) -> None:
        self.residuals: Residuals | None = None

    def average(
        self, channel: Channel, parameters: Sequence[nn.Parameter], gradients: Tensor
    ) -> None:
        """The mean over the ranks of a bucket's gradients, flat, in place."""
        del parameters
        channel.mean(gradients)
