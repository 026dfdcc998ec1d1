"""Where a divided stretch of a model begins and ends: what is exchanged forward and backward.

Shoeybi et al., "Megatron-LM", arXiv:1909.08053 (2019), figure 3: f and g.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard


def enter(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The same tensor; what the ranks' parts want of it, its gradient, is summed over them."""
    whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return whole.to_local(grad_placements=[Partial()])


def total(part: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum of all ranks' parts, on every rank."""
    parts = DTensor.from_local(part, mesh, [Partial()], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def gather(part: Tensor, mesh: DeviceMesh, dim: int) -> Tensor:
    """All ranks' parts one after the other along `dim`, on every rank."""
    dim %= part.ndim
    parts = DTensor.from_local(part, mesh, [Shard(dim)], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def own_part(whole: Tensor, mesh: DeviceMesh, dim: int) -> Tensor:
    """This rank's part of a tensor that all ranks have alike and need no gradient of."""
    return whole.chunk(mesh.size(), dim)[mesh.get_local_rank()]


def dropout(x: Tensor, layer: nn.Module, mesh: DeviceMesh, dim: int) -> Tensor:
    """Drop out units of a part as one process would drop them out of the whole.

    Every rank draws for the whole tensor and keeps its part of it: so ranks that share their seed
    drop units independently of each other, and go on with the same random numbers.

    Args:
        x: this rank's part, along `dim`.
        layer: one of torch's dropouts that multiply by 0 or 1/(1-p).
        mesh: the ranks that have the parts.
        dim: the dimension that they divide.
    """
    if not layer.training:
        return x
    # In the part's order in memory, by which the layer draws its random numbers.
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    shape = [x.shape[each] * (mesh.size() if each == dim % x.ndim else 1) for each in order]
    whole = torch.ones(shape, dtype=x.dtype, device=x.device)
    factors = type(layer).forward(
        layer, whole.permute([order.index(each) for each in range(x.ndim)])
    )
    return x * own_part(factors, mesh, dim)
