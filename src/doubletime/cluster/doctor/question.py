"""What the doctor is asked, and what it tells while it looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from doubletime.cluster.hosts import Host
from doubletime.cluster.ssh import Ssh

HERE = "this machine"
STEPS = ("login", "facts", "folder", "ports", "links")


@dataclass(frozen=True)
class Question:
    """What is to be looked at.

    Attributes:
        hosts: to train on; none for this machine only.
        folder: in which jobs run, a whole path.
        checkpoints: the folder where they go, a whole path; None for `folder`.
        script: to be run, a whole path; None where that is not known.
        ssh: how hosts are reached.
        timeout_s: for each login, in seconds.
        has_bandwidth: whether to measure what links carry.
    """

    hosts: tuple[Host, ...]
    folder: Path
    checkpoints: Path | None = None
    script: Path | None = None
    ssh: Ssh = Ssh()  # noqa: RUF009 (frozen)
    timeout_s: float = 10.0
    has_bandwidth: bool = True


@dataclass(frozen=True)
class Visit:
    """How far it is with one host.

    Attributes:
        host: its name.
        step: one of `STEPS`.
        outcome: None while it runs; else whether it went well.
        what: a few words of what was found.
    """

    host: str
    step: str
    outcome: bool | None = None
    what: str = ""


Observe = Callable[[Visit], None]
