"""DistributedDataParallel in each of its ways, and its communication hooks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from multiprocess.reference import (
    FEATURES,
    STEPS,
    assert_same,
    batch,
    loss_of,
    model,
    sgd,
    train_alone,
    train_in_step,
)

MANY_BUCKETS_MB = 0.0005  # about one bucket for each parameter


def plain(rank: int, world_size: int) -> None:
    # A model that differs from rank to rank: rank 0's is the one that counts.
    net = DistributedDataParallel(model(seed=rank))
    train_in_step(net, rank)
    assert_same(net, train_alone(world_size))


def gradient_as_bucket_view(rank: int, world_size: int) -> None:
    net = DistributedDataParallel(
        model(), gradient_as_bucket_view=True, bucket_cap_mb=MANY_BUCKETS_MB
    )
    train_in_step(net, rank)
    assert_same(net, train_alone(world_size))


def static_graph(rank: int, world_size: int) -> None:
    net = DistributedDataParallel(model(), static_graph=True, bucket_cap_mb=MANY_BUCKETS_MB)
    train_in_step(net, rank)
    assert_same(net, train_alone(world_size))


class Branches(nn.Module):
    """Odd and even ranks go different ways; one way is never gone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = model(seed=1)
        self.second = model(seed=2)
        self.never = nn.Linear(FEATURES, 1).double()

    def forward(self, inputs: torch.Tensor, rank: int) -> torch.Tensor:
        return (self.second if rank % 2 else self.first)(inputs)


def find_unused_parameters(rank: int, world_size: int) -> None:
    net = DistributedDataParallel(Branches(), find_unused_parameters=True)
    alone = Branches()
    ours, theirs = sgd(net.parameters()), sgd(alone.parameters())
    for step in range(STEPS):
        ours.zero_grad()
        theirs.zero_grad()
        inputs, targets = batch(step, rank)
        nn.functional.cross_entropy(net(inputs, rank), targets).backward()
        for r in range(world_size):
            inputs, targets = batch(step, r)
            loss = nn.functional.cross_entropy(alone(inputs, r), targets)
            (loss / world_size).backward()
        ours.step()
        theirs.step()
    assert_same(net, alone)


def no_sync(rank: int, world_size: int) -> None:
    """Three batches between two synchronizations."""
    net, alone = DistributedDataParallel(model()), model()
    ours, theirs = sgd(net.parameters()), sgd(alone.parameters())
    for step in range(STEPS):
        ours.zero_grad()
        theirs.zero_grad()
        with net.no_sync():
            for part in range(2):
                loss_of(net, *batch(10 * step + part, rank)).backward()
        loss_of(net, *batch(10 * step + 2, rank)).backward()
        for part in range(3):
            for r in range(world_size):
                (loss_of(alone, *batch(10 * step + part, r)) / world_size).backward()
        ours.step()
        theirs.step()
    assert_same(net, alone)


def join_with_uneven_inputs(rank: int, world_size: int) -> None:
    """Rank r has 2 + 2r batches; a rank that has run out adds zeros."""
    counts = [2 + 2 * r for r in range(world_size)]
    net, alone = DistributedDataParallel(model()), model()
    ours, theirs = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(alone.parameters(), 0.1)
    with Join([net]):
        for step in range(counts[rank]):
            ours.zero_grad()
            loss_of(net, *batch(step, rank)).backward()
            ours.step()
    for step in range(max(counts)):
        theirs.zero_grad()
        for r in range(world_size):
            if step < counts[r]:
                (loss_of(alone, *batch(step, r)) / world_size).backward()
        theirs.step()
    assert_same(net, alone)


def sync_of_buffers(rank: int, world_size: int) -> None:
    """Running statistics are rank 0's on every rank."""
    net = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()
    ours = DistributedDataParallel(net)
    train_in_step(ours, rank)
    ours(batch(99, rank)[0])  # the forward pass is what hands rank 0's buffers on
    mean = net[1].running_mean
    assert isinstance(mean, torch.Tensor)
    last = mean.clone()
    dist.broadcast(last, 0)
    ours.eval()
    assert mean.isfinite().all()
    assert last.isfinite().all()


def _bf16_hook(
    state: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """By its own name torch admits this hook on GPUs only; nothing in it needs one."""
    return default_hooks.bf16_compress_hook(state, bucket)


def half_precision_hooks(rank: int, world_size: int) -> None:
    expected = train_alone(world_size)
    for hook, rtol in (
        (default_hooks.fp16_compress_hook, 4e-3),
        (_bf16_hook, 3e-2),
    ):
        net = DistributedDataParallel(model(), bucket_cap_mb=MANY_BUCKETS_MB)
        net.register_comm_hook(None, hook)
        train_in_step(net, rank)
        assert_same(net, expected, rtol=rtol, atol=rtol / 10)
        _assert_replicas_agree(net)


def power_sgd_of_full_rank(rank: int, world_size: int) -> None:
    """With the matrices' full rank nothing is lost: what remains is the plain average."""
    net = DistributedDataParallel(model(), bucket_cap_mb=MANY_BUCKETS_MB)
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=16,
        start_powerSGD_iter=2,
        min_compression_rate=0.1,
        orthogonalization_epsilon=0,
    )
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train_in_step(net, rank)
    assert state.compression_stats()[2] > 0, "nothing was compressed"
    assert_same(net, train_alone(world_size), rtol=1e-6, atol=1e-8)


def power_sgd_of_low_rank(rank: int, world_size: int) -> None:
    """Many buckets for many steps: replicas stay alike, bit by bit, and learn."""
    net = DistributedDataParallel(model(), bucket_cap_mb=MANY_BUCKETS_MB)
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2
    )
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    stepper = torch.optim.SGD(net.parameters(), 0.3)
    losses = []
    for _ in range(60):
        stepper.zero_grad()
        loss = loss_of(net, *batch(0, rank))
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0], losses
    _assert_replicas_agree(net)


def _assert_replicas_agree(net: nn.Module) -> None:
    for name, parameter in net.named_parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, parameter), f"{name} differs from rank 0's"


CHECKS = (
    plain,
    gradient_as_bucket_view,
    static_graph,
    find_unused_parameters,
    no_sync,
    join_with_uneven_inputs,
    sync_of_buffers,
    half_precision_hooks,
    power_sgd_of_full_rank,
    power_sgd_of_low_rank,
)
