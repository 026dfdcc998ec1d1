"""`doubletime train`: train a task on ranks that step together."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doubletime import environment
from doubletime.cli import local_ranks, sending, switches, tasks
from doubletime.cli.tasks import MeshOption
from doubletime.cli.where import (
    HostfileOption,
    HostsOption,
    SshCommandOption,
    SshConfigOption,
    Where,
    where,
)
from doubletime.errors import LaunchError

_GRACE_S = 30  # what a checkpoint may take after SIGTERM: as long as Slurm and Kubernetes wait

if TYPE_CHECKING:
    from doubletime.cluster.placement import Placement
    from doubletime.training.sending import SendingOptions
    from doubletime.training.switches import SwitchOptions


def train(
    task: tasks.TaskArgument,
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
    mesh: MeshOption = None,
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
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="STEPS", help="Save so often; 0 never.  [default: at each epoch's end]"
        ),
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="How many checkpoints, the newest.")] = 3,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="auto|PATH|never",
            help="Go on from this run's newest whole checkpoint, or from another.  "
            "[default: auto after a restart of --max-restarts, else never]",
        ),
    ] = None,
    ssh_config: SshConfigOption = None,
    ssh_command: SshCommandOption = None,
    lr: switches.LrOption = None,
    scale_lr: switches.ScaleLrOption = "none",
    warmup: switches.WarmupOption = "0",
    optimizer: switches.OptimizerOption = None,
    accumulate: switches.AccumulateOption = 1,
    clip_norm: switches.ClipNormOption = None,
    precision: switches.PrecisionOption = "fp32",
    checkpoint_activations: switches.CheckpointActivationsOption = False,
    compile: switches.CompileOption = False,
    on_nan: switches.OnNanOption = "stop",
    sync_batchnorm: switches.SyncBatchnormOption = False,
    check_every: switches.CheckEveryOption = 0,
    reproducible: switches.ReproducibleOption = False,
    schedule: switches.ScheduleOption = None,
    microbatches: switches.MicrobatchesOption = 0,
    compress: sending.CompressOption = None,
    algorithm: sending.AlgorithmOption = None,
    local_steps: sending.LocalStepsOption = None,
    local_after: sending.LocalAfterOption = None,
    outer: sending.OuterOption = None,
    outer_lr: sending.OuterLrOption = None,
    outer_momentum: sending.OuterMomentumOption = None,
) -> None:
    """Train a task by synchronous SGD, on 1 rank or many.

    Hosts are those of --hosts or --hostfile, else those that Slurm has allotted, else this one.
    """
    turned: SwitchOptions = {
        "lr": lr,
        "scale_lr": scale_lr,
        "warmup": warmup,
        "optimizer": optimizer,
        "accumulate": accumulate,
        "clip_norm": clip_norm,
        "precision": precision,
        "checkpoint_activations": checkpoint_activations,
        "compile": compile,
        "on_nan": on_nan,
        "sync_batchnorm": sync_batchnorm,
        "check_every": check_every,
        "reproducible": reproducible,
        "schedule": schedule,
        "microbatches": microbatches,
    }
    sent: SendingOptions = {
        "compress": compress,
        "algorithm": algorithm,
        "local_steps": local_steps,
        "local_after": local_after,
        "outer": outer,
        "outer_lr": outer_lr,
        "outer_momentum": outer_momentum,
    }

    def train_here() -> None:
        """Be one rank of the job, or the only process."""
        from doubletime import api
        from doubletime.training import session

        api.train(
            task,
            epochs=epochs,
            global_batch=global_batch,
            seed=seed,
            limit=limit,
            mesh=mesh,
            backend=backend,
            runs=runs,
            name=name,
            checkpoint_every=checkpoint_every,
            keep=keep,
            resume=resume,
            **turned,
            **sent,
        )
        session.leave()

    place = environment.place()
    if place is not None:
        with tasks.telling(place):
            _refuse_to_launch(place, ranks, compare)
            train_here()
        return
    asked = where(hosts, hostfile, ssh_config, ssh_command)
    placed = tasks.place(asked, tasks.ranks_of(mesh, ranks, compare=compare))
    if compare and placed.ranks == 1:
        raise LaunchError("--compare needs more than 1 rank to compare with", "add -n 2")
    if not compare and placed.ranks == 1 and backend is None and tasks.is_here(placed):
        train_here()
        return
    task, default_name = tasks.prepared(task)
    options = tasks.options(
        {
            "--epochs": epochs,
            "--global-batch": global_batch,
            "--seed": seed,
            "--limit": limit,
            "--mesh": mesh,
            "--backend": backend,
            "--checkpoint-every": checkpoint_every,
            "--keep": keep,
        }
    )
    options += switches.words(turned) + sending.words(sent)
    job = _Job(task, options, backend, asked)
    if compare:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        _compare(job, placed, runs, name or f"{default_name}-{stamp}")
    else:
        job.run(placed.ranks, tasks.options({"--runs": runs, "--name": name, "--resume": resume}))


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


@dataclass(frozen=True)
class _Job:
    """This same command, to be run on ranks: what to train, how, and where."""

    task: str
    options: list[str]
    backend: str | None
    where: Where

    def run(self, ranks: int, more: Sequence[str] = (), threads: int | None = None) -> None:
        """Run it on so many ranks; does not return where they fail."""
        from doubletime.cluster.running import GRACE_VARIABLE

        settings = {GRACE_VARIABLE: os.environ.get(GRACE_VARIABLE, str(_GRACE_S))}
        if threads is not None:
            settings["OMP_NUM_THREADS"] = str(threads)
        exit_code = local_ranks.start(
            ["train", self.task, *self.options, *more],
            ranks,
            self.where,
            backend=tasks.launcher_backend(self.backend),
            environment=settings,
        )
        if exit_code:
            raise typer.Exit(exit_code)


def _compare(job: _Job, placed: Placement, runs: Path, name: str) -> None:
    """The same recipe on 1 rank and on several, with as many threads per rank in both."""
    from doubletime.reporting import runlog
    from doubletime.reporting.console import comparison_table, open_console
    from doubletime.units import plural

    threads = tasks.threads_of(placed)
    console = open_console()
    results = []
    for count in (1, placed.ranks):
        folder = f"{name}-n{count}"
        console.print(f"\n{plural(count, 'rank')}, {plural(threads, 'thread')} each", style="bold")
        job.run(count, tasks.options({"--runs": runs, "--name": folder}), threads)
        results.append(runlog.read_result(runs / folder))
    console.print(comparison_table(*results))
