"""A job of ranks: each switch against a loop in plain torch over whole batches, in float64."""

import functools
import math
import sys

import torch
from torch import nn

from doubletime.errors import TrainingError
from doubletime.training import loop, session
from doubletime.training.clipping import clip
from doubletime.training.data import ShardedSampler
from doubletime.training.events import EpochDone, Notice
from doubletime.training.layerwise import Lamb, Lars
from doubletime.training.recipe import Recipe
from doubletime.training.switches import Switches
from doubletime.training.sync_batchnorm import SyncBatchNorm
from doubletime.training.task import Task

SAMPLES, GLOBAL_BATCH, EPOCHS, SEED, SPOILT = 25, 8, 2, 5, 11


class Plain(Task):
    """25 samples in batches of 8: the last batch is one sample, which leaves ranks without."""

    global_batch, epochs, seed = GLOBAL_BATCH, EPOCHS, SEED

    def layers(self):
        return [nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3)]

    def model(self):
        self.made = nn.Sequential(*self.layers()).double()
        return self.made

    def train_data(self):
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        return inputs, torch.randint(3, (SAMPLES,), generator=generator)

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)


class Normalized(Plain):
    """BatchNorm over vectors and over images, so that a batch of one sample has several values."""

    def layers(self):
        return [
            nn.Unflatten(1, (2, 3)),
            nn.BatchNorm1d(2),
            nn.Conv1d(2, 4, 2),
            nn.BatchNorm1d(4, momentum=None),
            nn.Tanh(),
            nn.BatchNorm1d(4, affine=False),
            nn.Flatten(),
            nn.Linear(8, 3),
        ]


class Spoilt(Normalized):
    """One sample is not finite."""

    def train_data(self):
        inputs, targets = super().train_data()
        inputs[SPOILT, 2] = math.inf
        return inputs, targets


class Parts(Plain):
    """Notes in which backward passes gradients are averaged."""

    def __init__(self):
        self.averages = []

    def loss(self, model, batch):
        if isinstance(model, nn.parallel.DistributedDataParallel):
            self.averages.append((len(batch[0]), model.require_backward_grad_sync))
        return super().loss(model, batch)


class Steep(Plain):
    """In float32, with gradients that overflow fp16 at the first scales."""

    def model(self):
        self.made = nn.Sequential(*self.layers())
        return self.made

    def train_data(self):
        inputs, targets = super().train_data()
        return inputs.float(), targets

    def loss(self, model, batch):
        return 4 * super().loss(model, batch)

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.01)


class Drifting(Plain):
    """The last rank changes a parameter by itself."""

    def loss(self, model, batch):
        joined = session.current()
        if joined.rank == joined.world_size - 1:
            with torch.no_grad():
                self.made[2].bias[1].add_(1e-12)
        return super().loss(model, batch)


class Idle(Plain):
    """A layer that the loss does not depend on."""

    def model(self):
        super().model().register_module("idle", nn.Linear(2, 2).double())
        return self.made

    def loss(self, model, batch):
        inner = getattr(model, "module", model)
        whole = inner.forward
        inner.forward = lambda x: nn.Sequential(*list(inner)[:-1])(x)
        try:
            return super().loss(model, batch)
        finally:
            inner.forward = whole


class Forgetful(Plain):
    """A layer that the first part of a batch uses only."""

    def __init__(self):
        self.calls = 0

    def model(self):
        super().model().register_module("idle", nn.Linear(1, 1).double())
        return self.made

    def loss(self, model, batch):
        self.calls += 1
        inner = getattr(model, "module", model)
        whole = inner.forward

        def forward(inputs):
            outputs = nn.Sequential(*list(inner)[:-1])(inputs)
            return inner.idle(outputs[..., None])[..., 0] if self.calls == 1 else outputs

        inner.forward = forward
        try:
            return super().loss(model, batch)
        finally:
            inner.forward = whole


def train(task, mesh=None, **switches):
    """Trained by the ranks: every tensor by name, whole, and the events."""
    events = []
    recipe = Recipe.of(task, mesh=mesh, switches=Switches(**switches))
    loop.run(task, recipe, events.append)
    return state(task.made), events


def state(model):
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
        for name, value in model.state_dict().items()
    }


def by_hand(task, *, clip_norm=None, without=None, optimizer=None, rates=None):
    """One process, whole batches: every tensor, and the mean loss of each epoch."""
    torch.manual_seed(SEED)
    model = task.model()
    inputs, targets = task.train_data()
    stepped = (optimizer or task.optimizer)(model.parameters())
    order = ShardedSampler(SAMPLES, GLOBAL_BATCH, rank=0, world_size=1, seed=SEED)
    losses, step = [], 0
    for order.epoch in range(EPOCHS):
        total, met = 0.0, 0
        for rows in order:
            step += 1
            if without in rows:
                continue
            stepped.zero_grad()
            loss = task.loss(model, (inputs[rows], targets[rows]))
            loss.backward()
            total, met = total + float(loss.detach()) * len(rows), met + len(rows)
            if clip_norm is not None:
                numbers = torch.cat([p.grad.flatten() for p in model.parameters()])
                for parameter in model.parameters():
                    parameter.grad *= min(1.0, clip_norm / float(numbers.norm()))
            if rates is not None:
                stepped.param_groups[0]["lr"] = rates[min(step, len(rates)) - 1]
            stepped.step()
        losses.append(total / met)
    return state(model), losses


def check_same(found, wanted, tolerance=1e-11):
    assert list(found) == list(wanted)
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=tolerance, atol=tolerance, msg=name)


def losses_of(events):
    return [event.loss for event in events if isinstance(event, EpochDone)]


def refused(task, **switches):
    """What the run was refused with."""
    try:
        train(task, **switches)
    except TrainingError as error:
        return error.what
    raise AssertionError("the run was not refused")


def accumulate(n):
    wanted, losses = by_hand(Plain())
    task = Parts()
    found, events = train(task, accumulate=3)
    check_same(found, wanted)
    torch.testing.assert_close(losses_of(events), losses)
    per_step = 2 * [min(3, -(-8 // n))] * 3
    sums = [sync for _, sync in task.averages]
    assert sums.count(True) == 2 * 4, task.averages  # once a step
    assert len(sums) == 2 * (3 * per_step[0] + 1), task.averages
    check_same(train(Plain(), mesh=f"fsdp={n}", accumulate=3)[0], wanted)


def clipped(n):
    wanted, _ = by_hand(Plain(), clip_norm=0.05)
    check_same(train(Plain(), clip_norm=0.05)[0], wanted)
    check_same(train(Plain(), mesh=f"fsdp={n}", clip_norm=0.05)[0], wanted)
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip([parameter], 1.0) == 5.0
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8]))
    # Stages hold different parameters of one model.
    rank = session.current().rank
    parameter.grad = torch.tensor([0.0, 1.0 if rank else math.sqrt(n)])
    norm = clip([parameter], 1.0, group=torch.distributed.group.WORLD)
    assert abs(norm - math.sqrt(2 * n - 1)) < 1e-6
    assert math.isinf(clip([_with_gradient(math.inf)], 1.0))


def _with_gradient(value):
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.tensor([value])
    return parameter


def normalized(_):
    wanted, losses = by_hand(Normalized())
    for switches in ({}, {"checkpoint_activations": True}):
        task = Normalized()
        found, events = train(task, sync_batchnorm=True, **switches)
        check_same(found, wanted)
        torch.testing.assert_close(losses_of(events), losses)
        assert sum(isinstance(each, SyncBatchNorm) for each in task.made.modules()) == 3


def skipped(_):
    wanted, losses = by_hand(Spoilt(), without=SPOILT)
    found, events = train(Spoilt(), sync_batchnorm=True, on_nan="skip:2")
    check_same(found, wanted)
    torch.testing.assert_close(losses_of(events), losses)
    told = [event.text for event in events if isinstance(event, Notice)]
    assert len(told) == EPOCHS, told
    assert f"; {SPOILT} holds NaN or infinity (1 of at most 2 that may be)" in told[0], told
    # Without SyncBatchNorm one rank alone has a loss that is not finite.
    order = ShardedSampler(SAMPLES, GLOBAL_BATCH, rank=0, world_size=1, seed=SEED)
    step, rows = next((n, rows) for n, rows in enumerate(order, 1) if SPOILT in rows)
    rank = rows.index(SPOILT) % session.current().world_size
    _, events = train(Spoilt(), on_nan="skip")
    told = [event.text for event in events if isinstance(event, Notice)]
    assert told[0].startswith(
        f"step {step} of epoch 1 is skipped: the loss is nan on rank {rank}, "
    )
    what = refused(Spoilt(), on_nan="skip:1")
    assert what.startswith("2 steps were to be skipped, and 1 may be; at step"), what


def layerwise(n):
    for name, kind, lr in (("lars", Lars, 20.0), ("lamb", Lamb, 0.02)):
        steps = 3
        # A base batch of 2 makes the batch of 8 four times as large.
        full = lr * 4
        rates = [lr + (full - lr) * step / steps for step in range(steps)] + [full]
        make = functools.partial(kind, lr=lr, **({"momentum": 0.9} if kind is Lars else {}))
        wanted, _ = by_hand(Plain(), optimizer=make, rates=rates)
        for mesh in (None, f"fsdp={n}"):
            task = Plain()
            task.global_batch = 2
            recipe = Recipe.of(
                task,
                mesh=mesh,
                global_batch=GLOBAL_BATCH,
                switches=Switches(lr=lr, optimizer=name, scale_lr="linear", warmup="3steps"),
            )
            loop.run(task, recipe, lambda event: None)
            check_same(state(task.made), wanted, 1e-9)


def sixteen_bits(_):
    wanted, losses = by_hand(Steep())
    found, events = train(Steep(), precision="bf16")
    check_same(found, wanted, 0.03)
    torch.testing.assert_close(losses_of(events), losses, rtol=0.01, atol=0.0)
    found, events = train(Steep(), precision="fp16")
    told = [event.text for event in events if isinstance(event, Notice)]
    assert "is skipped: gradients overflow at scale 65536, the next is 32768" in told[0], told
    assert 0 < len(told) < 5, told
    assert all(bool(value.isfinite().all()) for value in found.values())
    # Unscaled: as far from the start as the steps that were made.
    torch.manual_seed(SEED)
    start = state(Steep().model())
    moved, whole = ((each["4.bias"] - start["4.bias"]).norm() for each in (found, wanted))
    assert 0.2 * whole < moved < 1.2 * whole


def alike(n):
    assert train(Plain(), check_every=1)
    what = refused(Drifting(), check_every=3)
    assert what == f"after step 3 of epoch 1, 2.bias on rank {n - 1} differs from rank 0's", what


def compiled(n):
    if n > 2:
        return  # it takes long, and does not depend on them
    wanted, _ = by_hand(Normalized())
    switches = {"sync_batchnorm": True, "checkpoint_activations": True, "compile": True}
    check_same(train(Normalized(), **switches)[0], wanted)


def idle(n):
    rank = session.current().rank
    what = refused(Idle())
    wanted = (
        f"rank {rank}: no gradient for idle.weight, idle.bias: the loss does not depend on them"
    )
    assert what == wanted, what
    assert refused(Forgetful(), accumulate=3) == wanted


def main():
    joined = session.init(sys.argv[1])
    for check in (
        accumulate, clipped, normalized, skipped, layerwise, sixteen_bits, alike, compiled, idle,
    ):  # fmt: skip
        if len(sys.argv) < 3 or check.__name__ in sys.argv[2:]:
            check(joined.world_size)
            torch.distributed.barrier()
    if joined.rank == 0:
        print("all switches checked")
    session.leave()


if __name__ == "__main__":
    main()
