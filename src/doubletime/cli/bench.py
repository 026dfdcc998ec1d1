"""`doubletime bench`: what the network gives, and who makes the most of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from doubletime.collectives.profile import Profile
    from doubletime.collectives.topology import Topology
    from doubletime.planning.machine import Machine
    from doubletime.planning.timing import Timing

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Time collectives, against gloo and bare MPI.",
)

_OFF_TERMINAL_COLUMNS = 132


@app.callback()
def _bench() -> None:
    """Time collectives, against gloo and bare MPI."""


@app.command()
def allreduce(
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n", "--ranks", min=1, help="How many ranks.  [default: 2; one per slot of hosts]"
        ),
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
        float,
        typer.Option(min=0.001, max=3600, help="Time to spend on each size and peer."),
    ] = 0.3,
    algorithms: Annotated[
        str,
        typer.Option(help="Reduction algorithms to time as well: ring,auto,…, or all of them."),
    ] = "",
    plot: Annotated[
        Path | None, typer.Option(help="Draw time over size to this PNG or SVG file.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="A profile of `bench links`: adds each time's share of the lower bound.  "
            "[default: what `bench links` wrote, if it was of this cluster]"
        ),
    ] = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    ssh_config: SshConfigOption = None,
    ssh_command: SshCommandOption = None,
) -> None:
    """Time all_reduce of float32 CPU tensors: mpi against gloo and bare MPI, in one job.

    Every size is checked before it is timed; peers take turns; the slowest rank counts.
    """
    from doubletime.planning.question import (
        parse_algorithms,
        parse_float32_sizes,
        parse_rivals,
    )

    wanted, rivals = parse_float32_sizes(sizes), parse_rivals(against)
    chosen = parse_algorithms(algorithms)
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise LaunchError(f"{plot} is neither a PNG nor an SVG file", "--plot times.png")
    is_rank = local_ranks.are_started(ranks)
    known = None
    if local_ranks.is_first():
        for option, file, example in (
            ("--json", json_file, "figures.json"),
            ("--plot", plot, "times.png"),
        ):
            if file is not None:
                _check_file(option, file, example)
        if is_rank or profile is not None:
            known = _known(profile)
    if is_rank:
        with local_ranks.telling():
            _measure(wanted, (*chosen, *rivals), seconds, Outputs(json_file, plot, known))
        return
    arguments = ["--sizes", sizes, "--against", against, "--seconds", str(seconds)]
    arguments += ["--algorithms", algorithms]
    for option, file in (("--json", json_file), ("--plot", plot), ("--profile", profile)):
        if file is not None:
            arguments += [option, str(file.absolute())]
    place = where(hosts, hostfile, ssh_config, ssh_command)
    raise typer.Exit(local_ranks.measure(["bench", "allreduce", *arguments], ranks, place))


def _known(named: Path | None) -> Profile | None:
    """The profile that was named, else the one that `bench links` has left, if any.

    Raises:
        DataError: if what was named cannot be read.
    """
    from doubletime.collectives.places import profile_path
    from doubletime.collectives.profile import read

    if named is not None:
        return read(named)
    usual = profile_path()
    if not usual.exists():
        return None
    try:
        return read(usual)
    except DataError as error:
        typer.echo(f"note: no bound is shown: {error.what}", err=True)
        return None


@dataclass(frozen=True)
class Outputs:
    """Where figures go besides the table, and the measured cluster that bounds them; used on rank 0."""

    json_file: Path | None
    plot: Path | None
    profile: Profile | None


def _check_file(option: str, file: Path, example: str) -> None:
    """Refuse before anything is measured what could not be written after.

    Raises:
        LaunchError: if the file's folder is not there, it is itself a folder, or cannot be written.
    """
    folder = file.absolute().parent
    if not folder.is_dir():
        raise LaunchError(f"there is no folder {folder} for {file.name}", f"mkdir -p {folder}")
    if file.is_dir():
        raise LaunchError(f"{file} is a folder", f"{option} {file / example}")
    local_ranks.check_writable(file, option)


def _measure(sizes: list[int], others: tuple[str, ...], seconds: float, outputs: Outputs) -> None:
    """What each rank does; rank 0 shows it."""
    from doubletime.collectives import auto
    from doubletime.collectives.party import party_of
    from doubletime.mpi import library
    from doubletime.planning import machine, measure, peers
    from doubletime.planning.question import MPI, RIVALS
    from doubletime.reporting.console import open_console
    from doubletime.reporting.tables import MeasuringProgress, timings_table
    from doubletime.units import plural

    with peers.join([name for name in others if name in RIVALS]) as job:
        console = open_console()
        console.quiet = job.rank != 0
        if not console.is_terminal:
            console.width = max(console.width, _OFF_TERMINAL_COLUMNS)
        here = machine.describe(library.describe())
        title = f"all_reduce, float32, {plural(job.world_size, 'rank')}: {here.show()}"
        console.print(title, style="bold")
        bound_s = None
        party = party_of(job.groups[MPI])  # of all ranks, while only rank 0 has read the profile
        cluster = auto.here(party)
        if outputs.profile is not None:
            why = outputs.profile.cluster.difference(cluster)
            if why is None:
                bound_s = _bound(party.topology, outputs.profile)
            else:
                console.print(f"no bound is shown: of the profile, {why}", markup=False)
        with MeasuringProgress(console) as progress:
            timings = measure.all_reduce(job, (MPI, *others), sizes, seconds, progress.observe)
        console.print(timings_table(timings, bound_s=bound_s))
        console.print("* best; speed/x: how many times as fast as x; busbw as NCCL defines it")
    if job.rank == 0 and outputs.json_file is not None:
        local_ranks.write(
            outputs.json_file, json.dumps(_record(here, timings), indent=1) + "\n", "--json"
        )
        console.print(f"figures written to {outputs.json_file}")
    if job.rank == 0 and outputs.plot is not None:
        from doubletime.reporting.timings_plot import plot_timings

        with local_ranks.writing(outputs.plot, "--plot"):
            plot_timings(timings, outputs.plot, title, bound_s)
        console.print(f"drawn in {outputs.plot}")


def _bound(topology: Topology, profile: Profile) -> Callable[[int], float]:
    """The least time that an all_reduce of so many bytes can take on these links, in seconds."""
    from doubletime.collectives.knowledge import ASSUMED
    from doubletime.collectives.model import lower_bound_s

    parameters = profile.parameters(ASSUMED)
    return lambda nbytes: lower_bound_s("all_reduce", topology, nbytes, parameters)


def _record(here: Machine, timings: list[Timing]) -> dict[str, Any]:
    return {"machine": asdict(here), "timings": [timing.record() for timing in timings]}
