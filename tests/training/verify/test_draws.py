"""Random draws are seen, and replaced by their means, whatever draws them."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from doubletime.training.verify.draws import Draws, foreign_draws

ONES = torch.ones(4, 5)


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda: nn.functional.dropout(ONES, 0.3), 1.0),
        (lambda: nn.Dropout2d(0.5)(torch.ones(1, 2, 2, 2)), 1.0),
        (lambda: torch.native_dropout(ONES, 0.5, True)[0], 2.0),
        (lambda: torch.rand(3), 0.5),
        (lambda: torch.randn_like(ONES), 0.0),
        (lambda: torch.normal(ONES * 3, 1.0), 3.0),
        (lambda: torch.normal(2.0, 1.0, (3,)), 2.0),
        (lambda: torch.empty(3).uniform_(1, 2), 1.5),
        (lambda: torch.empty(3).normal_(4.0), 4.0),
        (lambda: torch.bernoulli(ONES * 0.25), 0.25),
        (lambda: torch.randint(2, 9, (3,)).float(), 5.0),
        (lambda: torch.rand(3, generator=torch.Generator()), 0.5),
    ],
)
def test_a_draw_is_its_mean(draw, mean):
    draws = Draws()
    with draws:
        found = draw()
    assert torch.equal(found, torch.full_like(found, mean))
    assert draws.replaced
    assert not draws.kept


@pytest.mark.parametrize(
    "draw", [lambda: torch.randperm(9), lambda: torch.multinomial(torch.ones(9), 2)]
)
def test_a_choice_stays_a_choice(draw):
    draws = Draws()
    with draws:
        draw()
    assert draws.kept
    assert not draws.replaced


def test_layers_with_dropout_give_the_same_twice_and_differentiate():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    recurrent = nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)
    inputs = torch.randn(2, 3, 8)
    with Draws():
        first, second = (recurrent(layer(inputs))[0] for _ in range(2))
    assert torch.equal(first, second)
    layer.eval(), recurrent.eval()
    torch.testing.assert_close(first, recurrent(layer(inputs))[0])
    first.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_without_a_draw_nothing_is_seen_and_nothing_changes():
    draws = Draws()
    with draws:
        found = nn.functional.dropout(ONES, 0.5, training=False) @ ONES.T
    assert torch.equal(found, ONES @ ONES.T)
    assert not draws.replaced | draws.kept
    assert draws.generator is None


def test_equal_seeds_are_seen():
    def generator(seed):
        torch.manual_seed(seed)
        draws = Draws()
        with draws:
            torch.rand(2)
        return draws.generator

    assert generator(1) == generator(1) != generator(2)


def test_other_libraries_draws_are_seen():
    found = set()
    with foreign_draws(found):
        torch.rand(1)
    assert not found
    with foreign_draws(found):
        random.random()
    assert found == {"random"}
    with foreign_draws(found):
        np.random.rand()
    assert found == {"random", "numpy.random"}
