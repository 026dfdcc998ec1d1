"""PowerSGD: each matrix of gradients as the product of two thin ones, with error feedback.

Source: Vogels, Karimireddy & Jaggi, NeurIPS 2019 (arXiv:1905.13727), algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from doubletime.training.compression.channel import Channel
from doubletime.training.compression.residuals import Residuals

_LEAST_GAIN = 2  # a matrix whose thin ones are not so many times smaller is sent as it is


class PowerSGD:
    """See the module.

    Args:
        rank: columns of the thin matrices, at least 1.
        parameters: all that are trained, in one order on all ranks.
    """

    def __init__(self, rank: int, parameters: Sequence[nn.Parameter]) -> None:
        self._rank = rank
        self._numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self.residuals = Residuals()
        self._right: dict[nn.Parameter, Tensor] = {}

    def average(
        self, channel: Channel, parameters: Sequence[nn.Parameter], gradients: Tensor
    ) -> None:
        """The mean over the ranks of a bucket's gradients, flat, in place."""
        residual = self.residuals.of(parameters, gradients)
        residual.add_(gradients)
        sizes = [parameter.numel() for parameter in parameters]
        parts = zip(parameters, residual.split(sizes), gradients.split(sizes), strict=True)
        thin: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        whole: list[tuple[Tensor, Tensor]] = []
        for parameter, wanted, sent in parts:
            shape = _shape(parameter, self._rank)
            if shape is None:
                whole.append((wanted, sent))
            else:
                thin.append((parameter, wanted.view(shape), sent.view(shape)))
        lefts = [wanted @ self._right_of(parameter, wanted) for parameter, wanted, _ in thin]
        first = _mean(channel, [*lefts, *(wanted for wanted, _ in whole)])
        for (wanted, sent), mean in zip(whole, first[len(thin) :], strict=True):
            sent.copy_(mean)
            wanted.zero_()
        if not thin:
            return
        lefts = [_orthonormal(left) for left in first[: len(thin)]]
        rights = _mean(
            # (MᵀP as (PᵀM)ᵀ, which reads M by rows)
            channel,
            [(left.T @ wanted).T for (_, wanted, _), left in zip(thin, lefts, strict=True)],
        )
        for (parameter, wanted, sent), left, right in zip(thin, lefts, rights, strict=True):
            torch.matmul(left, right.T, out=sent)
            wanted.sub_(sent)
            self._right[parameter] = right

    def state(self, names: Mapping[nn.Parameter, str]) -> dict[str, Tensor]:
        """The right matrices, with which the next step begins; the same on all ranks."""
        return {names[parameter]: right.clone() for parameter, right in self._right.items()}

    def load(self, state: Mapping[str, Tensor], names: Mapping[nn.Parameter, str]) -> None:
        """Begin the next step with these; with none, at random, alike on all ranks."""
        self._right = {
            parameter: state[name].to(parameter.device)
            for parameter, name in names.items()
            if name in state
        }

    def _right_of(self, parameter: nn.Parameter, matrix: Tensor) -> Tensor:
        right = self._right.get(parameter)
        if right is None:
            generator = torch.Generator().manual_seed(self._numbers[parameter])
            right = torch.randn(matrix.shape[1], self._rank, generator=generator).to(matrix)
        return right


def _shape(parameter: nn.Parameter, rank: int) -> tuple[int, int] | None:
    """As which matrix a parameter's gradient is sent in two; None where that gains little."""
    if parameter.dim() < 2 or not parameter.is_contiguous():
        return None
    rows = parameter.shape[0]
    columns = parameter.numel() // max(1, rows)
    gains = _LEAST_GAIN * rank * (rows + columns) <= rows * columns
    return (rows, columns) if gains else None


def _orthonormal(matrix: Tensor) -> Tensor:
    """An orthonormal basis of the columns' space, or more where they do not span as much."""
    wide = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    basis: Tensor = torch.linalg.qr(wide).Q.to(matrix.dtype)
    return basis


def _mean(channel: Channel, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor's mean over the ranks, in one message."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    channel.mean(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
