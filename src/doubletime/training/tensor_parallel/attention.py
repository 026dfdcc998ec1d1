"""torch's MultiheadAttention, each rank with its share of the heads."""

from __future__ import annotations

import functools
import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from doubletime.training.tensor_parallel.exchange import dropout, enter, gather, own_part, total
from doubletime.training.tensor_parallel.styles import distribute


class Heads(ParallelStyle):
    """Each rank projects, attends and projects back for its share of the heads; these are summed.

    The packed projection lies divided by rows, whichever head they are of; each forward gathers it
    and each backward scatters its gradient. All else a rank holds is its own heads' only.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        names = (
            "in_proj_weight",
            "in_proj_bias",
            "q_proj_weight",
            "k_proj_weight",
            "v_proj_weight",
        )
        distribute(module, device_mesh, {name: Shard(0) for name in names})
        distribute(module.out_proj, device_mesh, {"weight": Shard(1)})  # type: ignore[arg-type]
        module.forward = functools.partial(_attend, module, device_mesh)  # type: ignore[arg-type]
        # torch's fused layers, which would read the weights themselves, stand back where a hook is.
        module.register_forward_pre_hook(lambda *_: None)
        return module


def _attend(
    layer: nn.MultiheadAttention,
    mesh: DeviceMesh,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As nn.MultiheadAttention.forward: same arguments, same results on every rank."""
    del is_causal  # only says what attn_mask is
    is_batched = query.ndim == 3
    entered: dict[int, Tensor] = {}  # each tensor once: self-attention has but one
    for x in (query, key, value):
        if id(x) not in entered:
            inner = enter(x, mesh)
            if not is_batched:
                inner = inner.unsqueeze(0)
            elif not layer.batch_first:
                inner = inner.transpose(0, 1)
            entered[id(x)] = inner
    heads = layer.num_heads // mesh.size()
    parts = zip((query, key, value), _projections(layer, mesh), strict=True)
    q, k, v = (
        nn.functional.linear(entered[id(x)], weight, bias)
        .unflatten(-1, (heads, layer.head_dim))
        .transpose(1, 2)
        for x, (weight, bias) in parts
    )
    mask = _merged(layer, mesh, attn_mask, key_padding_mask, q)
    drops = layer.training and layer.dropout > 0
    weights = None
    if need_weights or drops:
        scores = (q * math.sqrt(1 / layer.head_dim)) @ k.transpose(-2, -1)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        if drops:
            weights = dropout(weights, nn.Dropout(layer.dropout), mesh, dim=1)
        attended = weights @ v
    else:
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    output = nn.functional.linear(attended.transpose(1, 2).flatten(-2), _own(layer.out_proj.weight))
    output = total(output, mesh)
    if layer.out_proj.bias is not None:
        output = output + layer.out_proj.bias
    # Places first in memory, as torch has it: a dropout that follows draws in memory's order.
    places_first = output.transpose(0, 1).contiguous()
    if not is_batched:
        output = places_first.squeeze(1)
    else:
        output = places_first.transpose(0, 1) if layer.batch_first else places_first
    if not need_weights or weights is None:
        return output, None
    by_head = gather(weights, mesh, dim=1)
    shown = by_head.mean(dim=1) if average_attn_weights else by_head
    return output, shown if is_batched else shown.squeeze(0)


def _projections(
    layer: nn.MultiheadAttention, mesh: DeviceMesh
) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias that make this rank's heads of queries, keys and values."""
    if layer._qkv_same_embed_dim:
        weights = _own_of_three(layer.in_proj_weight, mesh)
    else:
        rows = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
        weights = [_own(weight) for weight in rows]
    bias = cast("Tensor | None", layer.in_proj_bias)
    biases = [None] * 3 if bias is None else _own_of_three(bias, mesh)
    return list(zip(weights, biases, strict=True))


def _own_of_three(packed: Tensor, mesh: DeviceMesh) -> list[Tensor]:
    """This rank's rows of each third of a tensor that lies divided by rows."""
    whole = cast("DTensor", packed).redistribute(placements=[Replicate()])
    thirds = whole.to_local(grad_placements=[Partial()]).chunk(3)
    return [own_part(third, mesh, dim=0) for third in thirds]


def _own(parameter: Tensor) -> Tensor:
    """This rank's part of a parameter."""
    return cast("DTensor", parameter).to_local()


def _merged(
    layer: nn.MultiheadAttention,
    mesh: DeviceMesh,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    query: Tensor,
) -> Tensor | None:
    """What to add to this rank's scores, (batch or 1, heads or 1, targets or 1, sources)."""
    mask = None
    if attn_mask is not None:
        mask = _additive(attn_mask, query.dtype)
        if mask.ndim == 3:  # one for each head of each sample
            mask = own_part(mask.unflatten(0, (-1, layer.num_heads)), mesh, dim=1)
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, query.dtype)
        padding = padding[:, None, None] if padding.ndim == 2 else padding[None, None, None]
        mask = padding if mask is None else mask + padding
    return mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of truths, of what is not to be seen, as numbers to add."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
