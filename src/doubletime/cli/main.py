"""The `doubletime` command: what is asked first, and errors to exit codes."""

from __future__ import annotations

import sys
from typing import NoReturn

_INTERRUPTED, _UNREAD = 130, 141  # as shells have it: 128 and SIGINT, SIGPIPE


def main() -> None:
    """Run the command; exit 2 where it was called wrongly, 1 where doubletime says why not."""
    try:
        _main()
    except KeyboardInterrupt:  # before a verb has begun: what is loaded takes a while
        sys.exit(_INTERRUPTED)


def _main() -> None:
    from doubletime.cli import streams
    from doubletime.errors import DoubletimeError

    streams.settle()
    try:
        try:
            _carry_out()
        finally:
            sys.stdout.flush()  # here an error can still be told
    except DoubletimeError as error:
        _end(str(error))
    except BrokenPipeError:  # `| head` has seen enough
        streams.give_up()
        sys.exit(_UNREAD)
    except OSError as error:
        explained = streams.explain(error)
        if explained is None:
            raise
        streams.give_up()
        _end(str(explained))


def _carry_out() -> None:
    if sys.argv[1:2] == ["run"]:
        _run(sys.argv[2:])
    from doubletime.cli.verbs import app

    app()


def _run(arguments: list[str]) -> NoReturn:
    """The verb whose users wait for it each time: past the others, and what it needs is asked at once."""
    from doubletime.cluster.loaded import Library

    library = Library()
    try:
        from doubletime.cli.verbs import command

        command("run")(arguments, prog_name="doubletime run", obj=library)
    finally:
        library.close()
    sys.exit()


def _end(text: str) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.exit(1)
