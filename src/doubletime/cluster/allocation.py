"""The hosts that a batch system has allotted to this job."""

from __future__ import annotations

import re
from collections.abc import Mapping

from doubletime.cluster.hosts import Host, expand
from doubletime.errors import LaunchError

_COUNTS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def from_slurm(environ: Mapping[str, str]) -> tuple[Host, ...] | None:
    """The hosts of the Slurm job that this process runs in, each with its tasks as slots.

    Returns:
        None outside Slurm.

    Raises:
        LaunchError: if Slurm's variables cannot be read.
    """
    text = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not text or "SLURM_JOB_ID" not in environ:
        return None
    try:
        names = expand(text)
        counts = _tasks(environ.get("SLURM_TASKS_PER_NODE", ""), len(names))
    except ValueError as error:
        raise LaunchError(
            f"Slurm's SLURM_JOB_NODELIST={text!r}, "
            f"SLURM_TASKS_PER_NODE={environ.get('SLURM_TASKS_PER_NODE', '')!r}: {error}",
            "--hosts node1:2,node2:2 names the hosts instead",
        ) from error
    return tuple(Host(name, count) for name, count in zip(names, counts, strict=True))


def step_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts of the step (`srun`) that started this process, that of rank 0 first.

    Raises:
        LaunchError: if Slurm does not say.
    """
    text = environ.get("SLURM_STEP_NODELIST", "")
    try:
        return expand(text)
    except ValueError as error:
        raise LaunchError(
            f"Slurm's SLURM_STEP_NODELIST={text!r}: {error}",
            "set MASTER_ADDR and MASTER_PORT before srun",
        ) from error


def step_number(environ: Mapping[str, str]) -> int:
    """A number that the processes of a step share, and other steps hardly have."""
    job, step = (int(environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return job * 16 + step


def _tasks(text: str, hosts: int) -> list[int | None]:
    """Tasks of each host, from `2(x3),1`."""
    if not text:
        return [None] * hosts
    counts: list[int | None] = []
    for part in text.split(","):
        match = _COUNTS.fullmatch(part.strip())
        if match is None or int(match[1]) < 1:
            raise ValueError(f"{part!r} is no count such as 2 or 2(x3)")
        counts += [int(match[1])] * int(match[2] or 1)
    if len(counts) != hosts:
        raise ValueError(f"{len(counts)} counts for {hosts} hosts")
    return counts
