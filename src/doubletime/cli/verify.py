"""`doubletime verify`: do N ranks compute what one process computes, and if not, why."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doubletime import environment, failure
from doubletime.cli import local_ranks, tasks
from doubletime.cli.tasks import MeshOption
from doubletime.cli.where import (
    HostfileOption,
    HostsOption,
    SshCommandOption,
    SshConfigOption,
    where,
)
from doubletime.errors import LaunchError

if TYPE_CHECKING:
    from doubletime.training.verify.verdict import Verdict


def verify(
    task: tasks.TaskArgument,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n", "--ranks", min=2, help="How many ranks.  [default: 2; one per slot of hosts]"
        ),
    ] = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    steps: Annotated[int, typer.Option(min=1, help="How many steps are compared.")] = 5,
    global_batch: Annotated[
        int | None, typer.Option(help="Samples per step over all ranks, in place of the task's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the task's own.")] = None,
    mesh: MeshOption = None,
    backend: Annotated[
        str | None, typer.Option(help="mpi, gloo or nccl.  [default: what the launcher speaks]")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Up to which relative difference in the task's own precision is equal.  "
            "[default: 1.5e-8, half of the digits, of the same steps in float64]"
        ),
    ] = None,
    reproducible: Annotated[
        bool,
        typer.Option("--reproducible", help="Train reproducibly; equal is the same bits only."),
    ] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print all that was found.")] = False,
    ssh_config: SshConfigOption = None,
    ssh_command: SshCommandOption = None,
    records: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Compare some steps on N ranks with the same steps on 1 process; exit 1 where they differ.

    Loss, gradients, parameters and buffers of each step are compared, over the same global batches. Where
    they differ, it names the first step, what differs, the likely cause and what mends it.
    """
    here = environment.place()
    if here is not None:
        if records is None:
            raise LaunchError(
                f"verify starts ranks itself, but {here.launcher} started this process",
                "doubletime verify … -n 2, without mpiexec",
            )
        with tasks.telling(here):
            is_equal = _compute(
                here,
                task,
                records,
                ranks,
                steps,
                global_batch,
                seed,
                mesh,
                backend,
                tolerance,
                reproducible,
                is_json,
            )
        if not is_equal:
            failure.write(failure.now(here.rank, 1, "not equal\n", is_shown=True))
            raise typer.Exit(1)
        return
    from doubletime.cluster import allocation

    if tolerance is not None and not tolerance >= 0:
        raise LaunchError(f"--tolerance {tolerance} is no distance", "--tolerance 1e-5")
    if tolerance is not None and reproducible:
        raise LaunchError("reproducible runs have the same bits, or have not", "drop --tolerance")
    asked = where(hosts, hostfile, ssh_config, ssh_command)
    ranks = tasks.ranks_of(mesh, ranks)
    if ranks is None and asked.hosts is None and allocation.from_slurm(os.environ) is None:
        ranks = 2
    placed = tasks.place(asked, ranks)
    if placed.ranks < 2:
        raise LaunchError("verify needs more than 1 rank to compare with", "add -n 2")
    task, _ = tasks.prepared(task)
    folder = Path(tempfile.gettempdir(), f"doubletime-verify-{uuid.uuid4().hex}")
    options = tasks.options(
        {
            "--records": folder,
            "-n": placed.ranks,
            "--steps": steps,
            "--global-batch": global_batch,
            "--seed": seed,
            "--mesh": mesh,
            "--backend": backend,
            "--tolerance": tolerance,
        }
    )
    options += ["--json"] * is_json + ["--reproducible"] * reproducible
    try:
        for count in (1, placed.ranks):
            exit_code = local_ranks.start(
                ["verify", task, *options],
                count,
                asked,
                backend=tasks.launcher_backend(backend),
                environment={"OMP_NUM_THREADS": str(tasks.threads_of(placed))},
            )
            if exit_code:
                raise typer.Exit(exit_code)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compute(
    here: environment.Place,
    task: str,
    records: Path,
    ranks: int | None,
    steps: int,
    global_batch: int | None,
    seed: int | None,
    mesh: str | None,
    backend: str | None,
    tolerance: float | None,
    reproducible: bool,
    is_json: bool,
) -> bool:
    """Be one rank of either job; True but on a rank 0 that has found a difference."""
    from doubletime import api
    from doubletime.training import session

    is_reference = here.world_size == 1
    if is_reference:
        records.mkdir(mode=0o700)
    try:
        verdict = api.verify(
            task,
            records,
            ranks=ranks or here.world_size,
            steps=steps,
            global_batch=global_batch,
            seed=seed,
            mesh=mesh,
            backend=backend,
            tolerance=tolerance,
            reproducible=reproducible,
        )
    except BaseException:
        _remove(here, records)
        raise
    if not is_reference:
        _remove(here, records)
    session.leave()
    if verdict is None:
        return True
    _show(verdict, is_json=is_json)
    return verdict.is_equal


def _remove(here: environment.Place, records: Path) -> None:
    if here.rank == 0:
        shutil.rmtree(records, ignore_errors=True)


def _show(verdict: Verdict, *, is_json: bool) -> None:
    from doubletime.reporting.console import open_console
    from doubletime.reporting.verification import show

    if is_json:
        typer.echo(json.dumps(asdict(verdict), indent=1))
    else:
        show(open_console(), verdict)
