"""One copy of a model on a host: computes what one process computes, for every optimizer it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn

from doubletime.errors import TrainingError
from doubletime.training import host_copy
from multiprocess.reference import STEPS, assert_same, batch, global_batch, loss_of, model, sgd

_OPTIMIZERS: dict[str, Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]] = {
    "SGD": sgd,
    "SGD with decay": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adadelta": torch.optim.Adadelta,
    "RMSprop": partial(torch.optim.RMSprop, momentum=0.5, centered=True),
}  # fmt: skip


def _groups(net: nn.Sequential) -> list[dict[str, object]]:
    """Two groups with settings of their own, the second smaller than there are ranks."""
    last = [net[4].bias]
    return [
        {"params": [p for p in net.parameters() if p is not last[0]]},
        {"params": last, "lr": 0.5},
    ]


def every_optimizer(rank: int, world_size: int) -> None:
    for name, make in _OPTIMIZERS.items():
        net, alone = model(seed=rank), model()  # rank 0's parameters become everyone's
        stepper = make(net.parameters())
        assert host_copy.share(net, stepper) is not None, name
        by_itself = make(alone.parameters())
        for step in range(STEPS):
            stepper.zero_grad()
            loss_of(net, *batch(step, rank)).backward()
            stepper.step()
            by_itself.zero_grad()
            loss_of(alone, *global_batch(step, world_size)).backward()
            by_itself.step()
        assert_same(net, alone)


def groups_and_accumulation(rank: int, world_size: int) -> None:
    net, alone = model(), model()
    stepper = torch.optim.SGD(_groups(net), lr=0.1, momentum=0.9)
    assert host_copy.share(net, stepper) is not None
    by_itself = torch.optim.SGD(_groups(alone), lr=0.1, momentum=0.9)
    for step in range(0, 2 * STEPS, 2):
        for half in (step, step + 1):  # two backward passes for one step
            (loss_of(net, *batch(half, rank)) / 2).backward()
            (loss_of(alone, *global_batch(half, world_size)) / 2).backward()
        for each in (stepper, by_itself):
            each.step()
            each.zero_grad()
    assert_same(net, alone)


def a_learning_rate_s_schedule(rank: int, world_size: int) -> None:
    net, alone = model(), model()
    stepper, by_itself = sgd(net.parameters()), sgd(alone.parameters())
    assert host_copy.share(net, stepper) is not None
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (stepper, by_itself)]
    for step in range(STEPS):
        loss_of(net, *batch(step, rank)).backward()
        loss_of(alone, *global_batch(step, world_size)).backward()
        for each, schedule in zip((stepper, by_itself), schedules, strict=True):
            each.step()
            each.zero_grad()
            schedule.step()
    assert_same(net, alone)


def all_hold_one_copy(rank: int, world_size: int) -> None:
    net = model()
    assert host_copy.share(net, sgd(net.parameters())) is not None
    first = next(net.parameters())
    before = first.detach().clone()
    torch.distributed.barrier()
    if rank == world_size - 1:
        with torch.no_grad():
            first.add_(1)
    torch.distributed.barrier()
    assert torch.equal(first, before + 1)
    torch.distributed.barrier()


def a_parameter_without_a_gradient(rank: int, world_size: int) -> None:
    net = model()
    stepper = sgd(net.parameters())
    assert host_copy.share(net, stepper) is not None
    net[0](batch(0, rank)[0]).sum().backward()
    try:
        stepper.step()
    except TrainingError as error:
        assert "no gradient for 2.weight, 2.bias, 4.weight, 4.bias" in str(error)  # noqa: PT017
        return
    raise AssertionError("a step without gradients")


def obstacles_leave_all_as_it_was(rank: int, world_size: int) -> None:
    class Mine(torch.optim.SGD):
        """May do anything."""

    normed = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    net, other, mixed = model(), model(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    stepped = sgd(net.parameters())
    loss_of(net, *batch(0, rank)).backward()
    stepped.step()
    for module, stepper, reason in (
        (normed, sgd(normed.parameters()), "buffers"),
        (other, Mine(other.parameters(), lr=0.1), "Mine may look at whole parameters"),
        (other, torch.optim.LBFGS(other.parameters()), "LBFGS"),
        (other, sgd(list(other.parameters())[1:]), "not the model's"),
        (net, stepped, "state already"),
        (mixed, sgd(mixed.parameters()), "differ in type"),
    ):
        assert reason in str(host_copy.obstacle(module, stepper)), reason
        before = [p.data_ptr() for p in module.parameters()]
        assert host_copy.share(module, stepper) is None
        assert [p.data_ptr() for p in module.parameters()] == before
    # One rank's obstacle is everyone's.
    stepper = Mine(other.parameters(), lr=0.1) if rank == 0 else sgd(other.parameters())
    assert host_copy.share(other, stepper) is None


CHECKS = (
    every_optimizer,
    groups_and_accumulation,
    a_learning_rate_s_schedule,
    all_hold_one_copy,
    a_parameter_without_a_gradient,
    obstacles_leave_all_as_it_was,
)
