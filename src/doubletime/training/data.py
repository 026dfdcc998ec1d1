"""Sharding: every sample exactly once per epoch, in an order that no rank count changes."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from doubletime.errors import DataError, TaskError
from doubletime.training import session
from doubletime.training.axes import Axes, axes_of
from doubletime.training.mesh import Mesh
from doubletime.training.splitting import map_tensors
from doubletime.training.task import Data

_SEEDS_APART = 1_000_003


@dataclass(frozen=True)
class Share:
    """One rank's share of one global batch.

    Attributes:
        indices: its samples; maybe none in an uneven last batch.
        global_count: samples of the whole global batch.
        filler: a sample of the batch, to compute on (with weight 0) where the share is empty.
    """

    indices: list[int]
    global_count: int
    filler: int


class ShardedSampler(Sampler[list[int]]):
    """Each epoch's global batches, and this rank's share of each.

    The order is a function of seed and epoch alone, so 1 rank and N ranks see the same global
    batches. Shares of one batch differ by one sample at most, the first ranks hold the larger.

    Args:
        length: samples in the dataset.
        global_batch: samples per step over all ranks; the last batch of an epoch may be smaller.
        rank, world_size: whose shares, of how many that get others.
        shuffle: a new permutation each epoch, or the dataset's own order.
        seed: of the permutations.

    Raises:
        DataError: if the dataset has fewer samples than there are ranks.
        TaskError: if the global batch has fewer samples than there are ranks.
    """

    def __init__(
        self,
        length: int,
        global_batch: int,
        *,
        rank: int,
        world_size: int,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if length < world_size:
            raise DataError(
                f"the dataset has {length} samples, the job {world_size} ranks",
                f"start at most {length} rank{'s' * (length > 1)}"
                if length
                else "give it a dataset with samples",
            )
        if global_batch < world_size:
            raise TaskError(
                f"a global batch of {global_batch} is too small for {world_size} ranks",
                f"--global-batch {world_size} or more, or fewer ranks",
            )
        self.length = length
        self.global_batch = global_batch
        self.rank = rank
        self.world_size = world_size
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.first = 0  # the global batch with which the current epoch begins

    def __len__(self) -> int:
        """Global batches per epoch, the same on every rank."""
        return -(-self.length // self.global_batch)

    def shares(self) -> Iterator[Share]:
        """This rank's share of each global batch of the current epoch that is still to come."""
        order = self._order()
        for batch in order.split(self.global_batch)[self.first :]:
            mine = batch[self.rank :: self.world_size]
            yield Share(mine.tolist(), len(batch), int(batch[0]))

    def __iter__(self) -> Iterator[list[int]]:
        """The indices to load for each batch: the share, or the filler where it is empty."""
        for share in self.shares():
            yield share.indices or [share.filler]

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.length)
        generator = torch.Generator().manual_seed(self.seed * _SEEDS_APART + self.epoch)
        return torch.randperm(self.length, generator=generator)


class Batches:
    """This rank's batches, epoch after epoch; iterate once per epoch.

    Where an uneven last batch leaves this rank without a sample, it yields one borrowed sample
    with `count` 0 and `weight` 0, so that the rank still takes part in the step.

    Attributes:
        axes: of the mesh whose ranks get others; None for all ranks.
        count: samples of the batch at hand that count, on this rank.
        indices: of these, as the dataset numbers them.
        global_count: the same over all ranks.
        weight: what to multiply a mean loss with before `backward()`, so that the average over
            the ranks is the mean over the global batch: count · world_size / global_count.
        position: the epoch, from 0, and how many of its batches have been given out: where to go on
            once the batch at hand has been trained on.
    """

    def __init__(
        self,
        data: Data,
        sampler: ShardedSampler,
        num_workers: int = 0,
        axes: Axes | None = None,
    ) -> None:
        self.sampler = sampler
        self.axes = axes
        self.count = 0
        self.indices: list[int] = []
        self.global_count = 0
        self.position = (0, 0)
        self._epochs = 0
        self._first = 0
        # Its own, for the workers' seeds: whether an epoch is begun anew or resumed must leave the
        # default generator alike.
        self._generator = torch.Generator()
        self._tensors = tensors_of(data)
        self._loader: DataLoader[Any] | None = None
        if self._tensors is None:
            self._loader = DataLoader(
                cast("Dataset[Any]", data),
                batch_sampler=sampler,
                num_workers=num_workers,
                persistent_workers=num_workers > 0,
                generator=self._generator,
                worker_init_fn=_outlive_sigterm,
            )

    @property
    def weight(self) -> float:
        """The factor of the loss of the batch at hand."""
        return self.count * self.sampler.world_size / self.global_count

    def __len__(self) -> int:
        """Steps per epoch, the same on every rank."""
        return len(self.sampler)

    def resume(self, epoch: int, step: int) -> None:
        """Let the next iteration begin in the midst of an epoch, as after a restart.

        Global batches do not depend on the number of ranks, so neither does what is still to come.

        Args:
            epoch: from 0.
            step: of that epoch, from 0: the first global batch that was not trained on.

        Raises:
            DataError: if there is no such step.
        """
        if epoch < 0 or not 0 <= step <= len(self):
            raise DataError(
                f"step {step} of epoch {epoch} is none of this data, which has {len(self)} steps an epoch",
                "resume with the data and the global batch that the job began with",
            )
        self._epochs, self._first = epoch, step
        self.position = (epoch, step)

    def specimen(self) -> Any:
        """A batch like this rank's, which leaves the position as it is and counts for nothing."""
        indices = list(range(max(1, self.sampler.global_batch // self.sampler.world_size)))
        indices = [index % self.sampler.length for index in indices]
        if self._loader is None:
            return next(_gather(self._tensors or (), [indices]))
        return next(iter(DataLoader(self._loader.dataset, batch_sampler=[indices])))

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch; after `resume`, the rest of that one."""
        epoch, first = self._epochs, self._first
        self.sampler.epoch, self.sampler.first = epoch, first
        self.position = (epoch, first)
        self._epochs, self._first = epoch + 1, 0
        if self._loader is not None:
            seed = (self.sampler.seed * _SEEDS_APART + epoch) * _SEEDS_APART + self.sampler.rank
            self._generator.manual_seed(seed % (1 << 63))
            loaded: Iterator[Any] = iter(self._loader)
        else:
            loaded = _gather(self._tensors or (), self.sampler)
        shares = zip(self.sampler.shares(), loaded, strict=True)
        for step, (share, batch) in enumerate(shares, first + 1):
            self.indices = share.indices
            self.count, self.global_count = len(share.indices), share.global_count
            self.position = (epoch, step)
            yield batch
        self.position = (epoch + 1, 0)


def _outlive_sigterm(_worker: int) -> None:
    """In a worker: where its rank saves at SIGTERM, leave the end to the rank.

    Batch systems send it to all processes, and torch fails a rank whose worker dies.
    """
    if callable(signal.getsignal(signal.SIGTERM)):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _gather(
    tensors: tuple[Tensor, ...], batches: Iterable[list[int]]
) -> Iterator[tuple[Tensor, ...]]:
    """Batches of tensors that lie in memory: one gather each, no process, no collation."""
    for indices in batches:
        yield tuple(
            tensor.index_select(0, torch.tensor(indices, device=tensor.device))
            for tensor in tensors
        )


def loader(
    data: Data,
    global_batch: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    num_workers: int = 0,
    mesh: Mesh | str | None = None,
) -> Batches:
    """This rank's share of the data, as batches; all ranks must call it alike.

    Args:
        data: a map-style dataset, or a tuple of tensors with one row per sample.
        global_batch: samples per step over all ranks.
        shuffle: a new order each epoch.
        seed: of that order, the same on all ranks.
        num_workers: processes that load a dataset which does not lie in memory.
        mesh: that the ranks form; those along its axes `tp` and `pp` get the same samples. By default
            all get others.

    Raises:
        MeshError: if the job's ranks do not form the mesh.
        DataError: if the data is too small, or differs in length between ranks or tensors.
        TaskError: if the global batch is smaller than the number of ranks.
    """
    joined = session.current()
    axes = axes_of(mesh)
    length = length_of(data)
    if joined.world_size > 1:
        agree(length, global_batch, seed, joined)
    sampler = ShardedSampler(
        length,
        global_batch,
        rank=axes.data_rank,
        world_size=axes.mesh.data_size,
        shuffle=shuffle,
        seed=seed,
    )
    return Batches(data, sampler, num_workers, axes)


def tensors_of(data: Data) -> tuple[Tensor, ...] | None:
    """The tensors behind the data where it lies in memory whole, else None."""
    if isinstance(data, TensorDataset):
        return tuple(data.tensors)
    if isinstance(data, tuple) and all(isinstance(part, Tensor) for part in data):
        return data
    return None


def length_of(data: Data) -> int:
    """The number of samples.

    Raises:
        DataError: if the data has no length, or its tensors have different ones.
    """
    tensors = tensors_of(data)
    if tensors is not None:
        lengths = sorted({len(tensor) for tensor in tensors})
        if len(lengths) != 1:
            raise DataError(f"the tensors have different numbers of rows: {lengths}")
        return lengths[0]
    if not isinstance(data, Sized):
        raise DataError(
            f"{type(data).__name__} has no length, so it cannot be divided among ranks",
            "give a map-style dataset (with __len__ and __getitem__) or a tuple of tensors",
        )
    return len(data)


def agree(length: int, global_batch: int, seed: int, joined: session.Session) -> None:
    """Ranks that plan different epochs would wait for each other for ever: compare first; collective.

    Raises:
        DataError: if they do.
    """
    mine = torch.tensor([length, global_batch, seed], dtype=torch.int64, device=joined.device)
    everyone = [torch.empty_like(mine) for _ in range(joined.world_size)]
    dist.all_gather(everyone, mine)
    for column, what in enumerate(("samples", "global batch", "seed")):
        values = [int(row[column]) for row in everyone]
        if len(set(values)) > 1:
            other = next(rank for rank, value in enumerate(values) if value != values[0])
            raise DataError(
                f"the ranks disagree on the {what}: {values[0]} on rank 0, "
                f"{values[other]} on rank {other}",
                "every rank must be given the same data and the same numbers",
            )


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in it (also in tuples, lists and dicts) on the device."""
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))
