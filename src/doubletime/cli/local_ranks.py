"""Verbs that are ranks themselves: they start themselves on ranks unless a launcher has done so."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import typer

from doubletime import environment
from doubletime.cli import tasks
from doubletime.cli.where import Where, remembered
from doubletime.errors import LaunchError


def are_started(ranks: int | None) -> bool:
    """Whether this process is a rank of a job already.

    Args:
        ranks: how many were asked for; None for whatever the launcher gives.

    Raises:
        LaunchError: if the launcher has started another number.
    """
    place = environment.place()
    if place is None or not place.speaks_mpi:
        return False
    if ranks not in (None, place.world_size):
        raise LaunchError(
            f"-n {ranks} was asked for, and {place.launcher} has started {place.world_size}",
            "leave -n out, or leave the launcher out: doubletime starts the ranks itself",
        )
    return True


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """What goes wrong on this rank is told to the launcher, which shows one rank's; see `tasks.telling`."""
    place = environment.place()
    with contextlib.nullcontext() if place is None else tasks.telling(place):
        yield


def measure(arguments: Sequence[str], ranks: int | None, place: Where) -> int:
    """Start `doubletime` with these arguments on ranks that measure; returns the job's exit code.

    Args:
        arguments: of `doubletime`.
        ranks: how many; None for 2 on this host, or one for each slot of other hosts.
        place: where.

    Raises:
        LaunchError: if the job cannot be started as asked.
    """
    from doubletime.cluster import allocation
    from doubletime.planning import load

    told = load.warning(load.busy_share(0.3))
    if told is not None:
        typer.echo(f"note: {told}", err=True)
    is_here = place.hosts is None and allocation.from_slurm(os.environ) is None
    # Not bound: a backend's threads would have to share a core with the computation.
    return start(arguments, 2 if ranks is None and is_here else ranks, place, bind=False)


def start(
    arguments: Sequence[str],
    ranks: int | None,
    place: Where,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    backend: str | None = None,
    bind: bool | None = None,
) -> int:
    """Start `doubletime` with these arguments on ranks; returns the job's exit code.

    Args:
        arguments: of `doubletime`.
        ranks: how many; None for one per slot, or per core of this host.
        place: where.
        environment: variables for the ranks.
        backend: of their group; None for what fits.
        bind: see `job.Request`.

    Raises:
        LaunchError: if the job cannot be started as asked.
    """
    from doubletime.cluster import job, supervise

    shown = dict(environment)
    if sys.stdout.isatty():  # the ranks write to the launcher's pipe and cannot see it
        from doubletime.reporting.console import COLUMNS_VARIABLE

        shown[COLUMNS_VARIABLE] = str(shutil.get_terminal_size().columns)
    prepared = job.prepare(
        job.Request(
            [sys.executable, "-m", "doubletime", *arguments],
            hosts=place.hosts,
            ranks=ranks,
            ssh=place.ssh,
            backend=backend,
            environment=shown,
            bind=bind,
        )
    )
    if prepared.is_across:
        for line in remembered(prepared.placement):
            typer.echo(f"note: {line}", err=True)
    return supervise.carry_out(prepared).status


def is_first() -> bool:
    """Whether this process is rank 0, or no rank: the one that reads and writes files."""
    place = environment.place()
    return place is None or place.rank == 0


@contextlib.contextmanager
def writing(file: Path, option: str) -> Iterator[None]:
    """Within, a file is written that an option names.

    Raises:
        LaunchError: if that fails.
    """
    try:
        yield
    except OSError as error:
        is_blocked = isinstance(error, FileExistsError | NotADirectoryError)
        why = "a part of its path is a file" if is_blocked else error.strerror
        raise LaunchError(
            f"{file} cannot be written: {why}", f"{option} FILE writes elsewhere"
        ) from error


def write(file: Path, text: str, option: str = "--output") -> None:
    """Write a file whole or not at all, its folder too.

    Raises:
        LaunchError: if it cannot be written.
    """
    partial = file.with_name(f"{file.name}.partial")
    with writing(file, option):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(file)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def check_writable(file: Path, option: str = "--output") -> None:
    """Before anything is measured; by who will write it, as other ranks may see another disk.

    Raises:
        LaunchError: if the file cannot be written, for its folder or what stands in its place.
    """
    if not is_first():
        return
    if file.is_dir():
        raise LaunchError(f"{file} is a folder", f"{option} {file / 'profile.toml'}")
    with writing(file, option):
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.partial")
        partial.touch()
        partial.unlink()
