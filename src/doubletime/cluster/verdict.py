"""Why a job ended, and what it is to exit with: pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from doubletime.cluster import banners
from doubletime.cluster.control import Loss
from doubletime.cluster.implementations import Implementation
from doubletime.failure import Failure

_LOST = 1  # the exit code of a job that lost a host
_REFUSED = 1
# What ranks see of a lost host may be known before its loss is.
_SEEN_EARLIER_S = 1.0
_NOTICED_S = 0.05  # how late the launcher's end is noticed, at most
# What ends a process from without, or by its own fault: never by a peer's end.
_CAUSES = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        exit_code: of the job: the first failed rank's, or 128 + n after signal n.
        cause: what is to stand last on the terminal; empty where all went well.
        rank, host: of the rank that failed first; None where none is known.
        lost_hosts: those that are gone or out of reach.
        interrupted_by: the signal by which a person ended it; None where none did.
        has_all_output: whether all that the ranks wrote could be written here.
    """

    exit_code: int
    cause: str = ""
    rank: int | None = None
    host: str | None = None
    lost_hosts: tuple[str, ...] = ()
    interrupted_by: int | None = None
    has_all_output: bool = True

    @property
    def status(self) -> int:
        """What the command that ran the job is to exit with: as any program, 1 where output is lost."""
        return self.exit_code or int(not self.has_all_output)


def outcome(
    implementation: Implementation,
    return_code: int,
    failures: Sequence[Failure],
    losses: Sequence[Loss],
    said: bytes,
    *,
    interrupted_by: int | None,
    died_s: float | None = None,
    refusal: str | None = None,
) -> Outcome:
    """How a job ended.

    Args:
        implementation: whose launcher it was.
        return_code: the launcher's, negative after a signal.
        failures: the ranks' records, the earliest first.
        losses: hosts that are gone or out of reach, the earliest first.
        said: the launcher's own words.
        interrupted_by: the signal that this process was told to end by.
        died_s: when the launcher was killed by someone else, in seconds since the epoch.
        refusal: why its ranks were not let begin; None where they were.
    """
    if refusal is not None and interrupted_by is None:
        return Outcome(_REFUSED, f"doubletime: the job has not begun:\n{refusal}")
    if died_s is not None:  # its ranks fail since they have lost it
        failures = [failure for failure in failures if failure.time_s < died_s - _NOTICED_S]
    failures = _by_cause(failures)
    lost = tuple(loss.host for loss in losses)
    is_loss = losses and (not failures or losses[0].time_s < failures[0].time_s + _SEEN_EARLIER_S)
    if interrupted_by is None and is_loss:
        return Outcome(_LOST, _story(losses), host=lost[0], lost_hosts=lost)
    exit_code, words = verdict(
        implementation, return_code, failures, said, interrupted_by=interrupted_by
    )
    first = failures[0] if failures and interrupted_by is None else None
    return Outcome(
        exit_code,
        words.decode(errors="backslashreplace"),
        None if first is None else first.rank,
        None if first is None else first.host,
        lost,
        interrupted_by,
    )


def _by_cause(failures: Sequence[Failure]) -> Sequence[Failure]:
    """The failures, the first cause first.

    The MPI library of a rank may see that its peer is dead, and exit, before the peer's own watch has
    seen it: of a busy host, the watch may be late.
    """
    if not failures or not failures[0].is_bare:
        return failures
    until_s = failures[0].time_s + _SEEN_EARLIER_S
    causes = [each for each in failures if each.signal in _CAUSES and each.time_s < until_s]
    return [*causes, *(each for each in failures if each not in causes)]


def _story(losses: Sequence[Loss]) -> str:
    lines = []
    for loss in losses:
        ranks = ", ".join(map(str, loss.ranks))
        name = f"rank{'s' if len(loss.ranks) > 1 else ''} {ranks}"
        lines.append(f"doubletime: host {loss.host} {loss.why} ({name} ran there)\n")
    return "".join(lines)


def verdict(
    implementation: Implementation,
    return_code: int,
    failures: Sequence[Failure],
    said: bytes,
    *,
    interrupted_by: int | None,
) -> tuple[int, bytes]:
    """How the job ended: the exit code, and what is to stand last on the terminal.

    Args:
        implementation: whose launcher it was.
        return_code: the launcher's, negative after a signal.
        failures: the ranks' records, the earliest first.
        said: the launcher's own words.
        interrupted_by: the signal that this process was told to end by.
    """
    if interrupted_by is not None:
        name = signal.Signals(interrupted_by).name
        return 128 + interrupted_by, f"doubletime: ended by {name}\n".encode()
    if failures:
        return failures[0].exit_code or 1, failures[0].show().encode(errors="backslashreplace")
    if return_code == 0:
        return 0, said
    number = banners.signal_in(said)
    if return_code < 0:
        exit_code, why = 128 - return_code, f"its mpiexec died by signal {-return_code}"
    elif number is not None:
        exit_code, why = 128 + number, f"a rank died by signal {number}"
    else:
        exit_code, why = return_code, f"exit code {return_code}, and no rank left a record"
    return exit_code, said + f"doubletime: the {implementation} job failed: {why}\n".encode()
