"""Verbs that measure: start themselves on ranks unless a launcher has done so."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from doubletime import environment
from doubletime.cli.where import Where
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


def start(arguments: Sequence[str], ranks: int | None, place: Where) -> int:
    """Start `doubletime` with these arguments on ranks; returns the job's exit code.

    Args:
        arguments: of `doubletime`.
        ranks: how many; None for 2 on this host, or one for each slot of other hosts.
        place: where.

    Raises:
        LaunchError: if the job cannot be started as asked.
    """
    from doubletime.cluster import allocation, job, supervise
    from doubletime.planning import load

    told = load.warning(load.busy_share(0.3))
    if told is not None:
        typer.echo(f"note: {told}", err=True)
    shown = {}
    if sys.stdout.isatty():  # the ranks write to the launcher's pipe and cannot see it
        from doubletime.reporting.console import COLUMNS_VARIABLE

        shown[COLUMNS_VARIABLE] = str(shutil.get_terminal_size().columns)
    is_here = place.hosts is None and allocation.from_slurm(os.environ) is None
    prepared = job.prepare(
        job.Request(
            [sys.executable, "-m", "doubletime", *arguments],
            hosts=place.hosts,
            ranks=2 if ranks is None and is_here else ranks,
            ssh=place.ssh,
            environment=shown,
            bind=False,  # a backend's threads would have to share a core with the computation
        )
    )
    return supervise.carry_out(prepared).exit_code


def write(file: Path, text: str) -> None:
    """Write a file whole or not at all, its folder too.

    Raises:
        LaunchError: if it cannot be written.
    """
    partial = file.with_name(f"{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        raise LaunchError(
            f"{file} cannot be written: {error.strerror}", "--output FILE writes elsewhere"
        ) from error


def check_writable(file: Path) -> None:
    """Before anything is measured.

    Raises:
        LaunchError: if the file cannot be written, for its folder or what stands in its place.
    """
    if file.is_dir():
        raise LaunchError(f"{file} is a folder", f"--output {file / 'profile.toml'}")
    folder = file.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.partial")
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise LaunchError(
            f"{file} cannot be written: {error.strerror}", "--output FILE writes elsewhere"
        ) from error
