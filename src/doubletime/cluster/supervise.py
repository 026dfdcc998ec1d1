"""Start a job, watch it, end all of it when one rank fails, and tell why it ended."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from doubletime.cluster import beginning, implementations, job, launch
from doubletime.cluster.control import Control
from doubletime.cluster.implementations import Implementation
from doubletime.cluster.job import Prepared
from doubletime.cluster.orphans import adopting_orphans
from doubletime.cluster.running import Running
from doubletime.cluster.signals import received
from doubletime.cluster.verdict import Outcome, outcome
from doubletime.cluster.verdict import verdict as verdict
from doubletime.environment import own_cores


def run_local(
    command: Sequence[str],
    ranks: int,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    bind: bool = True,
) -> int:
    """Run a command on so many ranks of this host, with the MPI at hand.

    Args:
        command: what each rank runs.
        ranks: how many, at least 1.
        environment: variables for the ranks, besides this process's.
        bind: whether ranks may be bound to cores.

    Returns:
        The job's exit code: the first failed rank's, or 128 + n after signal n.

    Raises:
        LaunchError: if there is no MPI, or the job cannot be started.
    """
    implementation = implementations.find()
    return supervise(
        plan_local(command, ranks, implementation, environment=environment, bind=bind),
        implementation,
    ).status


def plan_local(
    command: Sequence[str],
    ranks: int,
    implementation: Implementation,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    bind: bool = True,
) -> launch.LaunchPlan:
    """The plan that `run_local` carries out, from what this process and host are.

    Raises:
        LaunchError: if there is no command, or less than one rank.
    """
    return launch.plan(
        command,
        ranks,
        implementation,
        cores=launch.Cores(own=own_cores(), online=os.cpu_count() or 1),
        python=sys.executable,
        user_environment=os.environ,
        environment=environment,
        is_root=os.geteuid() == 0,
        bind=bind,
    )


def carry_out(prepared: Prepared) -> Outcome:
    """Carry out what a request comes to; see `supervise`.

    Raises:
        LaunchError: if it cannot be started.
    """
    return supervise(
        prepared.plan,
        prepared.implementation,
        hosts=prepared.placement.host_of if prepared.is_across else (),
        tag_output=prepared.request.tag_output,
        log_folder=prepared.request.log_folder,
        explain=functools.partial(_why_not_begun, prepared),
    )


def _why_not_begun(prepared: Prepared, hosts: Sequence[str]) -> str | None:
    """Why a launcher did not start ranks on some hosts; None where nothing is known."""
    if prepared.implementation.name == implementations.OWN:
        return None  # it has told
    from doubletime.cluster import health

    return health.why_not_begun(hosts, health.reach(prepared.request.ssh, hosts), job.folder())


def supervise(
    plan: launch.LaunchPlan,
    implementation: Implementation,
    *,
    hosts: Sequence[str] = (),
    tag_output: bool = False,
    log_folder: Path | None = None,
    explain: Callable[[Sequence[str]], str | None] | None = None,
) -> Outcome:
    """Carry out a plan; when this returns, no process, folder or /dev/shm file of it is left here.

    What the ranks write comes out of this process's stdout and stderr as it comes; why the job
    failed stands last. Their stdin is empty. In the main thread, signals that would end this
    process (SIGINT, SIGTERM, SIGHUP) end the job instead.

    On other hosts nothing is left either. A host that is out of reach ends its part of the job by
    itself, when it has not heard of this process for as long (`DOUBLETIME_SILENCE_S` seconds).

    Args:
        plan: what to start.
        implementation: whose launcher it is.
        hosts: the host of each rank, as the job's owner names it; none where all are this one.
        tag_output: whether rank and host stand before each line of output.
        log_folder: where each rank's output goes too, as `rank-N.log`, on its own host.
        explain: tells why some hosts have not started their ranks, where the launcher has failed.

    Raises:
        LaunchError: if the launcher cannot be started, or the limit of silence is nonsense.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    logs = None if log_folder is None else str(log_folder.absolute())
    settings = {
        "tag": tag_output,
        "log_folder": logs,
        "shm_prefixes": implementation.dialect.shm_prefixes,
    }
    control = Control(hosts, settings, beginning.look(plan.program) if hosts else None)
    try:
        with adopting_orphans(), received(with_pause=True) as signals:
            running = Running(plan, implementation, control, signals)
            control.start()
            try:
                running.watch()
            finally:
                running.end()
            failures = control.failures()
            refusal = control.refusal
            if running.return_code and explain and not (failures or refusal or signals.numbers):
                missing = control.missing_hosts
                refusal = explain(missing) if missing else None
            ended = outcome(
                implementation,
                running.return_code,
                failures,
                control.losses(),
                running.said,
                interrupted_by=signals.numbers[0] if signals.numbers else None,
                died_s=running.died_s,
                refusal=refusal,
            )
            signals.numbers.clear()
            running.show(ended.cause.encode(errors="backslashreplace"))
            if running.unwritten is not None:
                ended = replace(ended, has_all_output=False)
    finally:
        control.close()
    return ended
