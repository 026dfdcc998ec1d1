"""Bits that no rank count changes: fixed shards of each global batch, gradients summed in a fixed tree.

A global batch is divided into 8 shards, whatever the number of ranks. A rank computes its shards one after
the other, so kernels meet the same shapes everywhere, and sums their gradients pairwise; the ranks then
go on pairwise, by recursive doubling. Together that is one balanced binary tree over the shards, and the
same on 1, 2, 4 and 8 ranks. Random draws belong to a shard, not to a rank.

What it costs: 8 small passes a step in place of one a rank, one thread a rank on the CPU, and no
communication behind the computation.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from doubletime.collectives import functions
from doubletime.collectives.party import party_of
from doubletime.errors import TrainingError
from doubletime.training import session
from doubletime.training.backward import Backward, Trouble
from doubletime.training.data import Batches, ShardedSampler, Share, agree, length_of
from doubletime.training.mesh import Mesh
from doubletime.training.precision import forward_in
from doubletime.training.splitting import map_tensors, split
from doubletime.training.switches import Switches
from doubletime.training.task import Data

SHARDS = 8
_SEEDS_APART = 1_000_003


def own_shards() -> range:
    """The shards of this rank: as many on each, neighbours in the order in which recursive doubling pairs ranks.

    Raises:
        TrainingError: if the ranks are neither 1, 2, 4 nor 8.
    """
    joined = session.current()
    if SHARDS % joined.world_size:
        raise TrainingError(
            f"reproducible training divides each batch among {SHARDS} shards, which {joined.world_size} "
            "ranks cannot share alike",
            "start 1, 2, 4 or 8 ranks, or leave --reproducible out",
        )
    each = SHARDS // joined.world_size
    place = 0
    if joined.world_size > 1:
        place = party_of(None).topology.order(None).index(joined.rank)
    return range(place * each, (place + 1) * each)


class ShardSampler(ShardedSampler):
    """Gives a rank the samples of its shards, shard after shard.

    Args:
        shards: whose samples; the others' are other ranks'.
        length, global_batch, rank, world_size, shuffle, seed: as in ShardedSampler.
    """

    def __init__(self, shards: range, length: int, global_batch: int, **kwargs: Any) -> None:
        super().__init__(length, global_batch, **kwargs)
        self.shards = shards

    def shares(self) -> Iterator[Share]:
        """This rank's share of each global batch of the current epoch that is still to come."""
        for batch in self._order().split(self.global_batch)[self.first :]:
            mine = [index for shard in self.shards for index in batch[shard::SHARDS].tolist()]
            yield Share(mine, len(batch), int(batch[0]))


def loader(data: Data, global_batch: int, *, seed: int = 0, num_workers: int = 0) -> Batches:
    """This rank's shards of the data, as batches; see `data.loader`."""
    joined = session.current()
    length = length_of(data)
    if joined.world_size > 1:
        agree(length, global_batch, seed, joined)
    sampler = ShardSampler(
        own_shards(),
        length,
        global_batch,
        rank=joined.rank,
        world_size=joined.world_size,
        seed=seed,
    )
    return Batches(data, sampler, num_workers)


def check(mesh: Mesh, switches: Switches) -> None:
    """Refuse what divides work in a way that a rank count changes.

    Raises:
        TrainingError: if there is such a thing.
    """
    if not mesh.is_data_parallel:
        raise TrainingError(
            f'a reproducible run holds the whole model on each rank, and mesh "{mesh}" divides it',
            "leave --mesh out, or --reproducible",
        )
    for name, why in (
        ("sync_batchnorm", "takes its mean over the ranks"),
        ("accumulate", "divides a rank's share, which is divided into shards already"),
    ):
        if name in switches.turned():
            raise TrainingError(
                f"{name} {why}", f"leave --{name.replace('_', '-')} out, or --reproducible"
            )


@contextmanager
def fixed_kernels() -> Iterator[None]:
    """While open, kernels compute the same bits from the same input on any host of one kind."""
    threads = torch.get_num_threads()
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS refuses
    torch.set_num_threads(1)  # how many there are decides how a sum is divided
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic)
        torch.set_num_threads(threads)


class ReproducibleBackward(Backward):
    """Computes gradients of global batches, and what they leave in buffers.

    Made as `Backward` is, with batches by a ShardSampler and a model that is not wrapped and alike on all
    ranks.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._shards = own_shards()
        self._parameters = [each for each in self._model.parameters() if each.requires_grad]
        self._dtype = functools.reduce(
            torch.promote_types, (each.dtype for each in self._parameters), torch.float32
        )

    def compute(self, batch: Any, epoch: int, step: int) -> float:
        """Set each parameter's gradient, and each buffer, to the mean over the global batch; collective.

        Args:
            batch: this rank's samples, in the order of its shards, on its device.
            epoch: from 1; random draws differ by it.
            step: of the epoch, likewise.

        Returns:
            The mean loss over the global batch, the same bits on all ranks.

        Raises:
            TrainingError: if the loss is not finite and the run shall stop.
        """
        batches, self.trouble, shards = self._batches, None, self._shards
        counts = [len(range(shard, batches.global_count, SHARDS)) for shard in shards]
        parts = split(batch, counts) if batches.count else [batch] * len(counts)
        before = [buffer.clone() for buffer in self._model.buffers()]
        # As a binary counter: two sums over equally many shards become one.
        sums: list[Tensor] = []
        for done, (shard, count, part) in enumerate(zip(shards, counts, parts, strict=True)):
            torch.manual_seed(self._draw_seed(epoch, step, shard))
            self._put_buffers(before)
            sums.append(self._of_shard(part, count / batches.global_count, before))
            for _ in range(_trailing_ones(done)):
                right = sums.pop()
                sums[-1] = sums[-1] + right
        (total,) = sums
        if len(shards) < SHARDS:
            self._sum_over_ranks(total)
        self._put_buffers(before)
        loss = self._take_apart(total)
        if not math.isfinite(loss):
            self._refuse(loss, epoch, step)
        return loss

    def _sum_over_ranks(self, total: Tensor) -> None:
        with self._clock.step():
            self._clock.launched()
            began_s = time.perf_counter()
            functions.all_reduce(total, algorithm="recursive_doubling")
            self._clock.transferred(began_s, time.perf_counter())

    def _refuse(self, loss: float, epoch: int, step: int) -> None:
        """Stop the run, or have all ranks skip the step."""
        trouble = Trouble(loss, self._joined.rank, tuple(self._batches.indices), ())
        if not self._switches.skips:
            raise TrainingError(
                f"the loss is {loss} at step {step} of epoch {epoch}, over all ranks",
                "lower the learning rate, --warmup or --clip-norm 1, or --on-nan skip",
            )
        self.trouble = trouble
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.fill_(math.nan)

    def _draw_seed(self, *numbers: int) -> int:
        seed = self._batches.sampler.seed
        for number in numbers:
            seed = (seed * _SEEDS_APART + number) % (1 << 63)
        return seed

    def _of_shard(self, part: Any, weight: float, before: list[Tensor]) -> Tensor:
        """In one tensor: gradients, which parameters have one, how buffers have changed, the loss."""
        for parameter in self._parameters:
            parameter.grad = None
        loss = torch.zeros(())
        if weight:
            # Parts of one tensor do not lie as a tensor of their own does, and kernels heed that.
            with forward_in(self._switches.precision, self._joined.device):
                loss = self._loss_of(self._model, map_tensors(part, Tensor.clone)) * weight
            (loss * self._scale.scale).backward()
        gradients = [parameter.grad for parameter in self._parameters]
        pieces = [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(self._parameters, gradients, strict=True)
        ]
        device = self._parameters[0].device
        has = torch.tensor([float(gradient is not None) for gradient in gradients], device=device)
        changes = [
            (now.to(_wide(now)) - then.to(_wide(then))).to(self._dtype) * weight
            for now, then in zip(self._model.buffers(), before, strict=True)
        ]
        everything = [*pieces, has, *changes, loss.detach().to(device)]
        return torch.cat([each.detach().to(self._dtype).reshape(-1) for each in everything])

    @torch.no_grad()
    def _take_apart(self, total: Tensor) -> float:
        buffers = list(self._model.buffers())
        sizes = [each.numel() for each in (*self._parameters, *buffers)]
        count = len(self._parameters)
        gradients, rest = total.split([sum(sizes[:count]), len(total) - sum(sizes[:count])])
        has = rest[:count].tolist()
        for parameter, flat, is_there in zip(
            self._parameters, gradients.split(sizes[:count]), has, strict=True
        ):
            parameter.grad = flat.view_as(parameter).to(parameter.dtype) if is_there else None
        for buffer, change in zip(buffers, rest[count:-1].split(sizes[count:]), strict=True):
            whole = change if buffer.is_floating_point() else change.round()
            new = buffer.to(_wide(buffer)) + whole.view_as(buffer).to(_wide(buffer))
            buffer.copy_(new.to(buffer.dtype))
        return float(rest[-1])

    @torch.no_grad()
    def _put_buffers(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self._model.buffers(), values, strict=True):
            buffer.copy_(value)


def _wide(buffer: Tensor) -> torch.dtype:
    """In which its changes can be told: there is no difference of truths."""
    return torch.int64 if buffer.dtype == torch.bool else buffer.dtype


def _trailing_ones(number: int) -> int:
    """How many sums are complete once shard `number` is there, counted from 0."""
    return (~number & (number + 1)).bit_length() - 1
