"""Every check of compressed gradients over several ranks, in one job: see `checks.job.main`."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from checks.job import main
from doubletime.training.compression import spec
from doubletime.training.compression.exchange import Exchange
from multiprocess.reference import MANY_BUCKETS_MB, STEPS, batch, loss_of, model, train_alone
from training.compression import sending_checks

EVERY = ("fp16", "bf16", "int8", "powersgd:1", "powersgd:3", "topk:0.1", "topk:1")


def _wrapped(
    what: str | None, algorithm: str = "native", bucket_mb: float = MANY_BUCKETS_MB
) -> tuple[DistributedDataParallel, Exchange]:
    net = DistributedDataParallel(model(), bucket_cap_mb=bucket_mb)
    return net, Exchange(net, spec.parse(what) if what else None, algorithm)


def _digest(net: nn.Module) -> int:
    numbers = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    return zlib.crc32(numbers.numpy().tobytes())


def _trained(what: str | None, rank: int, algorithm: str = "native", mb: float = 1.0):
    net, exchange = _wrapped(what, algorithm, mb)
    stepper = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        stepper.zero_grad()
        loss_of(net, *batch(step, rank)).backward()
        stepper.step()
    exchange.close()
    return net, exchange


@torch.no_grad()
def _differs(found: nn.Module, expected: nn.Module) -> float:
    pairs = zip(found.parameters(), expected.parameters(), strict=True)
    squares = [(ours - theirs).square().sum() / theirs.square().sum() for ours, theirs in pairs]
    return float(max(squares)) ** 0.5


def what_loses_nothing_trains_as_one_process(rank: int, world_size: int) -> int:
    expected = train_alone(world_size)
    for what, algorithm in (
        (None, "ring"),
        (None, "auto"),
        ("topk:1", "native"),
        ("topk:1", "halving_doubling"),
        ("topk:1", "double_binary_tree"),
    ):
        for mb in (1.0, MANY_BUCKETS_MB):
            net, _ = _trained(what, rank, algorithm, mb)
            assert _differs(net.module, expected) < 1e-9, (what, algorithm, mb)
    return _digest(net)


def what_loses_little_trains_nearly_as_one_process(rank: int, world_size: int) -> int:
    expected = train_alone(world_size)
    digests = 0
    for what, most in (("fp16", 2e-3), ("bf16", 2e-2), ("int8", 2e-2)):
        for mb in (1.0, MANY_BUCKETS_MB):
            net, _ = _trained(what, rank, mb=mb)
            assert 1e-9 < _differs(net.module, expected) < most, (what, mb)
            digests ^= _digest(net)
    return digests


def nothing_is_lost_but_what_is_kept(rank: int, world_size: int) -> None:
    """Over all steps and ranks: what has been sent and what is kept add up to all gradients."""
    for what in ("int8", "powersgd:1", "topk:0.05"):
        for mb in (1.0, MANY_BUCKETS_MB):  # buckets are divided anew after the first step
            net, exchange = _wrapped(what, bucket_mb=mb)
            bare = model()
            sent = [torch.zeros_like(each) for each in net.parameters()]
            due = [torch.zeros_like(each) for each in net.parameters()]
            for step in range(6):
                net.zero_grad()
                bare.zero_grad()
                loss_of(net, *batch(step, rank)).backward()
                loss_of(bare, *batch(step, rank)).backward()
                for total, each in zip(sent, net.parameters(), strict=True):
                    total += each.grad
                for total, each in zip(due, bare.parameters(), strict=True):
                    total += each.grad
            exchange.close()
            kept = exchange.own()
            largest = 0.0
            for (name, _), ours, theirs in zip(
                net.module.named_parameters(), sent, due, strict=True
            ):
                residual = kept[name].view(theirs.shape)
                largest = max(largest, float(residual.abs().max()))
                all_due, all_kept = theirs.clone(), residual.clone()
                dist.all_reduce(all_due)
                dist.all_reduce(all_kept)
                torch.testing.assert_close(
                    ours * world_size + all_kept, all_due, rtol=1e-9, atol=1e-11
                )
            assert largest > 1e-6, f"{what} keeps nothing"


def _same_as_published(
    what: str, rank: int, world_size: int, step_of: Callable[..., list[np.ndarray]]
) -> None:
    """Three steps of this rank's gradients against a reference that knows all ranks' gradients."""
    net, exchange = _wrapped(what, bucket_mb=1.0)
    shapes = [tuple(each.shape) for each in net.parameters()]
    state: dict[object, np.ndarray] = {}
    bare = model()
    for step in range(3):
        everyone = []
        for other in range(world_size):
            bare.zero_grad()
            loss_of(bare, *batch(step, other)).backward()
            everyone.append([each.grad.numpy().copy() for each in bare.parameters()])
        net.zero_grad()
        loss_of(net, *batch(step, rank)).backward()
        expected = step_of(state, everyone, shapes)
        for found, wanted in zip(net.parameters(), expected, strict=True):
            np.testing.assert_allclose(found.grad.numpy(), wanted, rtol=1e-7, atol=1e-10)
    exchange.close()


def power_sgd_is_the_published_one(rank: int, world_size: int) -> None:
    """Vogels et al. 2019, algorithms 1 and 2, in numpy."""

    def step_of(state, everyone, shapes):
        out = []
        for number, shape in enumerate(shapes):
            gradients = [each[number] for each in everyone]
            if len(shape) < 2 or 2 * 2 * sum(shape) > shape[0] * shape[1]:
                out.append(np.mean(gradients, axis=0))
                continue
            zero = np.zeros(shape)
            wanted = [g + state.get((number, i), zero) for i, g in enumerate(gradients)]
            q = state.get(number)
            if q is None:
                generator = torch.Generator().manual_seed(number)
                q = torch.randn(shape[1], 2, generator=generator).double().numpy()
            p, _ = np.linalg.qr(np.mean([m @ q for m in wanted], axis=0))
            q = np.mean([m.T @ p for m in wanted], axis=0)
            sent = p @ q.T
            state[number] = q
            for i, m in enumerate(wanted):
                state[(number, i)] = m - sent
            out.append(sent)
        assert state, "nothing was compressed"
        return out

    _same_as_published("powersgd:2", rank, world_size, step_of)


def top_k_is_the_published_one(rank: int, world_size: int) -> None:
    """Each rank's largest elements of gradient and residual, averaged; one bucket holds all."""

    def step_of(state, everyone, shapes):
        total, sizes = None, [int(np.prod(shape)) for shape in shapes]
        for other, gradients in enumerate(everyone):
            flat = np.concatenate([each.ravel() for each in gradients])
            flat = flat + state.get(other, 0)
            chosen = np.argsort(-np.abs(flat))[: int(np.ceil(0.1 * flat.size))]
            sent = np.zeros_like(flat)
            sent[chosen] = flat[chosen]
            state[other] = flat - sent
            total = sent if total is None else total + sent
        parts = np.split(total / len(everyone), np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    _same_as_published("topk:0.1", rank, world_size, step_of)


def what_is_kept_can_be_saved_and_goes_on(rank: int, world_size: int) -> None:
    """Stopped and begun anew with its state, an exchange finds the same gradients as one that went on."""
    for what in EVERY:
        net, exchange = _wrapped(what, bucket_mb=1.0)
        for step in range(4):
            if step == 2:
                other_net, other = _wrapped(what, bucket_mb=1.0)
                loss_of(other_net, *batch(9, rank)).backward()
                loss_of(other_net, *batch(9, rank)).backward()  # in the buckets as they stay
                other.load(exchange.shared(), [exchange.own()], world_size)
            net.zero_grad()
            loss_of(net, *batch(step, rank)).backward()
        for step in (2, 3):
            other_net.zero_grad()
            loss_of(other_net, *batch(step, rank)).backward()
        for found, wanted in zip(other_net.parameters(), net.parameters(), strict=True):
            assert torch.equal(found.grad, wanted.grad), what
        exchange.close()
        other.close()


def on_other_ranks_what_is_due_stays_due(rank: int, world_size: int) -> None:
    """Two ranks' residuals, loaded by one rank of this job, count as much in the mean as before."""
    net, exchange = _wrapped("topk:1", bucket_mb=1.0)
    names = dict(net.module.named_parameters())
    first = {name: torch.full((each.numel(),), 1.0) for name, each in names.items()}
    second = {name: torch.full((each.numel(),), 3.0) for name, each in names.items()}
    exchange.load({}, [first, second] if rank == 0 else [], 4)
    (sum(each.sum() for each in net.module.parameters()) * 0).backward()
    net.zero_grad()
    (loss_of(net, *batch(0, rank)) * 0).backward()
    for each in net.parameters():
        torch.testing.assert_close(each.grad, torch.full_like(each, (1.0 + 3.0) / 4))
    exchange.close()


def bytes_are_counted(rank: int, world_size: int) -> None:
    numbers = sum(each.numel() for each in model().parameters())
    others = world_size - 1
    for what, sent in (
        (None, 2 * others / world_size * 8 * numbers),
        ("topk:0.1", others * -(-numbers // 10) * (4 + 8)),
        ("fp16", 2 * others * -(-numbers // world_size) * 2),
    ):
        _, exchange = _trained(what, rank)
        assert exchange.plain_nbytes == 2 * others / world_size * 8 * numbers * STEPS
        found = exchange.channel.sent_nbytes
        assert abs(found - sent * STEPS) < 1e-6 * sent, (what, found, sent * STEPS)


def a_gradient_that_is_no_number_stays_one(rank: int, world_size: int) -> None:
    for what in EVERY:
        net, exchange = _wrapped(what, bucket_mb=1.0)
        inputs, targets = batch(0, rank)
        if rank == world_size - 1:
            inputs[0, 0] = float("nan")
        loss_of(net, inputs, targets).backward()
        exchange.close()
        bad = [each for each in net.parameters() if not torch.isfinite(each.grad).all()]
        assert bad, f"{what} hides it"


def an_error_in_the_thread_ends_backward(rank: int, world_size: int) -> None:
    net, exchange = _wrapped("topk:0.1", bucket_mb=1.0)

    def fails(*_: object) -> None:
        raise ArithmeticError("this bucket is bad")

    exchange._averaging.average = fails  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="this bucket is bad"):
        loss_of(net, *batch(0, rank)).backward()
    exchange.close()


CHECKS = (
    what_loses_nothing_trains_as_one_process,
    what_loses_little_trains_nearly_as_one_process,
    nothing_is_lost_but_what_is_kept,
    power_sgd_is_the_published_one,
    top_k_is_the_published_one,
    what_is_kept_can_be_saved_and_goes_on,
    on_other_ranks_what_is_due_stays_due,
    bytes_are_counted,
    a_gradient_that_is_no_number_stays_one,
    an_error_in_the_thread_ends_backward,
    *sending_checks.CHECKS,
)
NAMES = [check.__name__ for check in CHECKS]

if __name__ == "__main__":
    main(lambda _: {check.__name__: check for check in CHECKS})
