"""Memory that the ranks of one host share: each makes a segment, and maps those of all.

Segments are memfds that the others open through /proc: nothing has a name, so nothing can be left
behind, and /dev/shm's size does not matter.
"""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HEADER_NBYTES = mmap.PAGESIZE  # at the beginning of each segment; its last bytes are taken


@dataclass(frozen=True)
class Shared:
    """The segments of all ranks.

    Attributes:
        mapped: by rank.
        descriptor: of this rank's own.
    """

    mapped: list[mmap.mmap]
    descriptor: int


@dataclass(frozen=True)
class _Offer:
    """Where one rank's segment can be opened; the token in it tells that it is the right one."""

    host: str
    pid: int
    descriptor: int
    token: bytes
    nbytes: int


def share(nbytes: int | None, allgather: Callable[[object], Sequence[object]]) -> Shared | None:
    """Make a segment on each rank and map them all; collective.

    Args:
        nbytes: size of each, the header included; None where this rank does not want to share. What
            is not written to takes no memory.
        allgather: gives every rank what each has put in, by rank.

    Returns:
        None, on all ranks alike, where one does not want to, wants another size, or cannot open another's
        memory: other hosts, containers or users.
    """
    descriptor, offer = (None, None) if nbytes is None else _create(nbytes)
    offers = allgather(offer)
    fitting = [each for each in offers if isinstance(each, _Offer) and each.nbytes == nbytes]
    mapped = _open_all(fitting) if len(fitting) == len(offers) else []
    if all(count == len(offers) for count in allgather(len(mapped))) and descriptor is not None:
        return Shared(mapped, descriptor)
    for segment in mapped:
        segment.close()
    if descriptor is not None:
        os.close(descriptor)
    return None


def _create(nbytes: int) -> tuple[int, _Offer]:
    descriptor = os.memfd_create("doubletime", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, nbytes)
    token = uuid.uuid4().bytes
    os.pwrite(descriptor, token, HEADER_NBYTES - len(token))
    return descriptor, _Offer(os.uname().nodename, os.getpid(), descriptor, token, nbytes)


def _open_all(offers: Sequence[_Offer]) -> list[mmap.mmap]:
    """Every rank's segment, or as many as could be opened before one could not."""
    mapped: list[mmap.mmap] = []
    for offer in offers:
        try:
            opened = os.open(Path(f"/proc/{offer.pid}/fd/{offer.descriptor}"), os.O_RDWR)
        except OSError:
            return mapped
        try:
            segment = mmap.mmap(opened, offer.nbytes)
        except (OSError, ValueError):
            return mapped
        finally:
            os.close(opened)
        if segment[HEADER_NBYTES - len(offer.token) : HEADER_NBYTES] != offer.token:
            segment.close()
            return mapped
        mapped.append(segment)
    return mapped
