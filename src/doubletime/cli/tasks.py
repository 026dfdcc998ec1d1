"""What verbs that carry out a task on ranks share: its data, its ranks' hosts, their last words."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from doubletime import environment, failure
from doubletime.cli.where import Where
from doubletime.errors import DataError, DoubletimeError, LaunchError

if TYPE_CHECKING:
    from doubletime.cluster.placement import Placement
    from doubletime.training.task import Task

# By name, so that help need not load what trains them.
BUILT_IN = (
    "digits",
    "fashion-mnist",
    "fashion-mnist-mlp",
    "pydoc-gru",
    "pydoc-lstm",
    "pydoc-transformer",
    "text-gru",
    "text-lstm",
    "text-transformer",
)

TaskArgument = Annotated[
    str,
    typer.Argument(help=f"task.py, task.py:Name, or built in: {', '.join(BUILT_IN)}."),
]

MeshOption = Annotated[
    str | None,
    typer.Option(
        metavar="AXIS=RANKS,…",
        help="How ranks divide data (dp), parameters (fsdp), layers (pp) and tensors (tp), such as "
        "dp=2,tp=2.  [default: data only]",
    ),
]


def prepared(task: str) -> tuple[str, str]:
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


def place(asked: Where, ranks: int | None) -> Placement:
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


def ranks_of(mesh: str | None, ranks: int | None, *, compare: bool = False) -> int | None:
    """How many ranks to start: what is asked for, else what the mesh has.

    Args:
        mesh: as --mesh was given.
        ranks: as -n was given.
        compare: whether 1 rank is to be compared with.

    Raises:
        MeshError: if the mesh cannot be read, or has another number of ranks.
        LaunchError: if 1 rank is to be compared with, which forms no mesh.
    """
    if mesh is None:
        return ranks
    from doubletime.training.mesh import Mesh

    asked = Mesh.parse(mesh, ranks)
    if compare:
        raise LaunchError(
            "--compare trains on 1 rank first, which forms no mesh",
            f"train with --mesh {asked} alone, or compare by doubletime verify … --mesh {asked}",
        )
    return asked.size


def is_here(placed: Placement) -> bool:
    """Whether the first host is this one."""
    from doubletime.cluster import network

    return network.is_here(placed.hosts[0])


def threads_of(placed: Placement) -> int:
    """How many threads each rank gets where all are to have as many: the host with most ranks decides."""
    most = max(count for _, count in placed.counts)
    return int(os.environ.get("OMP_NUM_THREADS") or max(1, environment.own_cores() // most))


def launcher_backend(backend: str | None) -> str | None:
    """What the launcher is told of a backend: one for each device ("cpu:gloo,cuda:nccl") is the ranks' affair."""
    return None if ":" in (backend or "") else backend


def options(given: Mapping[str, object]) -> list[str]:
    """The options that were given, as they stand on a command line."""
    pairs = ((option, str(value)) for option, value in given.items() if value is not None)
    return [word for pair in pairs for word in pair]


@contextmanager
def telling(here: environment.Place) -> Iterator[None]:
    """A rank that fails in here tells the launcher: ranks often fail alike, and it shows one of them.

    Raises:
        Exit: where it has been told.
    """
    try:
        yield
    except Exception as error:
        is_plain = isinstance(error, DoubletimeError)
        told = f"{error}\n" if is_plain else traceback.format_exc()
        if not failure.write(failure.now(here.rank, 1, told)):
            raise
        raise typer.Exit(1) from error
