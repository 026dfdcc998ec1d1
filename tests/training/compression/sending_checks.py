"""Whole runs that send less, or less often: against formulas, and against runs that never stopped."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from doubletime.errors import DoubletimeError, TrainingError
from doubletime.training import loop, session
from doubletime.training.checkpoint import folder
from doubletime.training.checkpoint.exchange import on_rank_0
from doubletime.training.data import ShardedSampler
from doubletime.training.keeping import Keeping
from doubletime.training.recipe import Recipe
from doubletime.training.sending import Sending
from doubletime.training.switches import Switches
from doubletime.training.task import Task
from training.resumed_task import Noisy

SAMPLES, BATCH, EPOCHS, LR, MOMENTUM = 26, 8, 2, 0.2, 0.9  # the last batch has two samples


class Small(Task):
    global_batch, epochs, seed = BATCH, EPOCHS, 3

    def model(self):
        self.made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        return self.made

    def train_data(self):
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
        return inputs, torch.randint(3, (SAMPLES,), generator=generator)

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM)


def _run(task, keeping=None, observe=None, switches=None, **options):
    session.init()
    recipe = Recipe.of(task, sending=Sending(**options), switches=switches)
    result = loop.run(task, recipe, observe or (lambda event: None), keeping)
    return torch.nn.utils.parameters_to_vector(task.made.parameters()).detach(), result


def _rounds(world_size, every, after, lr, momentum):
    """The same run written out: all ranks' models one after the other, float64."""
    inputs, targets = Small().train_data()
    torch.manual_seed(Small.seed)
    first = nn.utils.parameters_to_vector(Small().model().parameters()).detach()
    models = [first.clone() for _ in range(world_size)]
    local = [torch.zeros_like(first) for _ in range(world_size)]
    start, outer, made, since = first.clone(), torch.zeros_like(first), 0, 0
    net = Small().model()

    def meet():
        nonlocal start, outer
        gradient = start - torch.stack(models).mean(0)
        outer = momentum * outer + gradient
        start = start - lr * (gradient + momentum * outer)
        for model in models:
            model.copy_(start)

    samplers = [
        ShardedSampler(SAMPLES, BATCH, rank=rank, world_size=world_size, seed=Small.seed)
        for rank in range(world_size)
    ]
    for epoch in range(EPOCHS):
        for sampler in samplers:
            sampler.epoch = epoch
        for shares in zip(*(sampler.shares() for sampler in samplers), strict=True):
            gradients = []
            for share, model in zip(shares, models, strict=True):
                nn.utils.vector_to_parameters(model, net.parameters())
                rows = share.indices or [share.filler]
                weight = len(share.indices) * world_size / share.global_count
                loss = nn.functional.cross_entropy(net(inputs[rows]), targets[rows]) * weight
                parts = torch.autograd.grad(loss, list(net.parameters()))
                gradients.append(nn.utils.parameters_to_vector(parts))
            if made < after:
                gradients = [torch.stack(gradients).mean(0)] * world_size
            for model, velocity, gradient in zip(models, local, gradients, strict=True):
                velocity.mul_(MOMENTUM).add_(gradient)
                model.sub_(LR * velocity)
            if made >= after:
                since += 1
            else:
                start = models[0].clone()
            made += 1
            if since == every:
                since = 0
                meet()
        if since:
            since = 0
            meet()
    return models[0]


def local_steps_are_the_published_ones(rank: int, world_size: int) -> None:
    plain, _ = _run(Small())
    each, result = _run(Small(), local_steps=1)  # momentum is linear: nothing but another order
    torch.testing.assert_close(each, plain, rtol=1e-9, atol=1e-12)
    assert result.sent_share == 1
    for options, lr, momentum in (
        ({"local_steps": 3}, 1.0, 0.0),
        ({"local_steps": 2, "local_after": 3}, 1.0, 0.0),
        ({"local_steps": 3, "outer": "diloco"}, 0.7, 0.9),
        ({"local_steps": 2, "outer_lr": 0.5, "outer_momentum": 0.3, "local_after": 1}, 0.5, 0.3),
    ):
        found, result = _run(Small(), **options)
        every, after = options["local_steps"], options.get("local_after", 0)
        expected = _rounds(world_size, every, after, lr, momentum)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=str(options))
        alike = found.clone()
        dist.broadcast(alike, 0)
        assert torch.equal(alike, found)
        # 4 steps an epoch, whose end ends a round.
        meetings = 4 if every == 3 and not after else {3: 3, 1: 4}.get(after, 0)
        assert result.sent_share == pytest.approx((after + meetings) / 8), options


def _stopped(task, path, after, **options):
    class Stopped(Exception):
        pass

    steps = 0

    def observe(event):
        nonlocal steps
        if isinstance(event, loop.StepDone):
            steps += 1
            if steps == after:
                raise Stopped

    with contextlib.suppress(Stopped):
        _run(task, Keeping(path, 3), observe, **options)


def what_is_due_goes_on_after_a_restart(rank: int, world_size: int) -> None:
    """Bit by bit: residuals, thin matrices, each rank's optimizer, the outer momentum."""
    for number, options in enumerate(
        (
            {"compress": "topk:0.2"},
            {"compress": "powersgd:1"},
            {"compress": "int8"},
            {"local_steps": 2, "outer": "diloco"},
            {"compress": "topk:0.1", "local_steps": 2, "local_after": 7},
        )
    ):
        path = Path(sys.argv[1], f"restart-{number}")
        whole, _ = _run(Noisy(), Keeping(_shared(path / "whole"), 3), **options)
        _stopped(Noisy(), _shared(path / "stopped"), 8, **options)
        found = on_rank_0(lambda path=path: folder.whole(path / "stopped"))
        assert found, "stopped before anything was saved"
        again, _ = _run(Noisy(), Keeping(path / "stopped", 3, candidates=tuple(found)), **options)
        assert torch.equal(whole, again), options
        dist.barrier()


def _shared(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    return path


def what_does_not_go_together_is_refused(rank: int, world_size: int) -> None:
    for options, switches, what in (
        ({"compress": "gzip"}, None, "there is no compression 'gzip'"),
        ({"algorithm": "rnig"}, None, "no reduction algorithm is called 'rnig'"),
        ({"outer": "diloco"}, None, "outer is given, but ranks average gradients at each step"),
        ({"local_steps": 4, "outer": "mean"}, None, "outer is 'mean'"),
        ({"local_steps": 0}, None, "local_steps is 0"),
        ({"local_steps": 4, "local_after": -1}, None, "local_after is -1"),
        ({"local_steps": 4, "outer_lr": 0.0}, None, "outer_lr is 0.0"),
        ({"local_steps": 4, "outer_momentum": 1.0}, None, "outer_momentum is 1.0"),
        ({"local_steps": 4, "compress": "int8"}, None, "has nothing to compress"),
        ({"local_steps": 4}, Switches(check_every=2), "check_every needs ranks"),
        ({"local_steps": 4}, Switches(on_nan="skip"), "on_nan needs ranks"),
        ({"compress": "int8"}, Switches(precision="fp16"), "int8 keeps gradients"),
        ({"compress": "fp16"}, Switches(reproducible=True), "reproducible training sums"),
    ):
        with pytest.raises(DoubletimeError) as caught:
            _run(Small(), switches=switches, **options)
        assert what in caught.value.what
        assert caught.value.remedy
    task = Small()
    recipe = Recipe.of(task, mesh=f"fsdp={world_size}", sending=Sending(compress="int8"))
    with pytest.raises(TrainingError, match="only where ranks hold copies of the whole model"):
        loop.run(task, recipe, lambda event: None)


CHECKS = (
    local_steps_are_the_published_ones,
    what_is_due_goes_on_after_a_restart,
    what_does_not_go_together_is_refused,
)
