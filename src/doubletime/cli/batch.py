"""Command lines for a batch system: options before the program or directly after it, as in `slurm train.py -N 4`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import typer
from typer.core import TyperCommand, TyperOption

from doubletime.errors import LaunchError

RULE = (
    "Options stand before the program or directly after it. "
    "The first word that is none of them begins what is the program's own; so does --."
)


class BatchCommand(TyperCommand):
    """A command line with a program in it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put our options before the program and `--` between; note what may have been meant otherwise."""
        takes_value = {
            word: not option.is_flag
            for option in self.params
            if isinstance(option, TyperOption)
            for word in (*option.opts, *option.secondary_opts)
        }
        line = divide(args, takes_value)
        for note in notes(line, ctx.info_name or "", takes_value):
            typer.echo(f"note: {note}", err=True)
        return super().parse_args(ctx, [*line.before, *line.behind, "--", *line.program])


@dataclass(frozen=True)
class Line:
    """A command line in its parts.

    Attributes:
        before, behind: our options, and where they stand: before the program, directly after it.
        program: with what is its own.
        is_marked: whether a `--` says where that begins.
    """

    before: tuple[str, ...]
    behind: tuple[str, ...]
    program: tuple[str, ...]
    is_marked: bool


def divide(args: Sequence[str], takes_value: Mapping[str, bool]) -> Line:
    """Tell our options from the program and what is its own.

    Args:
        args: the whole line.
        takes_value: our options, and whether each takes a value.

    Raises:
        LaunchError: if an option after the program lacks its value.
    """
    position = 0
    while (
        position < len(args)
        and args[position].startswith("-")
        and args[position] not in ("--", "-m")
    ):
        position += _length(args[position], takes_value) or 1  # what is unknown is refused later
    before, rest = tuple(args[:position]), tuple(args[position:])
    if rest[:1] == ("--",):
        return Line(before, (), rest[1:], is_marked=True)
    head = 2 if rest[:1] == ("-m",) else 1
    end = head
    while end < len(rest) and (length := _length(rest[end], takes_value)):
        if end + length > len(rest):
            raise LaunchError(f"{rest[end]} names no value", "--help tells which it takes")
        end += length
    is_marked = rest[end : end + 1] == ("--",)
    own = rest[end + is_marked :]
    return Line(before, rest[head:end], (*rest[:head], *own), is_marked)


def notes(line: Line, verb: str, takes_value: Mapping[str, bool]) -> list[str]:
    """What may have been meant otherwise, a line each.

    Args:
        line: the parts.
        verb: what our options belong to.
        takes_value: see `divide`.
    """
    if line.is_marked or not line.program:
        return []
    name = line.program[1] if line.program[0] == "-m" and len(line.program) > 1 else line.program[0]
    found = []
    if line.before and line.behind:
        found.append(
            f"{' '.join(line.behind)} after {name} is taken as {verb}'s; what is {name}'s own stands "
            f"after --: doubletime {verb} … {name} -- {' '.join(line.behind)}"
        )
    own = [word for word in line.program[1:] if _length(word, takes_value)]
    if own:
        found.append(
            f"{', '.join(own)} after {name}'s own words is its own too; options of {verb} stand before: "
            f"doubletime {verb} {own[0]} … {name}"
        )
    return found


def _length(word: str, takes_value: Mapping[str, bool]) -> int:
    """How many words an option of ours takes that begins with this one; 0 where it is none."""
    if word in takes_value:
        return 2 if takes_value[word] else 1
    if word.startswith("--"):
        return int(takes_value.get(word.partition("=")[0], False))
    return int(takes_value.get(word[:2], False))  # -N4
