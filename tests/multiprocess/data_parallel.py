"""DistributedDataParallel in each of its ways."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from multiprocess.reference import (
    FEATURES,
    MANY_BUCKETS_MB,
    STEPS,
    assert_same,
    batch,
    loss_of,
    model,
    sgd,
    train_alone,
    train_in_step,
)


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


CHECKS = (
    plain,
    gradient_as_bucket_view,
    static_graph,
    find_unused_parameters,
    no_sync,
    join_with_uneven_inputs,
    sync_of_buffers,
)
