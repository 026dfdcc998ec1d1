"""`doubletime bench links`: what this cluster's links give, stored as its profile."""

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
from doubletime.errors import DataError

if TYPE_CHECKING:
    from doubletime.collectives.profile import Profile

_OFF_TERMINAL_COLUMNS = 120


def links(
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n", "--ranks", min=2, help="How many ranks.  [default: 2; one per slot of hosts]"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the profile goes.  [default: $DOUBLETIME_PROFILE, or profile.toml in "
            "~/.config/doubletime]",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(min=0.001, max=3600, help="Time to spend on each size and pair, about."),
    ] = 0.05,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    ssh_config: SshConfigOption = None,
    ssh_command: SshCommandOption = None,
) -> None:
    """Measure links inside hosts and between every two of them, and how fast a rank reduces.

    Fits a latency and a rate to each level, with 95 % intervals, names links that are clearly slower
    than the others, and stores the cluster's profile for algorithm="auto" and explain --cost.
    Under mpiexec it measures the hosts that mpiexec was given.
    """
    from doubletime.collectives.places import profile_path

    file = (output or profile_path()).absolute()
    local_ranks.check_writable(file)
    if local_ranks.are_started(ranks):
        with local_ranks.telling():
            _measure(file, seconds)
        return
    arguments = ["bench", "links", "--output", str(file), "--seconds", str(seconds)]
    place = where(hosts, hostfile, ssh_config, ssh_command)
    raise typer.Exit(local_ranks.measure(arguments, ranks, place))


def _measure(file: Path, seconds: float) -> None:
    """What each rank does; rank 0 shows and stores it."""
    import torch

    from doubletime.planning import links as planning_links
    from doubletime.planning import peers
    from doubletime.reporting.advance import AdvanceBar
    from doubletime.reporting.console import open_console
    from doubletime.reporting.links import show_profile

    torch.set_num_threads(1)
    with peers.join(()) as job:
        console = open_console()
        console.quiet = job.rank != 0
        if not console.is_terminal:
            console.width = max(console.width, _OFF_TERMINAL_COLUMNS)
        with AdvanceBar(console) as bar:
            profile = planning_links.measure(
                job, seconds, lambda progress: bar.update(progress.fraction, progress.what)
            )
    if job.rank == 0:
        console.print(f"links: {profile.cluster.show()}", style="bold", markup=False)
        show_profile(console, profile)
        _tell_what_is_replaced(file, profile)
        local_ranks.write(file, profile.text())
        console.print(f"profile written to {file}", markup=False)


def _tell_what_is_replaced(file: Path, new: Profile) -> None:
    """Where the file holds the profile of another cluster: a note, and how to keep both."""
    from doubletime.collectives.profile import read

    if not file.exists():
        return
    try:
        why = read(file).cluster.difference(new.cluster)
    except DataError as error:
        why = error.what
    if why is not None:
        typer.echo(
            f"note: what {file} held is replaced: {why}; --output FILE, and DOUBLETIME_PROFILE=FILE "
            "where it shall be used, keep several clusters apart",
            err=True,
        )
