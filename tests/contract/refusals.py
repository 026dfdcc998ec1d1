"""What cannot be carried out is refused on every rank, clearly, and the group goes on."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist


def _refuses(call: Callable[[], object], *words: str) -> None:
    try:
        call()
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        text = str(error).lower()
    else:
        raise AssertionError("was not refused")
    assert any(word in text for word in words), f"names none of {words}: {text}"
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all(), "the group does not work any more"


def an_output_of_the_wrong_size(rank: int, world_size: int) -> None:
    mine = torch.ones(4)
    _refuses(
        lambda: dist.all_gather_into_tensor(torch.zeros(4 * world_size + 1), mine), "size", "shape"
    )
    _refuses(
        lambda: dist.reduce_scatter_tensor(torch.zeros(3), torch.ones(4 * world_size)),
        "size", "shape",
    )  # fmt: skip


def an_output_of_another_type(rank: int, world_size: int) -> None:
    output = torch.zeros(4 * world_size, dtype=torch.float64)
    _refuses(lambda: dist.all_gather_into_tensor(output, torch.ones(4)), "type")


def a_list_of_the_wrong_length(rank: int, world_size: int) -> None:
    outputs = [torch.zeros(1) for _ in range(world_size + 1)]
    _refuses(lambda: dist.all_gather(outputs, torch.ones(1)), "size", "length", "number", "list")
    inputs = [torch.zeros(1) for _ in range(world_size - 1)]
    _refuses(lambda: dist.reduce_scatter(torch.ones(1), inputs), "size", "length", "number", "list")


def splits_that_do_not_add_up(rank: int, world_size: int) -> None:
    splits = [2] * world_size
    _refuses(
        lambda: dist.all_to_all_single(
            torch.zeros(world_size), torch.ones(world_size), splits, splits
        ),
        "split", "size",
    )  # fmt: skip


def a_root_that_is_not_there(rank: int, world_size: int) -> None:
    _refuses(lambda: dist.broadcast(torch.ones(1), world_size + 3), "rank", "root")
    _refuses(lambda: dist.reduce(torch.ones(1), -7), "rank", "root")


def a_sparse_tensor(rank: int, world_size: int) -> None:
    sparse = torch.eye(4).to_sparse()
    _refuses(lambda: dist.all_reduce(sparse), "sparse", "dense", "layout")


CHECKS = (
    an_output_of_the_wrong_size,
    an_output_of_another_type,
    a_list_of_the_wrong_length,
    splits_that_do_not_add_up,
    a_root_that_is_not_there,
    a_sparse_tensor,
)
