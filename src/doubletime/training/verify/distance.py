"""How far two sets of tensors are from each other, and how far rounding may take them: pure.

What is compared is a model's state by name: its gradients, its parameters, its buffers.

Where the answer is wrong for a reason, a sample missing or a mean of means, the *first* digits
differ; where only the order of additions differs, the last ones do. A sum of n numbers, each rounded
to unit u, is off by at most about n·u·Σ|x| (Higham, Accuracy and Stability of Numerical Algorithms,
section 4.2), in practice by √n·u. A step of training passes through sums of some 10 to 10^6 numbers,
which puts float32 (u = 6e-8) at 1e-7 to 1e-5, and float64 (u = 1e-16) at 1e-16 to 1e-13. So half of
the digits, √ε, is far from both in float64: 1.5e-8.

In float32 it is not far enough for all: a unit of a ReLU whose input is 1e-8 may be on for one
order of additions and off for the other, which moves a gradient by a thousandth. That is as likely
as ε is large, so it is 2^29 times rarer in float64. Therefore the verdict is found in float64, where
the task can be carried out in it, and the distance in its own precision is told beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

_FLOOR = 2.0**-10


def distances(found: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> dict[str, float]:
    """Each tensor's relative distance ‖found - reference‖ / ‖reference‖, in the 2-norm.

    A tensor that is nearly zero beside the others (the gradient of a bias before a normalization is
    nothing but rounding) is measured by a thousandth of the norm that it would have, were it as large
    as the others: the denominator is at least 2^-10 · r · √n, for n numbers and r the root of the
    mean square over all floating tensors of the reference.

    Args:
        found: by name.
        reference: by name.

    Returns:
        By name: 0 for equal ones; infinity where one is missing, has another shape, or a number
        that is not finite.
    """
    floating = [tensor for tensor in reference.values() if tensor.is_floating_point()]
    numbers = sum(tensor.numel() for tensor in floating)
    square = sum(_norm(tensor) ** 2 for tensor in floating)
    typical = math.sqrt(square / numbers) if numbers else 0.0
    result = {}
    for name in [*reference, *(name for name in found if name not in reference)]:
        if name not in found or name not in reference:
            result[name] = math.inf
            continue
        result[name] = _distance(found[name], reference[name], typical)
    return result


def number_distance(found: float, reference: float) -> float:
    """The relative distance of two numbers; infinity where one is not finite."""
    return _distance(torch.tensor(found), torch.tensor(reference), 0.0)


def _distance(found: Tensor, reference: Tensor, typical: float) -> float:
    if found.shape != reference.shape:
        return math.inf
    apart = _norm(found.double() - reference.double())
    if apart == 0:
        return 0.0
    least = _FLOOR * typical * math.sqrt(reference.numel())
    size = max(_norm(reference), least)
    ratio = apart / size if size else math.inf
    return math.inf if math.isnan(ratio) else ratio


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.double()))


def tolerance(dtype: torch.dtype) -> float:
    """The relative distance up to which two computations of a step are called equal: √ε."""
    return math.sqrt(torch.finfo(dtype).eps)


def averaging_bound(ranks: int, dtype: torch.dtype) -> float:
    """How far a mean over ranks may be from the exact one, over the mean of the ranks' norms.

    Each of p numbers is divided (one rounding) and added (p - 1 roundings, in whatever order): p·ε/2
    to first order, relative to the mean of the magnitudes. Twice that is allowed, and one ε more.

    Args:
        ranks: p.
        dtype: of the gradients.
    """
    return (ranks + 1) * torch.finfo(dtype).eps
