"""`doubletime train`: train a task on ranks that step together."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doubletime import environment, failure
from doubletime.cli import local_ranks
from doubletime.cli.where import (
    HostfileOption,
    HostsOption,
    SshCommandOption,
    SshConfigOption,
    Where,
    where,
)
from doubletime.errors import DataError, DoubletimeError, LaunchError

if TYPE_CHECKING:
    from doubletime.cluster.placement import Placement
    from doubletime.training.task import Task


def train(
    task: Annotated[
        str, typer.Argument(help="task.py, task.py:Name, or built in: fashion-mnist, digits.")
    ],
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n", "--ranks", min=1, help="How many ranks.  [default: 1; one per slot of hosts]"
        ),
    ] = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    epochs: Annotated[int | None, typer.Option(help="In place of the task's own.")] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Samples per step over all ranks, in place of the task's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the task's own.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="Use only the first so many training samples.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="mpi, gloo or nccl.  [default: what the launcher speaks]")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Train on 1 rank, then on N, and compare.")
    ] = False,
    runs: Annotated[Path, typer.Option(help="Where the run's folder is made.")] = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Of that folder.  [default: the task and the time]")
    ] = None,
    ssh_config: SshConfigOption = None,
    ssh_command: SshCommandOption = None,
) -> None:
    """Train a task by synchronous SGD, on 1 rank or many.

    Hosts are those of --hosts or --hostfile, else those that Slurm has allotted, else this one.
    """
    place = environment.place()
    if place is not None:
        try:
            _refuse_to_launch(place, ranks, compare)
            _train_here(task, epochs, global_batch, seed, limit, backend, runs, name)
        except Exception as error:
            # Ranks often fail alike: the launcher shows one of their records, not all. The
            # traceback begins here, without the frames that parsed the command line.
            is_plain = isinstance(error, DoubletimeError)
            told = f"{error}\n" if is_plain else traceback.format_exc()
            if not failure.write(failure.now(place.rank, 1, told)):
                raise
            raise typer.Exit(1) from error
        return
    asked = where(hosts, hostfile, ssh_config, ssh_command)
    placed = _place(asked, ranks)
    if compare and placed.ranks == 1:
        raise LaunchError("--compare needs more than 1 rank to compare with", "add -n 2")
    if not compare and placed.ranks == 1 and backend is None and _is_here(placed):
        _train_here(task, epochs, global_batch, seed, limit, backend, runs, name)
        return
    task, default_name = _prepared(task)
    options = _options(
        {
            "--epochs": epochs,
            "--global-batch": global_batch,
            "--seed": seed,
            "--limit": limit,
            "--backend": backend,
        }
    )
    job = _Job(task, options, backend, asked)
    if compare:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        _compare(job, placed, runs, name or f"{default_name}-{stamp}")
    else:
        job.run(placed.ranks, _options({"--runs": runs, "--name": name}))


def _train_here(
    task: str,
    epochs: int | None,
    global_batch: int | None,
    seed: int | None,
    limit: int | None,
    backend: str | None,
    runs: Path,
    name: str | None,
) -> None:
    """Be one rank of the job, or the only process."""
    from doubletime import api
    from doubletime.training import session

    api.train(
        task,
        epochs=epochs,
        global_batch=global_batch,
        seed=seed,
        limit=limit,
        backend=backend,
        runs=runs,
        name=name,
    )
    session.leave()


def _refuse_to_launch(place: environment.Place, ranks: int | None, compare: bool) -> None:
    """A rank must not start ranks.

    Raises:
        LaunchError: if the options ask for that.
    """
    if compare:
        raise LaunchError(
            f"--compare starts ranks itself, but {place.launcher} started this process",
            "doubletime train … -n 2 --compare, without mpiexec",
        )
    if ranks is not None and ranks != place.world_size:
        raise LaunchError(
            f"-n {ranks} was asked for, but {place.launcher} started {place.world_size} ranks",
            "leave out -n, or leave out the launcher",
        )


def _prepared(task: str) -> tuple[str, str]:
    """Fetch the data before any rank starts: what to train, maybe a substitute, and its name.

    Raises:
        TaskError: if there is no such task.
        DataError: if its data cannot be had and nothing stands in for it.
    """
    from doubletime import api
    from doubletime.reporting.console import Watch, open_console

    found: Task = api.find_task(task)
    try:
        found.prepare()
    except DataError as error:
        other, notice = api.substitute(found, error)
        Watch(open_console())(notice)
        return other.name, other.name
    return task, found.name


def _place(asked: Where, ranks: int | None) -> Placement:
    """How many ranks on which host.

    Raises:
        LaunchError: if they cannot be placed so.
    """
    from doubletime.cluster import allocation, placement
    from doubletime.cluster.hosts import Host

    hosts = asked.hosts or allocation.from_slurm(os.environ)
    if hosts is None:
        return placement.place([Host("localhost")], ranks)
    return placement.place(hosts, ranks)


def _is_here(placed: Placement) -> bool:
    from doubletime.cluster import network

    return network.is_here(placed.hosts[0])


@dataclass(frozen=True)
class _Job:
    """This same command, to be run on ranks: what to train, how, and where."""

    task: str
    options: list[str]
    backend: str | None
    where: Where

    def run(self, ranks: int, more: Sequence[str] = (), threads: int | None = None) -> None:
        """Run it on so many ranks; does not return where they fail."""
        exit_code = local_ranks.start(
            ["train", self.task, *self.options, *more],
            ranks,
            self.where,
            # One for each device ("cpu:gloo,cuda:nccl") is the ranks' affair.
            backend=None if ":" in (self.backend or "") else self.backend,
            environment={} if threads is None else {"OMP_NUM_THREADS": str(threads)},
        )
        if exit_code:
            raise typer.Exit(exit_code)


def _compare(job: _Job, placed: Placement, runs: Path, name: str) -> None:
    """The same recipe on 1 rank and on several, with as many threads per rank in both."""
    from doubletime.reporting import runlog
    from doubletime.reporting.console import comparison_table, open_console
    from doubletime.units import plural

    most = max(count for _, count in placed.counts)
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, environment.own_cores() // most))
    console = open_console()
    results = []
    for count in (1, placed.ranks):
        folder = f"{name}-n{count}"
        console.print(f"\n{plural(count, 'rank')}, {plural(threads, 'thread')} each", style="bold")
        job.run(count, _options({"--runs": runs, "--name": folder}), threads)
        results.append(runlog.read_result(runs / folder))
    console.print(comparison_table(*results))


def _options(given: dict[str, object]) -> list[str]:
    """The options that were given, as they stand on a command line."""
    pairs = ((option, str(value)) for option, value in given.items() if value is not None)
    return [word for pair in pairs for word in pair]
