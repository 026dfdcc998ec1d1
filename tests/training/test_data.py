"""Sharding: every sample once, the same global batches on any number of ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from doubletime.errors import DataError, TaskError
from doubletime.training.data import Batches, ShardedSampler, length_of, loader, tensors_of


@st.composite
def jobs(draw):
    world_size = draw(st.integers(1, 9))
    return {
        "length": draw(st.integers(world_size, 200)),
        "global_batch": draw(st.integers(world_size, 64)),
        "world_size": world_size,
        "seed": draw(st.integers(0, 5)),
        "shuffle": draw(st.booleans()),
    }


def _samplers(job):
    return [ShardedSampler(**job, rank=rank) for rank in range(job["world_size"])]


@given(jobs())
def test_all_ranks_together_see_every_sample_once(job):
    seen = [i for s in _samplers(job) for share in s.shares() for i in share.indices]
    assert sorted(seen) == list(range(job["length"]))


@given(jobs())
def test_ranks_agree_on_the_batches_and_their_sizes(job):
    ranks = [list(sampler.shares()) for sampler in _samplers(job)]
    assert {len(shares) for shares in ranks} == {-(-job["length"] // job["global_batch"])}
    assert {len(sampler) for sampler in _samplers(job)} == {len(ranks[0])}
    for batch in zip(*ranks, strict=True):
        counts = [len(share.indices) for share in batch]
        assert {share.global_count for share in batch} == {sum(counts)}
        assert max(counts) - min(counts) <= 1
        assert counts == sorted(counts, reverse=True)
        assert counts[0] >= 1


@given(jobs())
def test_global_batches_do_not_depend_on_the_number_of_ranks(job):
    together = [
        sorted(i for share in batch for i in share.indices)
        for batch in zip(*(sampler.shares() for sampler in _samplers(job)), strict=True)
    ]
    alone = ShardedSampler(**{**job, "world_size": 1}, rank=0)
    assert together == [sorted(share.indices) for share in alone.shares()]


@given(jobs())
def test_weights_of_a_batch_sum_to_the_number_of_ranks(job):
    rows = (torch.arange(job["length"]),)
    ranks = [Batches(rows, sampler) for sampler in _samplers(job)]
    for _ in zip(*ranks, strict=True):
        assert sum(batches.weight for batches in ranks) == pytest.approx(job["world_size"])
        assert sum(batches.count for batches in ranks) == ranks[0].global_count


def test_each_epoch_has_its_own_order_and_the_seed_repeats_it():
    rows = (torch.arange(50),)
    batches, again = (loader(rows, 10, seed=3) for _ in range(2))
    first, second = ([batch[0].tolist() for batch in batches] for _ in range(2))
    assert first != second
    for epoch in (first, second):
        assert sorted(row for batch in epoch for row in batch) == list(range(50))
    assert [batch[0].tolist() for batch in again] == first
    assert [batch[0].tolist() for batch in loader(rows, 10, seed=4)] != first
    assert [batch[0].tolist() for batch in loader(rows, 10, shuffle=False)] == [
        list(range(start, start + 10)) for start in range(0, 50, 10)
    ]


def test_an_epoch_left_early_is_over():
    batches = loader((torch.arange(50),), 10)
    first = next(iter(batches))[0].tolist()
    assert next(iter(batches))[0].tolist() != first


class Squares(Dataset):
    """A dataset that does not lie in memory."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return torch.tensor(float(index)), index * index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_is_loaded_like_its_tensors(num_workers):
    number = torch.arange(23)
    in_memory = loader((number.float(), number * number), 5, seed=1)
    loaded = loader(Squares(), 5, seed=1, num_workers=num_workers)
    for _ in range(2):
        for here, there in zip(in_memory, loaded, strict=True):
            assert all(torch.equal(*pair) for pair in zip(here, there, strict=True))
            assert in_memory.count == loaded.count
    del loaded


def test_tensors_that_lie_in_memory_are_found():
    rows = torch.arange(3)
    assert tensors_of(TensorDataset(rows)) is not None
    assert tensors_of((rows, rows)) is not None
    assert tensors_of(Squares()) is None


def test_an_empty_share_borrows_a_sample_that_does_not_count():
    sampler = ShardedSampler(7, 3, rank=2, world_size=3, shuffle=False)
    batches = Batches((torch.arange(7),), sampler)
    met = [(batch[0].tolist(), batches.count, batches.weight) for batch in batches]
    assert met == [([2], 1, 1.0), ([5], 1, 1.0), ([6], 0, 0.0)]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("make", "error", "what"),
    [
        (
            lambda: ShardedSampler(3, 8, rank=0, world_size=4),
            DataError,
            "the dataset has 3 samples, the job 4 ranks",
        ),
        (
            lambda: ShardedSampler(0, 8, rank=0, world_size=1),
            DataError,
            "the dataset has 0 samples, the job 1 ranks",
        ),
        (
            lambda: ShardedSampler(30, 3, rank=0, world_size=4),
            TaskError,
            "a global batch of 3 is too small for 4 ranks",
        ),
        (
            lambda: length_of((torch.ones(3), torch.ones(4))),
            DataError,
            "the tensors have different numbers of rows: [3, 4]",
        ),
        (
            lambda: length_of(Stream()),
            DataError,
            "Stream has no length, so it cannot be divided among ranks",
        ),
    ],
)
def test_data_that_cannot_be_divided_is_refused(make, error, what):
    with pytest.raises(error) as caught:
        make()
    assert caught.value.what == what


@given(jobs(), st.integers(1, 9), st.data())
def test_an_epoch_left_off_on_some_ranks_goes_on_on_others(job, others, data):
    """Before and after together, every sample once; the next epoch is whole again."""
    others = min(others, job["length"], job["global_batch"])
    rows = (torch.arange(job["length"]),)
    step = data.draw(st.integers(0, -(-job["length"] // job["global_batch"])))
    seen = []
    for sampler in _samplers(job):
        batches = Batches(rows, sampler)
        for _, (numbers,) in zip(range(step), batches, strict=False):
            seen += numbers.tolist()[: batches.count]
    whole = []
    for sampler in _samplers({**job, "world_size": others}):
        batches = Batches(rows, sampler)
        batches.resume(0, step)
        assert len(batches) == len(sampler)
        for (numbers,) in batches:
            seen += numbers.tolist()[: batches.count]
        for (numbers,) in batches:
            whole += numbers.tolist()[: batches.count]
        assert sampler.epoch == 1
    assert sorted(seen) == sorted(whole) == list(range(job["length"]))


@pytest.mark.parametrize(("epoch", "step"), [(-1, 0), (0, -1), (0, 4)])
def test_a_step_that_is_none_is_refused(epoch, step):
    sampler = ShardedSampler(10, 4, rank=0, world_size=1)
    with pytest.raises(DataError, match=f"step {step} of epoch {epoch} .* 3 steps an epoch"):
        Batches((torch.arange(10),), sampler).resume(epoch, step)
