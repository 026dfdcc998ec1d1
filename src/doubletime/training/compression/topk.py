"""The largest elements only: indices and values of a share of the gradients, with error feedback.

Source: Aji & Heafield, EMNLP 2017 (arXiv:1704.05021); Lin et al., ICLR 2018 (arXiv:1712.01887).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from doubletime.training.compression.channel import Channel
from doubletime.training.compression.residuals import Residuals

_SAMPLE, _PIECE = 1 << 14, 1 << 16
_MARGIN = 1.5  # of the sample, so much more than the share is taken for candidates


class TopK:
    """Each rank sends its own largest elements; what it does not send it keeps.

    Args:
        share: of a bucket's elements, above 0 and at most 1; at least one element is sent.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self.residuals = Residuals()

    def average(
        self, channel: Channel, parameters: Sequence[nn.Parameter], gradients: Tensor
    ) -> None:
        """The mean over the ranks of a bucket's gradients, flat, in place."""
        unsent = self.residuals.of(parameters, gradients).add_(gradients)
        count = max(1, math.ceil(self._share * gradients.numel()))
        indices = largest(unsent, count)
        values = unsent[indices]
        unsent[indices] = 0
        narrow = torch.int32 if gradients.numel() < 1 << 31 else torch.int64
        split = count * narrow.itemsize
        message = torch.cat([indices.to(narrow).view(torch.uint8), values.view(torch.uint8)])
        gradients.zero_()
        # One rank after the other, so that all ranks add in one order.
        for row in channel.all_gather(message):
            theirs = row[:split].clone().view(narrow).to(torch.int64)
            gradients.index_add_(0, theirs, row[split:].clone().view(gradients.dtype))
        gradients.div_(channel.world_size)


def largest(numbers: Tensor, count: int) -> Tensor:
    """The indices of the elements of largest magnitude; what is no number counts as largest. Pure.

    Most elements are left out by a threshold that a sample gives, which is faster than to order them all,
    and as exact.

    Args:
        numbers: flat.
        count: how many, at least 1.

    Returns:
        Int64, (count,), in no order.
    """
    total = numbers.numel()
    if total <= 4 * _SAMPLE or count > total // 4:
        return _ordered(numbers, count)
    sample = numbers[:: total // _SAMPLE].abs()
    wanted = min(sample.numel(), math.ceil(_MARGIN * sample.numel() * count / total) + 8)
    threshold = torch.topk(sample, wanted).values[-1]
    # In pieces, which stay in the processor's cache.
    places = [
        torch.nonzero(~(piece.abs() < threshold)).view(-1).add_(number * _PIECE)
        for number, piece in enumerate(numbers.split(_PIECE))
    ]
    candidates = torch.cat(places)
    if not count <= candidates.numel() <= total // 2:
        return _ordered(numbers, count)
    return candidates[_ordered(numbers[candidates], count)]


def _ordered(numbers: Tensor, count: int) -> Tensor:
    return torch.topk(numbers.abs(), count, sorted=False).indices
