"""What of torch's own Transformer layers can be divided, whose forward is known."""

from __future__ import annotations

from collections.abc import Container, Iterator, MutableMapping

from torch import nn

from doubletime.training.tensor_parallel import layers
from doubletime.training.tensor_parallel.plan import Role


def known_roles(
    model: nn.Module, size: int, fixed: Container[str], reasons: MutableMapping[str, str]
) -> Iterator[tuple[str, Role]]:
    """Attention by heads, and the two linear layers of each feed-forward part.

    Args:
        model: to look through.
        size: how many ranks.
        fixed: the layers that stay whole in any case.
        reasons: gets why others do.
    """
    for name, layer in model.named_modules():
        prefix = f"{name}." if name else ""
        if type(layer) is nn.MultiheadAttention:
            why = _attention_kept(layer, size)
            if why is not None:
                reasons[name] = why
            elif name not in fixed and f"{prefix}out_proj" not in fixed:
                yield name, Role.HEADS
        elif isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            pair = (f"{prefix}linear1", f"{prefix}linear2")
            why = _feed_forward_kept(layer, size)
            if why is not None:
                reasons.update(dict.fromkeys(pair, why))
            elif not any(each in fixed for each in pair):
                yield pair[0], Role.OUTPUTS
                yield f"{prefix}dropout", Role.FEATURES
                yield pair[1], Role.INPUTS


def _attention_kept(layer: nn.MultiheadAttention, size: int) -> str | None:
    if layer.num_heads % size:
        return f"its {layer.num_heads} heads do not divide by {size}"
    if layer.bias_k is not None or layer.add_zero_attn:
        return "it attends to more than its keys (add_bias_kv, add_zero_attn)"
    return None


def _feed_forward_kept(
    layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, size: int
) -> str | None:
    if type(layer) not in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        return f"{type(layer).__name__} may do otherwise than torch's layer"
    width = layer.linear1.out_features
    if width % size:
        return f"its {width} hidden features do not divide by {size}"
    activation = layer.activation
    if activation in layers.ELEMENTWISE_FUNCTIONS or type(activation) in layers.ELEMENTWISE_LAYERS:
        return None
    return "its activation need not treat each feature by itself"
