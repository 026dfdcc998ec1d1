"""`doubletime bench tune`: which algorithm is best for each size here, stored as a decision table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doubletime.cli import local_ranks
from doubletime.cli.where import (
    HostfileOption,
    HostsOption,
    SshCommandOption,
    SshConfigOption,
    where,
)
from doubletime.errors import DataError, LaunchError

if TYPE_CHECKING:
    from doubletime.collectives.table import Table
    from doubletime.planning.tune import Looking, Sized

_OFF_TERMINAL_COLUMNS = 120


def tune(
    ranks: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--ranks",
            help="How many ranks; or several: 2,3,4.  [default: 2; one per slot of hosts]",
        ),
    ] = None,
    sizes: Annotated[
        str, typer.Option(help="Message sizes: 4K,64K,1M, or first:last by powers of two.")
    ] = "1K:64M",
    backend: Annotated[str, typer.Option(help="Whose groups: mpi or gloo.")] = "mpi",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the table goes; what is there of other ranks stays.  [default: beside the "
            "profile, profile.table.toml]",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(min=0.001, max=3600, help="Time to spend on each size and algorithm, about."),
    ] = 0.15,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    ssh_config: SshConfigOption = None,
    ssh_command: SshCommandOption = None,
) -> None:
    """Time all_reduce by every algorithm at every size, and store what is best for "auto".

    Every algorithm is checked at every size; those far behind in a quick look are not timed further.
    Under mpiexec it tunes for the ranks and hosts that mpiexec was given.
    """
    from doubletime.collectives.places import profile_path, table_path
    from doubletime.planning.question import GLOO, MPI, parse_float32_sizes

    wanted = sorted(set(parse_float32_sizes(sizes)))
    if backend not in (MPI, GLOO):
        raise LaunchError(f"tune knows no backend {backend!r}", f"--backend {MPI} or {GLOO}")
    counts = _counts(ranks)
    file = (output or table_path(profile_path())).absolute()
    local_ranks.check_writable(file)
    if local_ranks.are_started(counts[0] if counts else None):
        with local_ranks.telling():
            _measure(file, wanted, backend, seconds)
        return
    arguments = ["--sizes", sizes, "--backend", backend, "--output", str(file)]
    place = where(hosts, hostfile, ssh_config, ssh_command)
    jobs: list[int | None] = [*counts] or [None]
    for count in jobs:
        whole = ["bench", "tune", *arguments, "--seconds", str(seconds)]
        exit_code = local_ranks.measure(whole, count, place)
        if exit_code:
            raise typer.Exit(exit_code)


def _counts(ranks: str | None) -> list[int]:
    """How many ranks, one job after the other.

    Raises:
        LaunchError: if it is not a list of counts.
    """
    if ranks is None:
        return []
    parts = [part.strip() for part in ranks.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 1 for part in parts):
        raise LaunchError(f"-n {ranks} is not a list of numbers of ranks", "such as 4, or 2,3,4")
    return list(dict.fromkeys(map(int, parts)))


def _measure(file: Path, sizes: list[int], backend: str, seconds: float) -> None:
    """What each rank does; rank 0 shows and stores it."""
    import torch

    from doubletime.collectives.party import party_of
    from doubletime.planning import peers
    from doubletime.planning import tune as planning_tune
    from doubletime.planning.question import MPI
    from doubletime.planning.tune import Sized
    from doubletime.reporting.advance import AdvanceBar
    from doubletime.reporting.console import open_console
    from doubletime.reporting.decisions import decisions_table, show_choice
    from doubletime.units import format_nbytes, format_seconds

    torch.set_num_threads(1)
    decided: list[Sized] = []
    with peers.join(() if backend == MPI else (backend,)) as job:
        console = open_console()
        console.quiet = job.rank != 0
        if not console.is_terminal:
            console.width = max(console.width, _OFF_TERMINAL_COLUMNS)
        party = party_of(job.groups[backend])

        def observe(event: Looking | Sized) -> None:
            if isinstance(event, Sized):
                decided.append(event)
                if not console.is_terminal:
                    decision = event.decision
                    console.print(
                        f"{format_nbytes(decision.nbytes)}: {show_choice(decision.choice)}, "
                        f"{format_seconds(decision.time_s)}; {event.tried} tried",
                        markup=False,
                    )
                return
            what = "the best" if event.choice is None else show_choice(event.choice)
            bar.update(event.fraction, f"{format_nbytes(event.nbytes)}: {what}")

        with AdvanceBar(console) as bar:
            measured = planning_tune.all_reduce(job, party, sizes, seconds, observe)
    if job.rank == 0:
        shown = f"all_reduce of float32: {measured.cluster.show()}, backend {backend}"
        console.print(shown, style="bold", markup=False)
        console.print(decisions_table(decided))
        local_ranks.write(file, _before(file).with_new(measured).text())
        console.print(f"decision table written to {file}", markup=False)


def _before(file: Path) -> Table:
    """What the file holds already; nothing, and a note, where it is broken."""
    from doubletime.collectives import table

    try:
        return table.parse(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        return table.Table()
    except (OSError, UnicodeDecodeError, DataError) as error:
        typer.echo(f"note: what {file} held is replaced: {error}", err=True)
        return table.Table()
