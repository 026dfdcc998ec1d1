"""Operations in flight: they end by themselves, in the order of their issue, on any thread."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.futures import Future

LARGE = 400_001  # float32 elements, 1.5 MiB


def _until(claim: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.001)


def wait_completes(rank: int, world_size: int) -> None:
    for size in (1, LARGE):
        tensor = torch.full((size,), float(rank))
        work = dist.all_reduce(tensor, async_op=True)
        assert work.wait()
        assert work.is_completed()
        assert (tensor == sum(range(world_size))).all()


def completes_without_being_waited_for(rank: int, world_size: int) -> None:
    for size in (1, LARGE):
        tensor = torch.full((size,), float(rank))
        work = dist.all_reduce(tensor, async_op=True)
        _until(work.is_completed)
        assert (tensor == sum(range(world_size))).all()


def a_future_completes_by_itself(rank: int, world_size: int) -> None:
    for size in (1, LARGE):
        tensor = torch.full((size,), float(rank))
        future = dist.all_reduce(tensor, async_op=True).get_future()
        _until(future.done)
        assert (future.value()[0] == sum(range(world_size))).all()
        assert future.value()[0].data_ptr() == tensor.data_ptr()


def futures_chain(rank: int, world_size: int) -> None:
    tensor = torch.full((5,), float(rank))
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    again = doubled.then(lambda done: done.value() + 1)
    assert again.wait().tolist() == [sum(range(world_size)) * 2 + 1] * 5


def every_collective_has_a_future(rank: int, world_size: int) -> None:
    total = float(sum(range(world_size)))
    mine = torch.full((world_size,), float(rank))
    one = torch.zeros(1)
    everyone = [torch.zeros(world_size) for _ in range(world_size)]
    flat = torch.zeros(world_size * world_size)
    works = [
        dist.broadcast(mine.clone(), 0, async_op=True),
        dist.reduce(mine.clone(), 0, async_op=True),
        dist.all_gather(everyone, mine, async_op=True),
        dist.all_gather_into_tensor(flat, mine, async_op=True),
        dist.gather(mine, everyone if rank == 0 else None, 0, async_op=True),
        dist.scatter(one, list(mine.split(1)) if rank == 0 else None, 0, async_op=True),
        dist.reduce_scatter(one.clone(), list(mine.split(1)), async_op=True),
        dist.reduce_scatter_tensor(one, mine, async_op=True),
        dist.all_to_all_single(torch.zeros(world_size), mine, async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in works:
        _until(work.get_future().done)
        work.wait()
    assert one.item() == total
    assert flat.tolist() == [float(r) for r in range(world_size) for _ in range(world_size)]


def many_in_flight_in_order(rank: int, world_size: int) -> None:
    """Mixed kinds and sizes, issued without waiting, waited for from the last to the first."""
    works, results = [], []
    for i in range(150):
        size = (1, 1000, 70_000)[i % 3]
        if i % 4 == 0:
            tensor = torch.full((size,), float(rank == i % world_size) * i)
            works.append(dist.broadcast(tensor, i % world_size, async_op=True))
            results.append((tensor, i))
        elif i % 4 == 1:
            tensor = torch.full((size,), float(rank + i))
            works.append(dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True))
            results.append((tensor, world_size - 1 + i))
        elif i % 4 == 2:
            gathered = [torch.zeros(size) for _ in range(world_size)]
            mine = torch.full((size,), float(rank + i))
            works.append(dist.all_gather(gathered, mine, async_op=True))
            results.extend((tensor, r + i) for r, tensor in enumerate(gathered))
        else:
            works.append(dist.barrier(async_op=True))
    for work in reversed(works):
        work.wait()
    for tensor, expected in results:
        assert (tensor == expected).all()


def order_holds_on_one_tensor(rank: int, world_size: int) -> None:
    """Three sums of the same tensor in flight, then one that is waited for."""
    for size in (3, LARGE):
        tensor = torch.ones(size)
        for _ in range(3):
            dist.all_reduce(tensor, async_op=True)
        dist.all_reduce(tensor)
        assert (tensor == world_size**4).all()


def tensors_live_until_the_end(rank: int, world_size: int) -> None:
    results: list[Future[list[torch.Tensor]]] = []
    for i in range(30):
        tensor = torch.full((LARGE // 10,), float(i))
        results.append(dist.all_reduce(tensor, async_op=True).get_future())
        del tensor
        gc.collect(0)
    for i, future in enumerate(results):
        assert (future.wait()[0] == i * world_size).all()


def callbacks_may_wait_for_other_operations(rank: int, world_size: int) -> None:
    """What PyTorch's PowerSGD hook does: a callback that issues operations and waits for them."""
    group = dist.new_group(list(range(world_size)))  # its own: ranks out of step would spoil more

    def second(done: Future[list[torch.Tensor]]) -> torch.Tensor:
        tensor = done.value()[0]
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        return dist.all_reduce(tensor, group=group, async_op=True).get_future().wait()[0]

    futures = []
    for i in range(12):
        work = dist.all_reduce(torch.full((50,), float(i)), group=group, async_op=True)
        futures.append(work.get_future().then(second))
    for i, future in enumerate(futures):
        assert future.wait().tolist() == [i * world_size**3] * 50
    dist.destroy_process_group(group)


def callbacks_may_be_slow(rank: int, world_size: int) -> None:
    """Operations go on while a callback sleeps."""
    tensor = torch.ones(3)
    slow = dist.all_reduce(tensor, async_op=True).get_future().then(lambda _: time.sleep(1))
    started = time.monotonic()
    for _ in range(20):
        dist.all_reduce(torch.ones(3), async_op=True).wait()
    assert time.monotonic() - started < 0.9
    slow.wait()


def a_callback_that_raises_fails_its_future_only(rank: int, world_size: int) -> None:
    def fail(_: Future[list[torch.Tensor]]) -> None:
        raise ValueError("from a callback")

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(fail)
    with pytest.raises((ValueError, RuntimeError), match="from a callback"):
        future.wait()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == world_size).all()


def a_callback_that_exits_fails_its_future_only(rank: int, world_size: int) -> None:
    def exits(_: Future[list[torch.Tensor]]) -> None:
        raise SystemExit(3)

    tensor = torch.ones(2)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
        future.then(exits).wait()
    assert future.then(lambda done: done.value()[0].clone()).wait().tolist() == [world_size] * 2


def threads_on_their_own_groups(rank: int, world_size: int) -> None:
    groups = [dist.new_group(list(range(world_size))) for _ in range(4)]
    wrong: list[str] = []

    def work(number: int) -> None:
        try:
            for i in range(40):
                tensor = torch.full((1 + 5000 * (i % 2),), float(rank + number))
                dist.all_reduce(tensor, group=groups[number], async_op=False)
                expected = sum(range(world_size)) + number * world_size
                if not (tensor == expected).all():
                    wrong.append(f"thread {number}, {i}: {tensor[0]} for {expected}")
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a thread hangs"
    assert not wrong, wrong[:3]
    for group in groups:
        dist.destroy_process_group(group)


def groups_do_not_disturb_each_other(rank: int, world_size: int) -> None:
    """Two groups of the same ranks, entered in opposite order by odd and even ranks."""
    groups = [dist.new_group(list(range(world_size))) for _ in range(2)]
    tensors = [torch.full((size,), float(rank)) for size in (3, LARGE)]
    order = (0, 1) if rank % 2 else (1, 0)
    works = [dist.all_reduce(tensors[i], group=groups[i], async_op=True) for i in order]
    for work in works:
        work.wait()
    for tensor in tensors:
        assert (tensor == sum(range(world_size))).all()
    for group in groups:
        dist.destroy_process_group(group)


CHECKS = (
    wait_completes,
    completes_without_being_waited_for,
    a_future_completes_by_itself,
    futures_chain,
    every_collective_has_a_future,
    many_in_flight_in_order,
    order_holds_on_one_tensor,
    tensors_live_until_the_end,
    callbacks_may_wait_for_other_operations,
    callbacks_may_be_slow,
    a_callback_that_raises_fails_its_future_only,
    a_callback_that_exits_fails_its_future_only,
    threads_on_their_own_groups,
    groups_do_not_disturb_each_other,
)
