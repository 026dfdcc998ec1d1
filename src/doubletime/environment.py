"""What the launcher gave this process: rank, world size, local rank, its own cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from doubletime.errors import UnitError

LAUNCHER_VARIABLE = "DOUBLETIME_LAUNCHER"
HOSTS_VARIABLE = "DOUBLETIME_HOSTS"  # of a job across hosts: their names, with commas
BIND_VARIABLE = "DOUBLETIME_BIND"  # 1: each host binds its ranks to their shares of its cores
BACKEND_VARIABLE = "DOUBLETIME_BACKEND"  # of the process group where the program names none


class Place(NamedTuple):
    """Where a launcher put this process.

    Attributes:
        launcher: who said so: "Open MPI", "MPICH or Intel MPI", "Slurm", "torchrun" or whoever sets
            the same variables.
        speaks_mpi: whether that launcher wires up an MPI library.
        rank, world_size: in the whole job.
        local_rank, local_world_size: on this host; None where the launcher does not say.
    """

    launcher: str
    speaks_mpi: bool
    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None


# One row a launcher, the most specific first: an srun step that starts mpiexec shows both.
# (name, speaks MPI, rank, world size, local rank, local world size)
_VARIABLES = (
    ("Open MPI", True, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPICH or Intel MPI", True, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("torchrun", False, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("Slurm", True, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", None),
)  # fmt: skip


def place(environ: Mapping[str, str] = os.environ) -> Place | None:
    """Where the launcher put this process, or None for a plain `python`.

    A step of one task is Slurm's way to run a command, such as a shell (`srun --pty bash`): what is
    started there is a plain `python` too.
    """
    for name, speaks_mpi, rank, world_size, local_rank, local_world_size in _VARIABLES:
        found = _number(environ, rank), _number(environ, world_size)
        if name == "Slurm" and found[1] == 1:
            continue
        if rank == "PMI_RANK" and local_rank not in environ and "SLURM_STEP_NUM_TASKS" in environ:
            continue  # srun --mpi=pmi2, which tells the rest in its own words
        if found[0] is not None and found[1] is not None:
            return Place(
                name, speaks_mpi, found[0], found[1],
                _number(environ, local_rank), _number(environ, local_world_size),
            )  # fmt: skip
    return None


class Machine(NamedTuple):
    """The host of a process, to be told from all others: hosts may be called alike, as fresh copies are.

    Attributes:
        name: as it calls itself.
        identity: of its system since the last boot, and of its network: containers have their own.
    """

    name: str
    identity: str


def machine() -> Machine:
    """This process's."""
    with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
        boot = file.read().strip()
    return Machine(os.uname().nodename, f"{boot} {os.readlink('/proc/self/ns/net')}")  # noqa: PTH115


def hosts_of(machines: Sequence[Machine]) -> list[str]:
    """Names that tell machines apart: their own, or `node#2` for the second one called so. Pure."""
    called: dict[str, list[str]] = {}
    names = []
    for each in map(Machine._make, machines):
        alike = called.setdefault(each.name, [])
        if each.identity not in alike:
            alike.append(each.identity)
        number = alike.index(each.identity) + 1
        names.append(each.name if number == 1 else f"{each.name}#{number}")
    return names


def job_hosts(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The hosts of a job across hosts, as its owner names them; none where the launcher does not say."""
    text = environ.get(HOSTS_VARIABLE)
    return tuple(text.split(",")) if text else ()


def own_cores() -> int:
    """How many cores this process may run on: its affinity, less where a cgroup allows less."""
    return min(len(os.sched_getaffinity(0)), allowed_cores())


def allowed_cores() -> int:
    """How many of the machine's cores this process's control group allows in all; at least 1."""
    cores = os.cpu_count() or 1
    return max(1, min(cores, int(_cgroup_cores() or cores)))


def _cgroup_cores(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The CPU quota of this process's control group in cores; None where there is none."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    except (OSError, ValueError):
        return None


def _number(environ: Mapping[str, str], name: str | None) -> int | None:
    text = environ.get(name, "") if name else ""
    return int(text) if text.isascii() and text.isdigit() else None


def switch(name: str) -> bool | None:
    """A variable that switches something: True for 1, False for 0, None where it is not set.

    Raises:
        UnitError: if it is set to anything else.
    """
    value = os.environ.get(name)
    if value is None:
        return None
    if value not in ("0", "1"):
        raise UnitError(
            f"{name}={value!r} is neither 0 nor 1", f"unset {name}, or set it to 0 or 1"
        )
    return value == "1"
