"""The verbs of the `doubletime` command, each loaded when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from doubletime import __version__

VERBS = ("run", "slurm", "k8s", "train", "verify", "bench", "explain", "doctor")


class _Verbs(TyperGroup):
    """To load them all takes longer than to start a job with one of them."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        self._load(*VERBS)
        return sorted(super().list_commands(ctx), key=VERBS.index)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        # A name that is none is compared with all there are.
        self._load(*([cmd_name] if cmd_name in VERBS else VERBS))
        return super().get_command(ctx, cmd_name)

    def _load(self, *names: str) -> None:
        for name in names:
            if name not in self.commands:
                self.add_command(command(name), name)


app = typer.Typer(
    name="doubletime",
    cls=_Verbs,
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


def command(name: str) -> Any:
    """A verb by itself."""
    return typer.main.get_command(_verb(name))


def _verb(name: str) -> typer.Typer:
    verb = typer.Typer(add_completion=False)
    match name:
        case "run":
            from doubletime.cli import run

            _takes_program(verb, run.run, run.HELP, run.ProgramCommand)
        case "slurm":
            from doubletime.cli import batch, slurm

            _takes_program(verb, slurm.slurm, slurm.HELP, batch.BatchCommand)
        case "k8s":
            from doubletime.cli import batch, k8s

            _takes_program(verb, k8s.k8s, k8s.HELP, batch.BatchCommand)
        case "train":
            from doubletime.cli import train

            verb.command()(train.train)
        case "verify":
            from doubletime.cli import verify

            verb.command()(verify.verify)
        case "bench":
            from doubletime.cli import bench, bench_links, bench_tune

            verb = bench.app
            verb.command("links")(bench_links.links)
            verb.command("tune")(bench_tune.tune)
        case "explain":
            from doubletime.cli import explain

            verb.command()(explain.explain)
        case "doctor":
            from doubletime.cli import doctor

            verb.command()(doctor.doctor)
    return verb


def _takes_program(
    verb: typer.Typer, function: Callable[..., None], text: str, line: type[TyperCommand]
) -> None:
    """A verb with a program in its line, and what is the program's own."""
    settings = {"allow_interspersed_args": False}
    verb.command(cls=line, context_settings=settings, help=text)(function)
