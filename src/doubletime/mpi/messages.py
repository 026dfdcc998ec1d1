"""Point-to-point messages: posted at once in the caller's thread, so that their order is the caller's."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from doubletime.errors import UnsupportedError
from doubletime.mpi import types
from doubletime.mpi.calls import describe
from doubletime.mpi.group import Group
from doubletime.mpi.operations import message, pieces
from doubletime.mpi.waiting import Operation
from doubletime.mpi.work import Work


def send(group: Group, tensor: torch.Tensor, destination: int, tag: int) -> Work:
    """Start sending a tensor to a rank of the group.

    Raises:
        UnsupportedError: if the group has no such rank, or MPI no such tag.
    """
    _check(group, destination, tag)

    def post(flat: torch.Tensor, _: Work) -> Operation:
        # flat may be a copy: the generator keeps it alive until the message is gone
        comm = group.message_comm
        for request in [comm.Isend(_moved(group, part), destination, tag) for part in pieces(flat)]:
            yield request.Test

    what = describe([tensor], f"to rank {destination}, tag {tag}")
    peers = [group.ranks[destination]]
    return group.message("send", tensor, post, what=what, peers=peers, is_output=False)


def receive(group: Group, tensor: torch.Tensor, source: int | None, tag: int) -> Work:
    """Start receiving a tensor from a rank of the group, or from any (None).

    Raises:
        UnsupportedError: if the group has no such rank, or MPI no such tag.
    """
    _check(group, source, tag)
    mpi = group.job.mpi

    def post(flat: torch.Tensor, work: Work) -> Operation:
        peer = mpi.ANY_SOURCE if source is None else source
        status = mpi.Status()
        for part in pieces(flat):
            request = group.message_comm.Irecv(_moved(group, part), peer, tag)
            yield partial(request.Test, status)
            peer = status.Get_source()  # the rest comes from where the first piece came from
        work.source = peer  # in the group: torch makes it a world rank itself

    origin = "any rank" if source is None else f"rank {source}"
    what = describe([tensor], f"from {origin}, tag {tag}")
    others = [rank for rank in group.ranks if rank != group.job.rank]
    peers = others if source is None else [group.ranks[source]]
    name = "recvAnySource" if source is None else "recv"
    return group.message(name, tensor, post, what=what, peers=peers, is_output=True)


def _moved(group: Group, flat: torch.Tensor) -> list[Any]:
    mpi = group.job.mpi
    return message(mpi, flat, types.move_type(mpi, flat.element_size()))


def _check(group: Group, peer: int | None, tag: int) -> None:
    if peer is not None and not 0 <= peer < group.world_size:
        raise UnsupportedError(
            f"there is no rank {peer} in group {group.name!r} of {group.world_size} ranks",
            f"name a rank from 0 to {group.world_size - 1}",
        )
    if not 0 <= tag <= group.most_tag:
        raise UnsupportedError(
            f"tag {tag} is not one that MPI takes", f"use a tag from 0 to {group.most_tag}"
        )
