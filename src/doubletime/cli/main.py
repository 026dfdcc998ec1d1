"""The `doubletime` command: what is asked first, and errors to exit codes."""

from __future__ import annotations

import sys
from typing import NoReturn

from doubletime.cluster.loaded import Library
from doubletime.errors import DoubletimeError


def main() -> None:
    """Run the command; exit 2 where it was called wrongly, 1 where doubletime says why not."""
    try:
        if sys.argv[1:2] == ["run"]:
            _run(sys.argv[2:])
        from doubletime.cli.verbs import app

        app()
    except DoubletimeError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


def _run(arguments: list[str]) -> NoReturn:
    """The verb whose users wait for it each time: past the others, and what it needs is asked at once."""
    library = Library()
    try:
        from doubletime.cli.verbs import command

        command("run")(arguments, prog_name="doubletime run", obj=library)
    finally:
        library.close()
    sys.exit()
