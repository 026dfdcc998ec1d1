"""What this process has from whoever started it: streams, a folder, a width; and what may be wrong with them."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from doubletime.errors import LaunchError

# What a write that goes to a file or a terminal may meet; a pipe's end is no fault.
_UNWRITABLE = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EROFS)
)


def settle() -> None:
    """Put /dev/null where a standard stream is closed, and take a width of 0 for none.

    The next file that is opened would take the closed stream's place, and get what is meant for it.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115
    for name in ("COLUMNS", "LINES"):
        if os.environ.get(name) == "0":  # by which some mean that it is not known
            del os.environ[name]


def explain(error: OSError) -> LaunchError | None:
    """What an error means that comes of these; None where it comes of something else."""
    if error.filename is not None:
        return None
    if error.errno in _UNWRITABLE:
        return LaunchError(
            f"what this command tells cannot be written: {error.strerror}",
            "let its output go to a disk that has room, or to a terminal",
        )
    if isinstance(error, FileNotFoundError) and not _is_somewhere():
        return LaunchError("the folder in which you are is no longer there", "cd to another one")
    return None


def give_up() -> None:
    """Write no more to stdout: what is left in its buffer would fail again when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _is_somewhere() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True
