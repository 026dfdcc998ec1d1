"""What each of torch's layers does to features that are divided among ranks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

CONVOLUTIONS: dict[type, int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
POOLS: dict[type, int] = {
    getattr(nn, f"{kind}Pool{n}d"): n
    for kind in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax")
    for n in (1, 2, 3)
}
BATCH_NORMS: dict[type, int] = {nn.BatchNorm1d: 1, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}
BY_CHANNEL = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)  # always dimension 1
DROPOUTS: dict[type, int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}

_UNARY = (
    *("relu", "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "relu6", "hardtanh", "mish"),
    *("hardswish", "hardsigmoid", "softplus", "softsign", "logsigmoid", "tanh", "sigmoid"),
    *("abs", "neg", "exp", "square", "sqrt", "rsqrt", "erf", "sin", "cos", "clamp", "pow"),
)
_BINARY = ("add", "sub", "mul", "div")

ELEMENTWISE_LAYERS: frozenset[type] = frozenset(
    {
        *(nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.Mish),
        *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Hardshrink, nn.Softshrink, nn.Tanhshrink),
        *(nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Tanh, nn.Sigmoid, nn.Threshold, nn.Identity),
    }
)
# By value: `torch.relu` and `torch.nn.functional.relu` are two functions of one name.
ELEMENTWISE_FUNCTIONS: frozenset[Any] = frozenset(
    {
        *(operator.neg, operator.pow),
        *(
            getattr(home, name)
            for home in (torch, functional)
            for stem in _UNARY
            for name in (stem, f"{stem}_")
            if hasattr(home, name)
        ),
    }
)
ELEMENTWISE_METHODS = frozenset(
    {"contiguous", *(name for stem in _UNARY for name in (stem, f"{stem}_"))}
)
BINARY_FUNCTIONS: frozenset[Any] = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.truediv),
        *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
        *(getattr(torch, name) for name in _BINARY),
    }
)
PRODUCTS: frozenset[Any] = frozenset({operator.matmul, torch.matmul})
BINARY_METHODS = frozenset(name for stem in _BINARY for name in (stem, f"{stem}_"))
POOL_FUNCTIONS: dict[Callable[..., Any], int] = {
    getattr(functional, f"{kind}pool{n}d"): n
    for kind in ("max_", "avg_", "adaptive_avg_")
    for n in (1, 2, 3)
}


def outputs_of(layer: nn.Module) -> tuple[int, int] | None:
    """How many outputs a layer has that can be divided, and their dimension from the end.

    None for a layer whose outputs cannot: each needs to be computed from all inputs, alone.
    """
    kind = type(layer)
    if isinstance(layer, nn.Linear) and kind is nn.Linear:
        return layer.out_features, -1
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and kind in CONVOLUTIONS:
        return (layer.out_channels, -1 - CONVOLUTIONS[kind]) if layer.groups == 1 else None
    if isinstance(layer, nn.Embedding) and kind is nn.Embedding:
        # Each would look at whole rows.
        is_plain = layer.max_norm is None and not layer.sparse
        return (layer.embedding_dim, -1) if is_plain and not layer.scale_grad_by_freq else None
    return None


def parameters_of(layer: nn.Module) -> int:
    """How many parameters a layer has itself, without those of its parts."""
    return sum(parameter.numel() for parameter in layer.parameters(recurse=False))


def describe(layer: nn.Module) -> str:
    """A layer in a few words, such as "Linear(784, 512)"."""
    kind = type(layer).__name__
    if isinstance(layer, nn.Linear):
        return f"{kind}({layer.in_features}, {layer.out_features})"
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return f"{kind}({layer.in_channels}, {layer.out_channels})"
    if isinstance(layer, nn.Embedding):
        return f"{kind}({layer.num_embeddings}, {layer.embedding_dim})"
    if isinstance(layer, nn.MultiheadAttention):
        return f"{kind}({layer.embed_dim}, {layer.num_heads} heads)"
    return kind
