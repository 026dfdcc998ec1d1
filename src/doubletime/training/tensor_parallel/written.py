"""A plan that a task gives by hand, in torch's styles."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from doubletime.errors import MeshError
from doubletime.training.tensor_parallel import layers
from doubletime.training.tensor_parallel.derive import derive
from doubletime.training.tensor_parallel.plan import Kept, Part, Plan, Role, Split


def plan_of(model: nn.Module, size: int, styles: Mapping[str, ParallelStyle] | None = None) -> Plan:
    """The plan as it is said by hand, or else derived; see `written` and `derive`."""
    return derive(model, size) if styles is None else written(model, size, styles)


def written(
    model: nn.Module, size: int, styles: Mapping[str, ParallelStyle], *, is_stage: bool = False
) -> Plan:
    """The plan by which `size` ranks divide the model's layers as they are told.

    Nobody proves that it computes what one process computes: `doubletime verify` shows it.

    Args:
        model: whose layers.
        size: how many ranks.
        styles: by the layers' names, in which * stands for any letters, as torch's
            `parallelize_module` takes them.
        is_stage: whether the model is part of a larger one, so that names may be of other parts.

    Raises:
        MeshError: if a name is none of the model's, what it is given is no style, or a layer's
            features do not divide by `size`.
    """
    names = {name: layer for name, layer in model.named_modules() if name}
    chosen: dict[str, ParallelStyle] = {}
    for pattern, style in styles.items():
        if not isinstance(style, ParallelStyle):
            raise MeshError(
                f"tensor_parallel_plan() gives {pattern} a {type(style).__name__}",
                "give it a style of torch.distributed.tensor.parallel, such as ColwiseParallel()",
            )
        found = fnmatch.filter(names, pattern)
        if not found and not is_stage:
            raise MeshError(
                f"tensor_parallel_plan() names {pattern}, which the model does not have",
                f"it has {', '.join(list(names)[:12])}",
            )
        chosen.update(dict.fromkeys(found, style))
    if size == 1:
        chosen = {}
    splits = tuple(_split(name, names[name], style, size) for name, style in sorted(chosen.items()))
    kept = tuple(
        Kept(name, layers.describe(layer), "the task's plan leaves it so", own)
        for name, layer in names.items()
        if name not in chosen and (own := layers.parameters_of(layer))
    )
    return Plan(size, splits, kept, chosen)


def _split(name: str, layer: nn.Module, style: ParallelStyle, size: int) -> Split:
    own, what = layers.parameters_of(layer), layers.describe(layer)
    divided = 0
    if type(style) in (ColwiseParallel, RowwiseParallel):
        features = _features(layer, by_outputs=type(style) is ColwiseParallel)
        if features is None:
            raise MeshError(
                f"tensor_parallel_plan() gives {name}, a {what}, a {type(style).__name__}",
                "that style is for nn.Linear and nn.Embedding",
            )
        if features % size:
            raise MeshError(
                f"{features} features of {name}, a {what}, do not divide by {size}",
                "leave it out of tensor_parallel_plan(), or take another tp",
            )
        bias = getattr(layer, "bias", None)
        is_whole = isinstance(style, RowwiseParallel) and bias is not None
        divided = own - (bias.numel() if is_whole and bias is not None else 0)
    part = Part(Role.WRITTEN)
    return Split(name, what, part, own, own - divided + divided // size)


def _features(layer: nn.Module, *, by_outputs: bool) -> int | None:
    """What torch's two styles divide of a layer."""
    if isinstance(layer, nn.Linear):
        return layer.out_features if by_outputs else layer.in_features
    if isinstance(layer, nn.Embedding):
        return layer.embedding_dim if by_outputs else layer.num_embeddings
    return None
