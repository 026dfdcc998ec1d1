"""`doubletime run`: start any program on ranks of this host."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from doubletime.environment import own_cores
from doubletime.errors import LaunchError

HELP = (
    "Start a program on several ranks of this host, with the MPI at hand.\n\n"
    "The program is a script (run by this Python), -m and a module, or any executable; "
    "what follows it is its own. "
    "When a rank fails, the whole job ends, with that rank's exit code."
)


class ProgramCommand(TyperCommand):
    """A command line whose options end where a program begins, be it `-m module`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put `--` before the program, so that what follows it is left alone."""
        return super().parse_args(ctx, _with_program_marked(args))


def _with_program_marked(args: list[str]) -> list[str]:
    position = 0
    while position < len(args) and args[position].startswith("-") and args[position] != "--":
        if args[position] == "-m":
            return [*args[:position], "--", *args[position:]]
        position += 2 if args[position] in ("-n", "--ranks") else 1
    return args


def run(
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM [ARGS]", help="What each rank runs.")
    ],
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", min=1, help="How many ranks.  [default: one per core]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the exact command instead of running it.")
    ] = False,
    bind: Annotated[bool, typer.Option(help="Give each rank cores of its own.")] = True,
) -> None:
    """Start a program on several ranks of this host."""
    from doubletime.cluster import implementations, supervise

    cores = own_cores()
    wanted = cores if ranks is None else ranks
    command = _command(program)
    implementation = implementations.find()
    plan = supervise.plan_local(command, wanted, implementation, bind=bind)
    if dry_run:
        typer.echo(plan.shell())
        return
    if wanted > cores:
        typer.echo(f"doubletime: {wanted} ranks share {cores} cores", err=True)
    raise typer.Exit(supervise.supervise(plan, implementation))


def _command(program: list[str]) -> list[str]:
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
