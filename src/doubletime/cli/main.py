"""The `doubletime` command: its verbs, and errors to exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from doubletime import __version__
from doubletime.cli import (
    batch,
    bench,
    bench_links,
    bench_tune,
    doctor,
    explain,
    k8s,
    run,
    slurm,
    train,
)
from doubletime.errors import DoubletimeError

app = typer.Typer(
    name="doubletime",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Synchronous distributed training for stock PyTorch: run, train, measure.",
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"doubletime {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of the command itself."""


# What follows the program is its own, or at least the rest of it.
for name, verb, text, line in (
    ("run", run.run, run.HELP, run.ProgramCommand),
    ("slurm", slurm.slurm, slurm.HELP, batch.BatchCommand),
    ("k8s", k8s.k8s, k8s.HELP, batch.BatchCommand),
):
    app.command(
        name,
        cls=line,
        context_settings={"allow_interspersed_args": False},
        help=text,
    )(verb)
app.command("train")(train.train)
bench.app.command("links")(bench_links.links)
bench.app.command("tune")(bench_tune.tune)
app.add_typer(bench.app, name="bench")
app.command("explain")(explain.explain)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Run the command; exit 2 where it was called wrongly, 1 where doubletime says why not."""
    try:
        app()
    except DoubletimeError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
