"""`doubletime bench`: what the network gives, and who makes the most of it."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubletime import environment
from doubletime.errors import LaunchError

if TYPE_CHECKING:
    from doubletime.planning.machine import Machine
    from doubletime.planning.timing import Timing

app = typer.Typer(no_args_is_help=True, help="Time collectives, against gloo and bare MPI.")

_OFF_TERMINAL_COLUMNS = 110


@app.callback()
def _bench() -> None:
    """Time collectives, against gloo and bare MPI."""


@app.command()
def allreduce(
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", min=1, help="Ranks on this host.  [default: 2]")
    ] = None,
    sizes: Annotated[
        str, typer.Option(help="Message sizes: 4,64K,1M, or first:last by powers of two.")
    ] = "4:64M",
    against: Annotated[
        str, typer.Option(help="Whom to compare with: gloo, raw (bare MPI), both, or '' for none.")
    ] = "gloo,raw",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file as well.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Time to spend on each size and peer.")
    ] = 0.3,
) -> None:
    """Time all_reduce of float32 CPU tensors: mpi against gloo and bare MPI, in one job.

    Every size is checked before it is timed; peers take turns; the slowest rank counts.
    """
    from doubletime.planning.question import parse_float32_sizes, parse_rivals

    wanted, rivals = parse_float32_sizes(sizes), parse_rivals(against)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        folder = json_file.absolute().parent
        raise LaunchError(f"there is no folder {folder} for {json_file.name}", f"mkdir -p {folder}")
    if json_file is not None and json_file.is_dir():
        raise LaunchError(f"{json_file} is a folder", f"--json {json_file / 'figures.json'}")
    place = environment.place()
    if place is not None and place.speaks_mpi:
        if ranks not in (None, place.world_size):
            raise LaunchError(
                f"-n {ranks} was asked for, and {place.launcher} has started {place.world_size}",
                "leave -n out, or leave the launcher out: doubletime starts the ranks itself",
            )
        _measure(wanted, rivals, json_file, seconds)
        return
    arguments = ["--sizes", sizes, "--against", against, "--seconds", str(seconds)]
    if json_file is not None:
        arguments += ["--json", str(json_file.absolute())]
    raise typer.Exit(_relaunch(arguments, 2 if ranks is None else ranks))


def _relaunch(arguments: list[str], ranks: int) -> int:
    """Start this command on so many ranks of this host; returns the job's exit code."""
    from doubletime.cluster import supervise
    from doubletime.planning import load

    told = load.warning(load.busy_share(0.3))
    if told is not None:
        typer.echo(f"note: {told}", err=True)

    shown = {}
    if sys.stdout.isatty():  # the ranks write to the launcher's pipe and cannot see it
        from doubletime.reporting.console import COLUMNS_VARIABLE

        shown[COLUMNS_VARIABLE] = str(shutil.get_terminal_size().columns)
    command = [sys.executable, "-m", "doubletime", "bench", "allreduce", *arguments]
    # Not bound to cores: gloo's threads would have to share one with the computation.
    return supervise.run_local(command, ranks, environment=shown, bind=False)


def _measure(
    sizes: list[int], rivals: tuple[str, ...], json_file: Path | None, seconds: float
) -> None:
    """What each rank does; rank 0 shows it."""
    from doubletime.mpi import library
    from doubletime.planning import machine, measure, peers
    from doubletime.planning.question import MPI
    from doubletime.reporting.console import open_console
    from doubletime.reporting.tables import MeasuringProgress, timings_table

    with peers.join(rivals) as job:
        console = open_console()
        console.quiet = job.rank != 0
        if not console.is_terminal:
            console.width = max(console.width, _OFF_TERMINAL_COLUMNS)
        here = machine.describe(library.describe())
        console.print(f"all_reduce, float32, {job.world_size} ranks: {here.show()}", style="bold")
        with MeasuringProgress(console) as progress:
            timings = measure.all_reduce(job, (MPI, *rivals), sizes, seconds, progress.observe)
        console.print(timings_table(timings))
        console.print("* best; speed/x: how many times as fast as x; busbw as NCCL defines it")
    if job.rank == 0 and json_file is not None:
        json_file.write_text(json.dumps(_record(here, timings), indent=1) + "\n")
        console.print(f"figures written to {json_file}")


def _record(here: Machine, timings: list[Timing]) -> dict[str, Any]:
    return {"machine": asdict(here), "timings": [timing.record() for timing in timings]}
