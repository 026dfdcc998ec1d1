"""Models to be cut, small and in float64, with data for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS, LENGTH, WIDTH = 20, 6, 8


def mlp(layers: int = 8) -> nn.Module:
    """Its activations overwrite what they are given, so no cut may lie before them."""
    torch.manual_seed(1)
    linear = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)) for _ in range(layers)]
    return nn.Sequential(*linear, nn.Linear(WIDTH, 5)).double()


def cnn() -> nn.Module:
    """As the built-in tasks' on images, in small."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    ).double()


class Block(nn.Module):
    """A layer of a Transformer that is no sequence."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.project(self.norm(x)).chunk(3, dim=-1)
        query, key, value = (p.view(batch, length, 2, width // 2).transpose(1, 2) for p in parts)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.dropout(self.narrow(nn.functional.gelu(self.wide(self.other_norm(x)))))


class Transformer(nn.Module):
    """A language model whose forward is a loop, with positions it makes by itself."""

    def __init__(self, blocks: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.position = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, TOKENS)
        self.double()

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        if tokens.dim() != 2:
            raise ValueError("batch and length")
        x = self.embedding(tokens) + self.position(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(x if mask is None else x * mask)}


class Residual(nn.Module):
    """Its input is needed by every layer, and its size by the last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        rows, y = x.size(0), x
        for layer in self.layers:
            y = torch.tanh(layer(y)) + x
        return y.view(rows, -1)


def vectors(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randn(samples, WIDTH, generator=generator, dtype=torch.float64),
        torch.randint(5, (samples,), generator=generator),
    )


def images(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randn(samples, 1, 8, 8, generator=generator, dtype=torch.float64),
        torch.randint(5, (samples,), generator=generator),
    )


def texts(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    tokens, targets = (
        torch.randint(TOKENS, (samples, LENGTH), generator=generator) for _ in range(2)
    )
    return tokens, targets
