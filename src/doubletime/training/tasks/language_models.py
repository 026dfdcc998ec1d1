"""Small language models over bytes: a Transformer, an LSTM and a GRU.

Each is a sequence of layers that hand one tensor on, so that it can be cut into stages; and each layer of
the Transformer is made of plain linear layers, so that it can be split among ranks.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn


class Embedding(nn.Module):
    """What each symbol means, and where it stands.

    Args:
        symbols: how many there are.
        length: how many may follow one another.
        width: features of each.
    """

    def __init__(self, symbols: int, length: int, width: int) -> None:
        super().__init__()
        self.symbol = nn.Embedding(symbols, width)
        self.place = nn.Embedding(length, width)
        for table in (self.symbol, self.place):
            # Wide enough apart for the first block to tell symbols and places from one another.
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, symbols: Tensor) -> Tensor:
        """Symbols (samples, length) to features (samples, length, width)."""
        places = torch.arange(symbols.shape[1], device=symbols.device)
        found: Tensor = self.symbol(symbols) + self.place(places)
        return found


class Attention(nn.Module):
    """Each place looks at those before it and at itself, by several heads.

    Args:
        width: features of each place.
        heads: a divisor of `width`.

    Source: Vaswani et al., arXiv:1706.03762 (2017), 3.2.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Features (samples, length, width) to as many."""
        query, key, value = (
            # As many heads as there are: where ranks share them, each has some.
            part.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.query(features), self.key(features), self.value(features))
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        found: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return found


class Block(nn.Module):
    """Attention, then two linear layers at each place, each added to what it was given.

    Normalized before each (Xiong et al., arXiv:2002.04745, 2020).

    Args:
        width: features of each place; four times as many in between.
        heads: of the attention.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Features (samples, length, width) to as many."""
        features = features + self.attention(self.attention_norm(features))
        found: Tensor = features + self.down(nn.functional.gelu(self.up(self.norm(features))))
        return found


def transformer(symbols: int, length: int, *, width: int, heads: int, blocks: int) -> nn.Module:
    """A decoder: symbols (samples, length) to the next one's logits (samples, length, symbols).

    Args:
        symbols: how many there are.
        length: how many may follow one another.
        width: features of each place.
        heads: of each attention, a divisor of `width`.
        blocks: one after the other.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["embedding"] = Embedding(symbols, length, width)
    for number in range(1, blocks + 1):
        layers[f"block{number}"] = Block(width, heads)
    layers["norm"] = nn.LayerNorm(width)
    layers["head"] = nn.Linear(width, symbols)
    return nn.Sequential(layers)


class Recurrent(nn.Module):
    """A recurrent layer that begins with zeros and hands on what it says at each place.

    Args:
        layer: an LSTM or GRU, samples first.
    """

    def __init__(self, layer: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, features: Tensor) -> Tensor:
        """Features (samples, length, width) to features of the layer's own width."""
        said: Tensor = self.layer(features)[0]
        return said


def recurrent(
    kind: type[nn.LSTM] | type[nn.GRU], symbols: int, *, width: int, hidden: int, layers: int
) -> nn.Module:
    """A recurrent model: symbols (samples, length) to the next one's logits (…, symbols).

    Args:
        kind: nn.LSTM or nn.GRU.
        symbols: how many there are.
        width: features of each.
        hidden: units of each layer.
        layers: one after the other.
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict(embedding=nn.Embedding(symbols, width))
    for number in range(1, layers + 1):
        layer = kind(width if number == 1 else hidden, hidden, batch_first=True)
        parts[f"recurrent{number}"] = Recurrent(layer)
    parts["head"] = nn.Linear(hidden, symbols)
    return nn.Sequential(parts)
