"""DistributedDataParallel's communication hooks, each with many buckets in flight."""

from __future__ import annotations

import os
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import doubletime as dt
from doubletime.collectives import run
from doubletime.plugin import ALL_REDUCE_VARIABLE
from multiprocess.reference import (
    MANY_BUCKETS_MB,
    assert_same,
    batch,
    loss_of,
    model,
    train_alone,
    train_in_step,
)


def _bf16_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses quoted annotations
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


def reduction_algorithms(rank: int, world_size: int) -> None:
    """doubletime's own hook, by several algorithms."""
    expected = train_alone(world_size)
    for algorithm in ("ring", "pipelined_ring", "halving_doubling", "auto", "native"):
        net = DistributedDataParallel(model(), bucket_cap_mb=MANY_BUCKETS_MB)
        net.register_comm_hook(None, dt.comm_hook(algorithm, segment_nbytes=64))
        train_in_step(net, rank)
        assert_same(net, expected)
        _assert_replicas_agree(net)


def own_all_reduce_by_an_algorithm(rank: int, world_size: int) -> None:
    """DOUBLETIME_ALLREDUCE: unmodified DDP over the backend, its all_reduce by an algorithm."""
    expected = train_alone(world_size)
    for algorithm in ("ring", "auto", "double_binary_tree"):
        os.environ[ALL_REDUCE_VARIABLE] = algorithm
        try:
            group = dist.new_group()
        finally:
            del os.environ[ALL_REDUCE_VARIABLE]
        with mock.patch.object(run, "all_reduce", wraps=run.all_reduce) as carried_out:
            net = DistributedDataParallel(
                model(), bucket_cap_mb=MANY_BUCKETS_MB, process_group=group
            )
            train_in_step(net, rank)
        # On one host `auto` is the backend's own way.
        assert bool(carried_out.call_count) is (algorithm != "auto")
        assert_same(net, expected)
        _assert_replicas_agree(net)
        dist.destroy_process_group(group)


def _assert_replicas_agree(net: nn.Module) -> None:
    for name, parameter in net.named_parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, parameter), f"{name} differs from rank 0's"


CHECKS = (
    half_precision_hooks,
    power_sgd_of_full_rank,
    power_sgd_of_low_rank,
    reduction_algorithms,
    own_all_reduce_by_an_algorithm,
)
