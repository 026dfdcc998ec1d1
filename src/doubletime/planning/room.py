"""Whether the hosts have the memory for the messages that are to be measured."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psutil

from doubletime.errors import LaunchError
from doubletime.units import format_nbytes

# The message, what it must become, the pattern behind both, and what an algorithm or a backend keeps of it.
_COPIES = 6


def check(comm: Any, nbytes: int) -> None:
    """Every rank of a communicator makes this call before it allocates anything.

    Args:
        comm: of mpi4py.
        nbytes: the largest message.

    Raises:
        LaunchError: on every rank, if some host has not the memory for its ranks' messages.
    """
    mine = (os.uname().nodename, int(psutil.virtual_memory().available))
    what = shortage(comm.allgather(mine), nbytes)
    if what is not None:
        raise LaunchError(what, "smaller --sizes, such as 4:64M")


def shortage(places: Sequence[tuple[str, int]], nbytes: int) -> str | None:
    """Where messages do not fit, in words; None where they do. Pure.

    Args:
        places: each rank's host, and the bytes of memory that are free there.
        nbytes: of a message.
    """
    ranks = Counter(host for host, _ in places)
    for host, free_nbytes in places:
        needed = _COPIES * nbytes * ranks[host]
        if needed > free_nbytes:
            return (
                f"messages of {format_nbytes(nbytes)} take {format_nbytes(needed)} on host {host}, "
                f"where {format_nbytes(free_nbytes)} are free"
            )
    return None
