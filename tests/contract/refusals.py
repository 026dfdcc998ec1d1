"""What cannot be carried out is refused on every rank, clearly, and the group goes on."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist


def _refuses(call: Callable[[], object], *words: str) -> None:
    """The call raises, its text has all the words, and the group goes on."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        text = str(error).lower()
    else:
        raise AssertionError("was not refused")
    missing = [word for word in words if word not in text]
    assert not missing, f"does not name {missing}: {text}"
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all(), "the group does not work any more"


def an_output_of_the_wrong_size(rank: int, world_size: int) -> None:
    wrong = torch.zeros(4 * world_size + 1)
    _refuses(lambda: dist.all_gather_into_tensor(wrong, torch.ones(4)), f"[{4 * world_size + 1}]")
    whole = torch.ones(4 * world_size)
    _refuses(lambda: dist.reduce_scatter_tensor(torch.zeros(3), whole), "[3]")


def an_output_of_another_type(rank: int, world_size: int) -> None:
    output = torch.zeros(4 * world_size, dtype=torch.float64)
    _refuses(lambda: dist.all_gather_into_tensor(output, torch.ones(4)), "type")


def a_list_of_the_wrong_length(rank: int, world_size: int) -> None:
    outputs = [torch.zeros(1) for _ in range(world_size + 1)]
    _refuses(lambda: dist.all_gather(outputs, torch.ones(1)), str(world_size + 1), "ranks")
    inputs = [torch.zeros(1) for _ in range(world_size - 1)]
    _refuses(lambda: dist.reduce_scatter(torch.ones(1), inputs), str(world_size - 1), "ranks")


def splits_that_do_not_add_up(rank: int, world_size: int) -> None:
    splits = [2] * world_size
    inputs, outputs = torch.ones(world_size), torch.zeros(world_size)
    _refuses(lambda: dist.all_to_all_single(outputs, inputs, splits, splits), "split")


def a_root_that_is_not_there(rank: int, world_size: int) -> None:
    _refuses(lambda: dist.broadcast(torch.ones(1), world_size + 3), "rank")
    _refuses(lambda: dist.reduce(torch.ones(1), -7), "rank")


def a_sparse_tensor_where_only_sums_know_it(rank: int, world_size: int) -> None:
    total = torch.eye(4).to_sparse()
    dist.all_reduce(total)
    assert torch.equal(total.to_dense(), torch.eye(4) * world_size)
    _refuses(lambda: dist.broadcast(torch.eye(4).to_sparse(), 0), "broadcast", "sparse")


CHECKS = (
    an_output_of_the_wrong_size,
    an_output_of_another_type,
    a_list_of_the_wrong_length,
    splits_that_do_not_add_up,
    a_root_that_is_not_there,
    a_sparse_tensor_where_only_sums_know_it,
)
