"""What the doctor says of a fault: what is wrong, where, why it matters, what mends it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


class Severity(enum.IntEnum):
    """How much a fault hurts; the worst comes first."""

    ERROR = 0  # a job does not start, hangs, or computes something else
    WARNING = 1  # it runs slower than it could, or may fail later
    NOTE = 2  # good to know

    @property
    def word(self) -> str:
        """For people and JSON."""
        return self.name.lower()


@dataclass(frozen=True)
class Finding:
    """One fault.

    Attributes:
        kind: a name that stays the same, such as "clock-apart".
        what: one sentence with what was found.
        host: on which, or between which two: "node1 - node2".
        why: why it matters for training.
        remedy: the exact command or line that mends it.
        severity: how much it hurts.
    """

    kind: str
    what: str
    host: str
    why: str
    remedy: str
    severity: Severity = Severity.ERROR

    def record(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "severity": self.severity.word}


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first, each kind together, and in the order of hosts within it."""
    found = list(findings)
    first: dict[tuple[Severity, str], int] = {}
    for index, finding in enumerate(found):
        first.setdefault((finding.severity, finding.kind), index)
    return tuple(sorted(found, key=lambda each: (each.severity, first[each.severity, each.kind])))
