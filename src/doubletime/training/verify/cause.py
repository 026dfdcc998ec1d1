"""What explains a difference, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """Why ranks do not compute what one process does, or will not.

    Attributes:
        name: in few words.
        what: the evidence, in one sentence.
        remedy: what mends it.
    """

    name: str
    what: str
    remedy: str
