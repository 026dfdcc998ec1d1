"""A training that stops and goes on is the training that never stopped, bit by bit."""

import contextlib

import pytest
import torch
from torch import nn

from doubletime.training import loop
from doubletime.training.checkpoint import folder
from doubletime.training.events import EpochDone, Resumed
from doubletime.training.keeping import Keeping
from doubletime.training.recipe import Recipe
from doubletime.training.task import Task

EPOCHS = 3


class Noisy(Task):
    """Everything that has state: dropout, batch norm, Adam's moments, a schedule."""

    global_batch, epochs, seed = 8, EPOCHS, 5
    fails_after = None

    def model(self):
        self.made = nn.Sequential(
            nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 3)
        )
        return self.made

    def train_data(self):
        generator = torch.Generator().manual_seed(1)
        return torch.randn(28, 5, generator=generator), torch.arange(28) % 3

    def test_data(self):
        return self.train_data()

    def optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=0.01)

    def lr_schedule(self, optimizer, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=steps)


class Stopped(Exception):
    pass


def _train(keeping, stop_after=None, task=None):
    """Events and the final numbers; `stop_after` steps it dies."""
    task = task or Noisy()
    events, steps = [], 0

    def observe(event):
        nonlocal steps
        events.append(event)
        steps += isinstance(event, loop.StepDone)
        if steps == stop_after and isinstance(event, loop.StepDone):
            raise Stopped

    with contextlib.suppress(Stopped):
        loop.run(task, Recipe.of(task), observe, keeping)
    return events, {name: value.clone() for name, value in task.made.state_dict().items()}


def _epochs(events):
    return [(e.epoch, e.loss, dict(e.metrics)) for e in events if isinstance(e, EpochDone)]


@pytest.mark.parametrize(("every", "stop_after"), [(None, 6), (3, 6), (3, 11), (4, 5), (1, 10)])
def test_resumed_is_bit_identical(tmp_path, every, stop_after):
    whole, numbers = _train(None)
    before, _ = _train(Keeping(tmp_path, every), stop_after)
    candidates = tuple(folder.whole(tmp_path))
    assert candidates
    after, resumed = _train(Keeping(tmp_path, every, candidates=candidates))
    assert all(torch.equal(numbers[name], resumed[name]) for name in numbers)
    [came] = [event for event in after if isinstance(event, Resumed)]
    told = _epochs(before)[: came.epoch - 1] + _epochs(after)
    assert told == _epochs(whole)
