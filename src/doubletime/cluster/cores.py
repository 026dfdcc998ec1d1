"""A rank's share of its host's cores, decided on the host itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from doubletime import environment

_TOPOLOGY = Path("/sys/devices/system/cpu")


def take_share(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Divide this host's cores among its ranks: bind this process where that was asked for.

    For jobs across hosts, whose launcher knows the cores of its own host only. What the user has
    set already is left as it is.

    Returns:
        Variables to set; none where the launcher does not say how many ranks share the host.
    """
    place = environment.place(environ)
    if place is None or place.local_rank is None or place.local_world_size is None:
        return {}
    own = environment.own_cores()
    threads = own // place.local_world_size
    if environ.get(environment.BIND_VARIABLE) == "1":
        mine = share(_side_by_side(), place.local_rank, place.local_world_size)
        if mine:
            os.sched_setaffinity(0, mine)
    wanted = {"OMP_NUM_THREADS": str(max(1, threads))}
    if threads < 1:  # a rank that waits for a message lets another compute
        wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return {name: value for name, value in wanted.items() if name not in environ}


def share(cores: Sequence[int], local_rank: int, local_world_size: int) -> frozenset[int]:
    """One rank's part of a host's cores, as many as each other's: pure.

    Returns:
        Empty where there are fewer cores than ranks.
    """
    count = len(cores) // local_world_size
    return frozenset(cores[local_rank * count : (local_rank + 1) * count])


def _side_by_side() -> list[int]:
    """This process's hardware threads, those of a core and then of a socket next to each other."""

    def place(core: int) -> tuple[int, int, int]:
        folder = _TOPOLOGY / f"cpu{core}" / "topology"
        try:
            socket = int((folder / "physical_package_id").read_text())
            return socket, int((folder / "core_id").read_text()), core
        except (OSError, ValueError):  # a container may hide it
            return 0, core, core

    return sorted(os.sched_getaffinity(0), key=place)
