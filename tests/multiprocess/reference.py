"""What one process computes: the model, the data and the training that ranks are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

Optimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
FEATURES, CLASSES, LOCAL_BATCH, STEPS = 12, 4, 6, 5
MANY_BUCKETS_MB = 0.0005  # about one bucket for each parameter


def sgd(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Plain SGD with momentum."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def model(seed: int = 0, width: int = 16) -> nn.Sequential:
    """A small MLP in float64: what differs by more than rounding differs by a fault."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, CLASSES),
    ).double()


def batch(step: int, rank: int, size: int = LOCAL_BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """What `rank` trains on in `step`; the same numbers on every process."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, CLASSES, (size,), generator=generator)


def global_batch(step: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All ranks' batches of one step, as one."""
    inputs, targets = zip(*(batch(step, rank) for rank in range(world_size)), strict=True)
    return torch.cat(inputs), torch.cat(targets)


def loss_of(net: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over the batch."""
    return nn.functional.cross_entropy(net(inputs), targets)


def train_alone(world_size: int, optimizer: Optimizer = sgd, steps: int = STEPS) -> nn.Module:
    """Train on the global batches in this process, without any group."""
    net = model()
    stepper = optimizer(net.parameters())
    for step in range(steps):
        stepper.zero_grad()
        loss_of(net, *global_batch(step, world_size)).backward()
        stepper.step()
    return net


def train_in_step(
    net: nn.Module, rank: int, optimizer: Optimizer = sgd, steps: int = STEPS
) -> None:
    """Train a model that synchronizes itself on this rank's batches."""
    stepper = optimizer(net.parameters())
    for step in range(steps):
        stepper.zero_grad()
        loss_of(net, *batch(step, rank)).backward()
        stepper.step()


def assert_same(
    found: nn.Module, expected: nn.Module, rtol: float = 1e-9, atol: float = 1e-11
) -> None:
    """Every parameter of the one is that of the other."""
    pairs = zip(found.named_parameters(), expected.parameters(), strict=True)
    for (name, ours), theirs in pairs:
        full = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
        torch.testing.assert_close(
            full.detach(), theirs.detach(), rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )
