"""Tensors of which ranks may hold parts, made whole."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist
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


def joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of all ranks, on rank 0; nothing on the others. Collective.

    Args:
        tensors: this rank's, as `whole` gives them; the same where several ranks have one.
    """
    everyone: list[dict[str, Tensor]] = [{} for _ in range(dist.get_world_size())]
    is_root = dist.get_rank() == 0
    dist.gather_object(dict(tensors), everyone if is_root else None)
    return {name: tensor for part in everyone for name, tensor in part.items()} if is_root else {}
