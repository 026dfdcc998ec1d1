"""The mean of gradients in two hops of encoded numbers, the sums between them in full precision.

Each rank sends the p-th part of its gradients to each rank, which adds up what it gets, and sends the mean
to all. So numbers are rounded twice, however many ranks there are; an all_reduce of small numbers would
round at every addition. Both hops together send 2(p-1)/p of the encoded gradients, as an all_reduce does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from doubletime.training.compression.channel import Channel
from doubletime.training.compression.codec import Codec, Half, Int8
from doubletime.training.compression.residuals import Residuals

_BLOCK = 1024


class InHalf:
    """Half precision; nothing is kept, as what is rounded off is small and falls on either side.

    Args:
        dtype: `torch.float16` or `torch.bfloat16`.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._codec = Half(dtype)
        self.residuals: Residuals | None = None

    def average(
        self, channel: Channel, parameters: Sequence[nn.Parameter], gradients: Tensor
    ) -> None:
        """The mean over the ranks of a bucket's gradients, flat, in place."""
        del parameters
        share = -(-gradients.numel() // channel.world_size)
        two_hops(channel, self._codec, gradients, share)


class InInt8:
    """8 bits, with error feedback for both hops."""

    def __init__(self) -> None:
        self.residuals = Residuals()

    def average(
        self, channel: Channel, parameters: Sequence[nn.Parameter], gradients: Tensor
    ) -> None:
        """The mean over the ranks of a bucket's gradients, flat, in place."""
        share = -(-gradients.numel() // channel.world_size)
        block = min(_BLOCK, share)
        residual = self.residuals.of(parameters, gradients)
        two_hops(channel, Int8(block), gradients, -(-share // block) * block, residual)


def two_hops(
    channel: Channel, codec: Codec, flat: Tensor, share: int, residual: Tensor | None = None
) -> None:
    """The mean over the ranks, in place; the same bits on all.

    Args:
        channel: to the other ranks.
        codec: how numbers travel.
        flat: this rank's numbers.
        share: how many of them one rank adds up; `share` times the number of ranks is enough for all.
        residual: what was not sent before, replaced by what is not sent now: of this rank's numbers,
            and of the mean that this rank has rounded. None to forget it.
    """
    ranks = channel.world_size
    wide = torch.promote_types(flat.dtype, torch.float32)
    sent = _messages(codec, ranks, share, flat)
    numbers = _parts(flat if residual is None else residual.add_(flat), ranks, share)
    for part, message in zip(numbers, sent, strict=True):
        codec.encode(_filled(part, share), message)
    mean = torch.zeros(share, dtype=wide, device=flat.device)
    for message in channel.all_to_all(sent):
        for where, decoded in codec.decode(message, share, wide):
            mean[where] += decoded
    mean.div_(ranks)
    encoded = _messages(codec, 1, share, flat)[0]
    codec.encode(mean, encoded)
    if residual is not None:
        for part, message in zip(numbers, sent, strict=True):
            for where, decoded in codec.decode(message, share, flat.dtype):
                kept = part[where]
                kept.sub_(decoded[: kept.numel()])
        # The mean's error counts for all ranks: its owner makes up for all of them.
        for where, decoded in codec.decode(encoded, share, wide):
            kept = numbers[channel.rank][where]
            kept.add_(((mean[where] - decoded) * ranks)[: kept.numel()])
    for part, message in zip(_parts(flat, ranks, share), channel.all_gather(encoded), strict=True):
        for where, decoded in codec.decode(message, share, flat.dtype):
            room = part[where]
            room.copy_(decoded[: room.numel()])


def _messages(codec: Codec, count: int, share: int, like: Tensor) -> Tensor:
    # Zeroed: a codec may leave bytes at the end alone.
    return torch.zeros(count, codec.nbytes(share), dtype=torch.uint8, device=like.device)


def _parts(flat: Tensor, ranks: int, share: int) -> list[Tensor]:
    """What each rank adds up; the last ones may have less than a share, or nothing."""
    return [flat[rank * share : (rank + 1) * share] for rank in range(ranks)]


def _filled(part: Tensor, share: int) -> Tensor:
    missing = share - part.numel()
    return nn.functional.pad(part, (0, missing)) if missing else part
