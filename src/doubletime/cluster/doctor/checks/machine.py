"""What each host has to give: its clock, memory, cores."""

from __future__ import annotations

from collections.abc import Iterator

from doubletime.cluster.doctor.facts import HostFacts, Survey
from doubletime.cluster.doctor.finding import Finding, Severity
from doubletime.units import format_nbytes, format_seconds

_APART_S = 1.0
_SHM_ERROR_NBYTES, _SHM_WARNING_NBYTES = 256 << 20, 1 << 30
_MEMLOCK_NBYTES = 1 << 30
_BUSY_CORES = 0.5


def clocks(survey: Survey) -> Iterator[Finding]:
    """Hosts whose clock is more than 1 s off the clock that most agree on."""
    machines = survey.everywhere
    if len(machines) < 2:
        return
    # This machine's where as many agree with it as with any other.
    good = max((survey.here, *machines), key=lambda facts: len(_agreeing(facts, machines)))
    for facts in machines:
        apart_s = facts.clock_s - good.clock_s
        error_s = facts.clock_error_s + good.clock_error_s
        if abs(apart_s) - error_s > _APART_S:
            yield Finding(
                "clock-apart",
                f"the clock of {facts.host} is {format_seconds(abs(apart_s))} "
                f"{'ahead of' if apart_s > 0 else 'behind'} the others'",
                facts.host,
                "files of a shared folder seem to come from the future, logs of ranks cannot be "
                "put in order, certificates fail",
                survey.at(facts.host, "sudo timedatectl set-ntp true")
                + "   (or: sudo chronyc makestep)",
                Severity.WARNING,
            )


def shared_memory(survey: Survey) -> Iterator[Finding]:
    """Hosts whose /dev/shm is too small for ranks and their data loaders."""
    for facts in survey.everywhere:
        found = facts.record["shm"]
        total = found["total_nbytes"] if found else 0
        free = found["free_nbytes"] if found else 0
        if total >= _SHM_WARNING_NBYTES and free >= _SHM_ERROR_NBYTES:
            continue
        is_error = free < _SHM_ERROR_NBYTES
        yield Finding(
            "shm-small",
            f"/dev/shm on {facts.host} has {format_nbytes(total)}, "
            f"{format_nbytes(free)} of them free",
            facts.host,
            "ranks of one host exchange tensors through it, and DataLoader workers their batches: "
            "they end with a bus error when it is full",
            f"on {facts.host}: sudo mount -o remount,size=8G /dev/shm   "
            "(docker run --shm-size=8g; what is old there: ls -l /dev/shm)",
            Severity.ERROR if is_error else Severity.WARNING,
        )


def locked_memory(survey: Survey) -> Iterator[Finding]:
    """Hosts with RDMA whose programs may lock little memory."""
    for facts in survey.everywhere:
        limit = facts.record["memlock_nbytes"]
        if facts.record["rdma"] and limit is not None and limit < _MEMLOCK_NBYTES:
            yield Finding(
                "memlock-low",
                f"programs on {facts.host} may lock {format_nbytes(limit)} of memory "
                "(ulimit -l), and it has RDMA",
                facts.host,
                "RDMA needs locked buffers: MPI and NCCL fail at the start, or fall back to TCP",
                f"on {facts.host}: printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' "
                "| sudo tee /etc/security/limits.d/90-memlock.conf, then log in anew "
                "(Slurm: LimitMEMLOCK=infinity in slurmd's unit)",
            )


def cores(survey: Survey) -> Iterator[Finding]:
    """Hosts that are to take more ranks than they have cores."""
    for facts in survey.hosts:
        if facts.slots is not None and facts.slots > facts.cores:
            found = facts.record["cores"]
            why = ""
            if facts.cores < found["all"]:
                why = f", of {found['all']} that the machine has (affinity or control group)"
            yield Finding(
                "cores-fewer-than-slots",
                f"{facts.host} has {facts.cores} cores for jobs{why}, and {facts.slots} slots",
                facts.host,
                "ranks that wait for a message keep their core busy, which another rank needs "
                "for computing: everything is slower by far more than the ratio",
                f"write {facts.host}:{facts.cores} instead of {facts.host}:{facts.slots}",
                Severity.WARNING,
            )


def busy(survey: Survey) -> Iterator[Finding]:
    """Hosts whose cores something else uses already."""
    for facts in survey.everywhere:
        used = sum(each.cores for each in facts.busy)
        if used < _BUSY_CORES:
            continue
        worst = facts.busy[0]
        more = f" and {len(facts.busy) - 1} more" if len(facts.busy) > 1 else ""
        yield Finding(
            "cores-busy",
            f"on {facts.host} {used:.1f} of {facts.cores} cores are busy already: process "
            f"{worst.pid} of {worst.user} ({worst.command}){more}",
            facts.host,
            "training in step goes at the pace of the slowest rank",
            survey.at(facts.host, f"kill {worst.pid}")
            + f"   (if it is yours), or wait for it, or leave {facts.host} out",
            Severity.WARNING,
        )


def _agreeing(facts: HostFacts, machines: tuple[HostFacts, ...]) -> list[HostFacts]:
    return [each for each in machines if abs(each.clock_s - facts.clock_s) <= _APART_S]
