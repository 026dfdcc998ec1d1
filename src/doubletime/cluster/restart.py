"""Start a job again when it has failed: on the hosts that are healthy, as often as is allowed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RESTART_VARIABLE = "DOUBLETIME_RESTART"  # 1, 2, … in a job that was started again: resume
_AT_ONCE_S = 60.0  # a job that fails sooner has hardly got further than before
_PAUSE_S = 1.0  # what a failed job's last words, and a host's last packets, may take
# Ends that come from outside: nothing says that the next start would meet with them.
_FROM_OUTSIDE = re.compile(r"died by signal (?:1|9|15)\b|^ended by SIGTERM", re.MULTILINE)
_CHANGING = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True)
class Policy:
    """How often, and on how few hosts.

    Attributes:
        max_restarts: after the first start.
        min_hosts: that must be healthy.
    """

    max_restarts: int
    min_hosts: int = 1


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        exit_code: 0 where all went well.
        cause: why it failed, as a person was told: the first failed rank and its traceback; empty
            where nothing is known.
        lost_hosts: those that are gone or out of reach.
        interrupted_by: the signal by which a person, or a batch system, ended it.
    """

    exit_code: int
    cause: str = ""
    lost_hosts: tuple[str, ...] = ()
    interrupted_by: int | None = None


@dataclass(frozen=True)
class Health:
    """What is known of a host.

    Attributes:
        host: its name.
        trouble: why nothing can be started there; None where it is healthy.
    """

    host: str
    trouble: str | None = None


class Story:
    """What happened between starts: shown as it happens, and kept in a file.

    Args:
        show: shows a line to a person.
        file: gets each line with its time; None keeps none.
    """

    def __init__(self, show: Callable[[str], None], file: Path | None) -> None:
        self._show = show
        self._file = file

    def tell(self, line: str) -> None:
        """Show a line and keep it."""
        self._show(line)
        self.keep(line)

    def keep(self, text: str) -> None:
        """Keep what was shown already."""
        if self._file is None:
            return
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            with self._file.open("a") as file:
                file.write("".join(f"{stamp} {line}\n" for line in text.rstrip().splitlines()))
        except OSError as error:
            self._show(f"{self._file} cannot be written: {error.strerror}; it is not kept further")
            self._file = None


def run(
    hosts: Sequence[str],
    policy: Policy,
    start: Callable[[Sequence[str], Mapping[str, str]], Ending],
    examine: Callable[[Sequence[str]], Sequence[Health]],
    story: Story,
) -> int:
    """Start a job, and again where it fails, until it succeeds or that makes no sense any more.

    It is not started again when someone has ended it, when too few hosts are healthy, when it has
    been started often enough, or when it fails twice at once for the same reason.

    Args:
        hosts: all that it may use; those that have been sick are asked again before each start.
        policy: how often, and on how few.
        start: runs the job on some of the hosts, with variables for its ranks, to its end.
        examine: tells of each host whether something can be started there.
        story: hears what happens.

    Returns:
        The exit code of the last start.
    """
    used = tuple(hosts)
    before: Ending | None = None
    for restarts in range(policy.max_restarts + 1):
        began_s = time.monotonic()
        ending = start(used, {RESTART_VARIABLE: str(restarts)} if restarts else {})
        lasted_s = time.monotonic() - began_s
        if ending.exit_code == 0:
            if restarts:
                story.tell(f"the job has ended well, {_starts(restarts)}")
            return 0
        story.keep(f"the job failed after {lasted_s:.0f} s with exit code {ending.exit_code}")
        story.keep(ending.cause)
        if ending.interrupted_by is not None:
            return ending.exit_code
        if policy.max_restarts == restarts:
            if restarts:
                story.tell(f"the job failed, {_starts(restarts)}: no restart is left")
            return ending.exit_code
        if lasted_s < _AT_ONCE_S and before is not None and is_same(before, ending):
            left = policy.max_restarts - restarts
            story.tell(
                f"the job failed for the same reason as before, {lasted_s:.0f} s after its start: "
                f"it is not started again, though {left} restart{'s are' if left > 1 else ' is'} left"
            )
            return ending.exit_code
        before = ending
        time.sleep(_PAUSE_S)
        used = _healthy(hosts, used, examine, story)
        if len(used) < policy.min_hosts:
            story.tell(
                f"{len(used)} of {len(hosts)} hosts are healthy, and --min-hosts is "
                f"{policy.min_hosts}: the job is not started again"
            )
            return ending.exit_code
        story.tell(
            f"restart {restarts + 1} of {policy.max_restarts}, on {', '.join(used)} "
            f"({RESTART_VARIABLE}={restarts + 1})"
        )
    raise AssertionError("the last round returns")


def is_same(one: Ending, other: Ending) -> bool:
    """Whether two jobs failed for the same reason, as far as their tracebacks tell. Pure.

    Numbers do not count: the rank, the step, an address. What comes from outside never is the same.
    """
    for each in (one, other):
        if each.lost_hosts or not each.cause or _FROM_OUTSIDE.search(each.cause):
            return False
    return _CHANGING.sub("#", one.cause) == _CHANGING.sub("#", other.cause)


def _healthy(
    hosts: Sequence[str],
    used: Sequence[str],
    examine: Callable[[Sequence[str]], Sequence[Health]],
    story: Story,
) -> tuple[str, ...]:
    healthy = []
    for health in examine(hosts):
        if health.trouble is not None:
            story.tell(f"host {health.host} is left out: {health.trouble}")
            continue
        healthy.append(health.host)
        if health.host not in used:
            story.tell(f"host {health.host} is back")
    return tuple(healthy)


def _starts(restarts: int) -> str:
    return f"after {restarts} restart{'s' if restarts > 1 else ''}"
