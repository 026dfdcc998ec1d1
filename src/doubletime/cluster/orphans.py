"""Processes whose parent has ended: they come to whoever adopts them, as to see all of a job."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Within, a descendant whose parent ends becomes this process's child, not init's.

    So that no process of a job is out of sight, whatever session it has moved to.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def has_children() -> bool:
    """Whether this process has any, be they dead but not reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
