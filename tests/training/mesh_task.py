"""A task that every mesh can hold, and what a loop written out in plain torch makes of it."""

import math

import torch
from torch import nn

from doubletime.training.data import ShardedSampler
from doubletime.training.task import Task

# 25 samples in batches of 8: the last batch is one sample, which leaves all ranks but one without.
SAMPLES, TEST_SAMPLES, GLOBAL_BATCH, EPOCHS, SEED = 25, 11, 8, 3, 5


def data(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 12, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(4, (samples,), generator=generator)


class Deep(Task):
    """Keeps its model as `made`."""

    global_batch, epochs, seed = GLOBAL_BATCH, EPOCHS, SEED

    def model(self):
        self.made = nn.Sequential(
            nn.Linear(12, 64),
            nn.Tanh(),
            nn.Linear(64, 68),  # enough for a shard of its own
            nn.Tanh(),
            nn.Linear(68, 20),
            nn.LayerNorm(20),
            nn.Tanh(),
            nn.Linear(20, 4),
        ).double()
        return self.made

    def train_data(self):
        return data(SAMPLES, 1)

    def test_data(self):
        return data(TEST_SAMPLES, 2)

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)

    def lr_schedule(self, optimizer, steps):
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)


def reference():
    """One process, whole batches: parameters by name, epoch losses, test metrics."""
    inputs, targets = data(SAMPLES, 1)
    torch.manual_seed(SEED)
    model = Deep().model()
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    steps, step, losses = EPOCHS * math.ceil(SAMPLES / GLOBAL_BATCH), 0, []
    order = ShardedSampler(SAMPLES, GLOBAL_BATCH, rank=0, world_size=1, seed=SEED)
    for order.epoch in range(EPOCHS):
        total = 0.0
        for rows in order:
            logs = model(inputs[rows]).log_softmax(1)
            loss = -sum(logs[i, targets[row]] for i, row in enumerate(rows)) / len(rows)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            lr = 0.3 * (1.0 + (0.1 - 1.0) * step / steps)
            with torch.no_grad():
                for p, v, g in zip(model.parameters(), velocity, gradients, strict=True):
                    v.mul_(0.9).add_(g)
                    p.sub_(lr * v)
            total, step = total + float(loss.detach()) * len(rows), step + 1
        losses.append(total / SAMPLES)
    inputs, targets = data(TEST_SAMPLES, 2)
    with torch.no_grad():
        logs = model(inputs).log_softmax(1)
    right = int((logs.argmax(1) == targets).sum())
    test_loss = -float(logs[torch.arange(TEST_SAMPLES), targets].mean())
    numbers = {name: p.detach().flatten().tolist() for name, p in model.named_parameters()}
    return numbers, losses, {"accuracy": right / TEST_SAMPLES, "loss": test_loss}
