"""A task that every mesh can hold, and what a loop written out in plain torch makes of it."""

import torch
from torch import nn

from doubletime.training.task import Task
from training import by_hand

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
    """By hand: parameters by name, epoch losses, test metrics."""
    model, losses, metrics = by_hand.train(Deep())
    numbers = {name: p.detach().flatten().tolist() for name, p in model.named_parameters()}
    return numbers, losses, metrics
