"""Tensors of which ranks may hold parts, made whole."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU, which nothing changes any more; collective where ranks hold parts.

    Args:
        tensors: by name, the same names on all ranks that hold parts of them.
    """
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)
        .detach()
        .to("cpu", copy=True)
        for name, tensor in tensors.items()
    }
