"""LARS and LAMB do what their papers' formulas say, element by element."""

import math

import numpy as np
import pytest
import torch

from doubletime.errors import TrainingError
from doubletime.training.layerwise import Lamb, Lars, replace

STEPS = 4


def _layers():
    generator = torch.Generator().manual_seed(3)
    shapes = ((4, 3), (3,), (2, 2, 3))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _train(make):
    """The parameters after some steps, and the gradients of each."""
    parameters = [torch.nn.Parameter(each) for each in _layers()]
    optimizer = make(parameters)
    generator = torch.Generator().manual_seed(4)
    gradients = []
    for _ in range(STEPS):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        gradients.append([parameter.grad.numpy().copy() for parameter in parameters])
        optimizer.step()
    return [parameter.detach().numpy() for parameter in parameters], gradients


def _norm(array):
    return math.sqrt(float((array**2).sum()))


def test_lars_is_algorithm_1_of_you_gitman_and_ginsburg():
    lr, momentum, decay, trust = 3.0, 0.8, 0.02, 0.01
    found, gradients = _train(lambda each: Lars(each, lr, momentum, decay, trust))
    for layer, start in enumerate(_layers()):
        weights, velocity = start.numpy().copy(), 0.0
        for step in gradients:
            gradient = step[layer]
            if weights.ndim > 1:
                local = trust * _norm(weights) / (_norm(gradient) + decay * _norm(weights))
                velocity = momentum * velocity + lr * local * (gradient + decay * weights)
            else:
                velocity = momentum * velocity + lr * gradient
            weights = weights - velocity
        np.testing.assert_allclose(found[layer], weights, rtol=1e-12)


def test_lamb_is_algorithm_2_of_you_et_al():
    lr, betas, eps, decay = 0.02, (0.8, 0.95), 1e-5, 0.03
    found, gradients = _train(lambda each: Lamb(each, lr, betas, eps, decay))
    for layer, start in enumerate(_layers()):
        weights, m, v = start.numpy().copy(), 0.0, 0.0
        for step, each in enumerate(gradients, 1):
            gradient = each[layer]
            m = betas[0] * m + (1 - betas[0]) * gradient
            v = betas[1] * v + (1 - betas[1]) * gradient**2
            ratio = (m / (1 - betas[0] ** step)) / (np.sqrt(v / (1 - betas[1] ** step)) + eps)
            scale = 1.0
            if weights.ndim > 1:
                ratio = ratio + decay * weights
                scale = _norm(weights) / _norm(ratio)
            weights = weights - lr * scale * ratio
        np.testing.assert_allclose(found[layer], weights, rtol=1e-12)


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_layers_of_zeros_move_too_and_layers_without_a_gradient_do_not(kind):
    zeros = torch.nn.Parameter(torch.zeros(2, 2))
    zeros.grad = torch.ones(2, 2)
    still = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = kind([zeros, still], lr=0.5)
    optimizer.step()
    assert bool((zeros < 0).all())
    assert bool((still == 1).all())


def test_what_a_task_said_of_its_optimizer_is_kept_where_it_is_known():
    layers = [torch.nn.Parameter(each) for each in _layers()]
    plain = torch.optim.SGD(
        [{"params": layers[:1], "lr": 0.2}, {"params": layers[1:]}], lr=0.1, weight_decay=0.01
    )
    lars = replace("lars", plain)
    assert [group["lr"] for group in lars.param_groups] == [0.2, 0.1]
    assert [group["momentum"] for group in lars.param_groups] == [0.9, 0.9]
    assert [group["weight_decay"] for group in lars.param_groups] == [0.01, 0.01]
    adam = torch.optim.AdamW(layers, lr=0.1, betas=(0.7, 0.8), weight_decay=0.3)
    lamb = replace("lamb", adam)
    assert lamb.param_groups[0]["betas"] == (0.7, 0.8)
    assert lamb.param_groups[0]["weight_decay"] == 0.3
    torch.optim.lr_scheduler.OneCycleLR(lars, max_lr=[0.2, 0.1], total_steps=5)
    torch.optim.lr_scheduler.OneCycleLR(lamb, max_lr=0.1, total_steps=5)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda each: Lars(each, -1.0), "lr is -1.0"),
        (lambda each: Lars(each, 1.0, momentum=1.5), "1.5 is no share"),
        (lambda each: Lamb(each, 1.0, weight_decay=-1), "weight_decay is -1"),
        (lambda each: Lamb(each, math.nan), "lr is nan"),
    ],
)
def test_numbers_out_of_range_are_refused(make, what):
    with pytest.raises(TrainingError, match=what):
        make([torch.nn.Parameter(torch.ones(1))])
