"""Verbs that measure: start themselves on ranks of this host unless a launcher has done so."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from doubletime import environment
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


def start(arguments: Sequence[str], ranks: int) -> int:
    """Start `doubletime` with these arguments on so many ranks of this host; the job's exit code."""
    from doubletime.cluster import supervise
    from doubletime.planning import load

    told = load.warning(load.busy_share(0.3))
    if told is not None:
        typer.echo(f"note: {told}", err=True)
    shown = {}
    if sys.stdout.isatty():  # the ranks write to the launcher's pipe and cannot see it
        from doubletime.reporting.console import COLUMNS_VARIABLE

        shown[COLUMNS_VARIABLE] = str(shutil.get_terminal_size().columns)
    command = [sys.executable, "-m", "doubletime", *arguments]
    # Not bound to cores: a backend's threads would have to share one with the computation.
    return supervise.run_local(command, ranks, environment=shown, bind=False)


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
