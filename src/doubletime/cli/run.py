"""`doubletime run`: start any program on ranks of this host or of many."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperOption

from doubletime.cli import plain
from doubletime.cli.where import (
    BackendOption,
    EnvOption,
    HostfileOption,
    HostsOption,
    MaxRestartsOption,
    MinHostsOption,
    SshCommandOption,
    SshConfigOption,
    remembered,
    where,
)
from doubletime.environment import own_cores
from doubletime.errors import LaunchError

LOGS_VARIABLE = "DOUBLETIME_LOGS"
HELP = (
    "Start a program on several ranks, of this host or of many, with the MPI at hand.\n\n"
    "The program is a script (run by this Python), -m and a module, or any executable; "
    "what follows it is its own. "
    "Hosts are those of --hosts or --hostfile, else those that Slurm has allotted, "
    "else this one. "
    "When a rank fails, the whole job ends, with that rank's exit code."
)


class ProgramCommand(TyperCommand):
    """A command line whose options end where a program begins, be it `-m module`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put `--` before the program, so that what follows it is left alone; then read the options."""
        with_value = {
            word
            for option in self.params
            if isinstance(option, TyperOption) and not option.is_flag
            for word in option.opts
        }
        marked = _with_program_marked(args, with_value)
        values = plain.read(self, ctx, marked)
        if values is None:
            return super().parse_args(ctx, marked)
        ctx.params.update(values)
        return []


def _with_program_marked(args: list[str], with_value: set[str]) -> list[str]:
    position = 0
    while position < len(args) and args[position].startswith("-") and args[position] != "--":
        if args[position] == "-m":
            return [*args[:position], "--", *args[position:]]
        position += 2 if args[position] in with_value else 1
    return args


def run(
    ctx: typer.Context,
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM [ARGS]", help="What each rank runs.")
    ],
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--ranks",
            min=1,
            help="How many ranks.  [default: one per slot; one per core of this host]",
        ),
    ] = None,
    per_host: Annotated[
        int | None, typer.Option("--per-host", min=1, help="How many ranks on each host.")
    ] = None,
    backend: BackendOption = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            metavar="mpi|ssh",
            help="Who starts the ranks: an mpiexec, or plain ssh.  [default: ssh where no MPI is]",
        ),
    ] = None,
    bind: Annotated[
        bool | None,
        typer.Option(
            help="Give each rank cores of its own.  [default: on one host, where all are ours]"
        ),
    ] = None,
    env: EnvOption = None,
    ssh_config: SshConfigOption = None,
    ssh_command: SshCommandOption = None,
    tag_output: Annotated[
        bool, typer.Option("--tag-output", help="Begin each line with its rank and host.")
    ] = False,
    log_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep what each rank writes, as rank-N.log, on its host.  [default: for a job "
            "across hosts off a terminal, a new folder in $DOUBLETIME_LOGS or doubletime-logs]",
        ),
    ] = None,
    max_restarts: MaxRestartsOption = 0,
    min_hosts: MinHostsOption = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the exact command instead of running it.")
    ] = False,
) -> None:
    """Start a program on several ranks, of this host or of many."""
    from doubletime.cluster import job, supervise

    place = where(hosts, hostfile, ssh_config, ssh_command)
    request = job.Request(
        command=rank_command(program),
        hosts=place.hosts,
        ranks=ranks,
        per_host=per_host,
        ssh=place.ssh,
        launcher=launcher,
        backend=backend,
        environment=variables(env or []),
        bind=bind,
        tag_output=tag_output,
        log_folder=log_folder,
    )
    prepared = job.prepare(request, ctx.obj)
    if dry_run:
        typer.echo(prepared.plan.shell())
        return
    if prepared.is_across and log_folder is None and not sys.stdout.isatty():
        request = replace(request, log_folder=_new_log_folder())
        prepared = replace(prepared, request=request)
    if log_folder is not None and not prepared.is_across:
        _make(log_folder)
    cores = own_cores()
    if not prepared.is_across and prepared.placement.ranks > cores:
        typer.echo(f"doubletime: {prepared.placement.ranks} ranks share {cores} cores", err=True)
    if prepared.is_across:
        for line in remembered(prepared.placement):
            _say(line)
    if max_restarts:
        from doubletime.cluster import persistent
        from doubletime.cluster.restart import Policy

        policy = Policy(max_restarts, min_hosts)
        log = Path(time.strftime("restarts-%Y%m%d-%H%M%S.log"))
        raise typer.Exit(persistent.run(request, prepared, policy, _say, log))
    raise typer.Exit(supervise.carry_out(prepared).status)


def _new_log_folder() -> Path | None:
    """A folder that no other run has; None where DOUBLETIME_LOGS is set to nothing, or cannot be made."""
    base = os.environ.get(LOGS_VARIABLE, "doubletime-logs")
    if not base:
        return None
    import tempfile

    whole = Path(base).absolute()
    there = next(each for each in (whole, *whole.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        _say(f"what each rank writes is not kept: {there}: {error.strerror}")
        return None
    folder = Path(base, time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}"))
    _say(f"what each rank writes is kept in {folder}")
    return folder


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "there is a file of this name" if folder.is_file() else error.strerror
        raise LaunchError(
            f"--log-folder {folder} cannot be made: {why}", "--log-folder FOLDER"
        ) from error


def _say(line: str) -> None:
    typer.echo(f"doubletime: {line}", err=True)


def variables(pairs: list[str]) -> dict[str, str]:
    """What `--env` sets.

    Raises:
        LaunchError: if one is no NAME=VALUE.
    """
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise LaunchError(f"--env {pair!r} is no NAME=VALUE", "--env NCCL_DEBUG=INFO")
        found[name] = value
    return found


def rank_command(program: list[str]) -> list[str]:
    """What each rank runs, checked before anything starts.

    Raises:
        LaunchError: if the script, module or executable is not there.
    """
    first, *rest = program
    if first == "-m":
        if not rest:
            raise LaunchError("-m names no module", "doubletime run -n 2 -m package.module")
        if not _is_module(rest[0]):
            raise LaunchError(f"no module named {rest[0]}", f"{sys.executable} -m pip list")
        return [sys.executable, *program]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise LaunchError(
                f"there is no script {first} (looked in {Path.cwd()})",
                "name a script that exists, relative to this folder or whole",
            )
        return [sys.executable, *program]
    if shutil.which(first) is None:
        raise LaunchError(
            f"{first} is neither a script (.py) nor an executable",
            f"chmod +x {first}"
            if Path(first).is_file()
            else "name one that exists, or add it to PATH",
        )
    return program


def _is_module(name: str) -> bool:
    """Whether Python would find the module, the current folder first as with `python -m`."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        # The top package only: finding a submodule would import its parents.
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except ValueError:
        return False
    finally:
        sys.path[:] = before
