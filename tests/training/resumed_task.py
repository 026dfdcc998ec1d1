"""A task with all that has state: dropout, batch norm, moments, a schedule; small enough to run often."""

import contextlib

import torch
from torch import nn

from doubletime.training import loop
from doubletime.training.recipe import Recipe
from doubletime.training.task import Task

SAMPLES = 42  # in batches of 12: the last one is 6, two for each of 3 ranks


class Noisy(Task):
    """Keeps its model as `made`, and which samples this rank has met as `met`, a list a step."""

    global_batch, epochs, seed = 12, 3, 5

    def model(self):
        self.met = []
        self.made = nn.Sequential(
            nn.Linear(5, 7),
            nn.LayerNorm(7),
            nn.Tanh(),
            nn.Dropout(0.3),
            nn.BatchNorm1d(7),
            nn.Linear(7, 3),
        )
        return self.made

    def train_data(self):
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(SAMPLES, 5, generator=generator)
        return inputs, torch.arange(SAMPLES) % 3, torch.arange(SAMPLES)

    def test_data(self):
        return self.train_data()

    def loss(self, model, batch):
        self.met.append(batch[2].tolist())
        return super().loss(model, batch[:2])

    def metrics(self, model, batch):
        return super().metrics(model, batch[:2])

    def optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=0.01)

    def lr_schedule(self, optimizer, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=steps)


class Stopped(Exception):
    pass


def train(keeping, stop_after=None, task=None, at_step=None):
    """Train it; the task and its events.

    Args:
        keeping: of checkpoints.
        stop_after: so many steps of this call it dies, on all ranks.
        task: in place of a new one.
        at_step: is called after each step with its number.
    """
    task = task or Noisy()
    events, steps = [], 0

    def observe(event):
        nonlocal steps
        events.append(event)
        if isinstance(event, loop.Resumed):
            task.met.clear()
        if isinstance(event, loop.StepDone):
            steps += 1
            if at_step is not None:
                at_step(steps)
            if steps == stop_after:
                raise Stopped

    with contextlib.suppress(Stopped):
        loop.run(task, Recipe.of(task), observe, keeping)
    return task, events


def numbers(task):
    """All parameters and buffers, by name."""
    return {name: value.clone() for name, value in task.made.state_dict().items()}
