"""Facts gathered and judged: what is wrong with this cluster, the worst first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from doubletime.cluster.doctor.checks import (
    accelerators,
    files,
    links,
    login,
    machine,
    names,
    software,
)
from doubletime.cluster.doctor.facts import Survey
from doubletime.cluster.doctor.finding import Finding, Severity, ordered
from doubletime.cluster.doctor.question import Observe, Question
from doubletime.cluster.doctor.tour import Tour

CHECKS: tuple[Callable[[Survey], Iterable[Finding]], ...] = (
    login.refused,
    login.lost,
    login.noise,
    login.account,
    names.unknown,
    names.known_to_ssh_only,
    names.loopback,
    names.here_loopback,
    names.different,
    software.python,
    software.packages,
    software.mpi,
    software.library,
    files.folder,
    files.script,
    files.disk,
    files.nfs,
    links.routes,
    links.ports,
    links.interfaces,
    links.packet_sizes,
    links.rates,
    machine.cores,
    machine.busy,
    machine.shared_memory,
    machine.locked_memory,
    machine.clocks,
    accelerators.gpus,
    accelerators.rdma,
)


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        survey: the facts.
        findings: the worst first.
        time_s: what it took, in seconds, without `bandwidth_s`.
        bandwidth_s: what measuring links took.
    """

    survey: Survey
    findings: tuple[Finding, ...]
    time_s: float
    bandwidth_s: float

    @property
    def is_fit(self) -> bool:
        """Whether nothing stands in the way of a job."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def diagnose(question: Question, observe: Observe = lambda _: None) -> Diagnosis:
    """Look at all hosts at once, and at all pairs of them.

    A host's failure is a finding, nothing raised.

    Args:
        question: what to look at.
        observe: told how far it is, in the caller's thread.

    Raises:
        LaunchError: if there is no such ssh command here.
    """
    begin_s = time.monotonic()
    tour = Tour(question, observe)
    survey = asyncio.run(tour.survey())
    time_s = time.monotonic() - begin_s - tour.bandwidth_s
    return Diagnosis(survey, judge(survey), time_s, tour.bandwidth_s)


def judge(survey: Survey) -> tuple[Finding, ...]:
    """All that the checks find; pure."""
    return ordered(finding for check in CHECKS for finding in check(survey))
