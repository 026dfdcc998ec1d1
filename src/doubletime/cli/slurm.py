"""`doubletime slurm`: write the script that Slurm takes, or submit it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from doubletime.cli.batch import RULE
from doubletime.cli.run import rank_command, variables
from doubletime.cli.where import BackendOption, EnvOption, MaxRestartsOption, MinHostsOption
from doubletime.cluster import batch_system
from doubletime.errors import LaunchError

HELP = (
    "Write the script that Slurm's sbatch takes, to run a program on several hosts.\n\n"
    "The program is a script (run by this Python), -m and a module, or any executable. "
    f"{RULE} "
    "The script is printed, written to a file (--save) or handed to sbatch (--submit)."
)


def slurm(
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM [ARGS]", help="What each rank runs.")
    ],
    nodes: Annotated[int, typer.Option("-N", "--nodes", min=1, help="How many hosts.")] = 1,
    per_host: Annotated[
        int | None,
        typer.Option("--per-host", min=1, help="Ranks on each.  [default: one per GPU, or one]"),
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Cores for each rank.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of each host.")] = None,
    time: Annotated[
        str | None, typer.Option(metavar="TIME", help="The most it may take: 90, 01:30:00, 2-12.")
    ] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Of Slurm's.")] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Who pays.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the job.  [default: the program's]")] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its output.  [default: NAME-%j.log]")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="A further one of sbatch; may be repeated."),
    ] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option(metavar="LINE", help="A shell line before: 'module load openmpi'."),
    ] = None,
    backend: BackendOption = None,
    env: EnvOption = None,
    max_restarts: MaxRestartsOption = 0,
    min_hosts: MinHostsOption = 1,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the script there.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Hand it to sbatch.")] = False,
) -> None:
    """Write the script that Slurm takes, or submit it."""
    rank_command(program)  # before it waits in a queue
    launch = batch_system.Launch(program, backend, variables(env or []), max_restarts, min_hosts)
    job = batch_system.SlurmJob(
        name=name or job_name(program),
        nodes=nodes,
        folder=str(Path.cwd()),
        per_host=per_host,
        cpus=cpus,
        gpus=gpus,
        time=time,
        partition=partition,
        account=account,
        output=output,
        options=_options(option or []),
        setup=setup or [],
    )
    script = batch_system.slurm_script(job, launch, sys.executable)
    write(script, save)
    if submit:
        number = _submit(script)
        log = job.log.replace("%j", number)
        typer.echo(f"doubletime: job {number} is submitted; its output goes to {log}", err=True)
        typer.echo(f"  squeue -j {number}     where it stands", err=True)
        typer.echo(f"  scancel {number}       end it", err=True)
    elif save is not None:
        typer.echo(f"doubletime: {save} is written; submit it: sbatch {save}", err=True)
    else:
        typer.echo(script, nl=False)


def job_name(program: list[str]) -> str:
    """A name for a job: that of its script, module or executable."""
    named = program[1] if program[0] == "-m" and len(program) > 1 else program[0]
    return Path(named).name.removesuffix(".py")


def write(text: str, file: Path | None) -> None:
    """Write a file, where one is named.

    Raises:
        LaunchError: if it cannot be written.
    """
    if file is None:
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise LaunchError(f"{file} cannot be written: {error.strerror}", "--save FILE") from error


def _options(pairs: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for pair in pairs:
        name, sign, value = pair.removeprefix("--").partition("=")
        found[name] = value if sign else None
    return found


def _submit(script: str) -> str:
    """Hand the script to sbatch; returns the job's number.

    Raises:
        LaunchError: if there is no sbatch, or it refuses; with what it says.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise LaunchError(
            "there is no sbatch here to submit with",
            "log in to a host of the Slurm cluster, or leave --submit out to see the script",
        ) from error
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise LaunchError(f"sbatch does not take the job: {said}", "sinfo shows what there is")
    return batch_system.job_number(done.stdout)
