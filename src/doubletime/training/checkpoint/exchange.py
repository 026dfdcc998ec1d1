"""What ranks tell each other around a checkpoint: objects, and errors that all must raise alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from doubletime.errors import DoubletimeError
from doubletime.training import session

T = TypeVar("T")


def of_all(mine: Any) -> list[Any]:
    """What each rank has, in the order of ranks; collective."""
    joined = session.current()
    everyone = [mine] * joined.world_size
    if joined.world_size > 1:
        dist.all_gather_object(everyone, mine)
    return everyone


def on_rank_0(find: Callable[[], T]) -> T:
    """What rank 0 finds, on all ranks; collective.

    Another host may still see an older state of a folder, so one rank looks for all.

    Raises:
        DoubletimeError: what `find` raises, on all ranks.
    """
    found: list[Any] = [None]
    if session.current().rank == 0:
        try:
            found = [find()]
        except DoubletimeError as error:
            found = [error]
    if session.current().world_size > 1:
        dist.broadcast_object_list(found)
    if isinstance(found[0], DoubletimeError):
        raise found[0]
    result: T = found[0]
    return result
