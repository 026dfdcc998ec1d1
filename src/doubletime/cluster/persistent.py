"""A job that is started again when a rank or a whole host dies: on the hosts that are healthy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from doubletime.cluster import health, job, restart, supervise
from doubletime.cluster.hosts import Host
from doubletime.cluster.job import Prepared, Request
from doubletime.cluster.restart import Ending, Health, Policy, Story
from doubletime.errors import LaunchError


def run(
    request: Request,
    prepared: Prepared,
    policy: Policy,
    show: Callable[[str], None],
    log: Path | None,
) -> int:
    """Carry out a plan, and again on the healthy hosts where it fails.

    A host gets as many ranks as at the first start, so that fewer hosts are fewer ranks.

    Args:
        request: what was asked for.
        prepared: what that comes to.
        policy: how often, and on how few hosts.
        show: shows a person what happens between starts.
        log: a file that keeps it, made when there is something to keep; None keeps none.

    Returns:
        The exit code of the last start.

    Raises:
        LaunchError: if there are fewer hosts than must be healthy, or the job cannot be started.
    """
    counts = dict(prepared.placement.counts)
    statuses: list[int] = []
    names = prepared.placement.hosts
    if policy.min_hosts > len(names):
        raise LaunchError(
            f"--min-hosts {policy.min_hosts}: the job has {len(names)} host{'s' * (len(names) > 1)}",
            f"--min-hosts {len(names)}",
        )

    def start(hosts: Sequence[str], variables: Mapping[str, str]) -> Ending:
        ended = supervise.carry_out(planned(hosts, variables))
        statuses.append(ended.status)
        return Ending(ended.exit_code, ended.cause, ended.lost_hosts, ended.interrupted_by)

    def planned(hosts: Sequence[str], variables: Mapping[str, str]) -> Prepared:
        if not variables:
            return prepared
        environment = {**request.environment, **variables}
        if not prepared.is_across:
            return job.prepare(replace(request, environment=environment))
        rest = tuple(Host(host, counts[host]) for host in hosts)
        again = replace(request, hosts=rest, ranks=None, per_host=None, environment=environment)
        return job.prepare(again)

    def examine(hosts: Sequence[str]) -> Sequence[Health]:
        if not prepared.is_across:
            return [Health(host) for host in hosts]
        return health.examine(hosts, health.reach(request.ssh, hosts), job.folder())

    return restart.run(names, policy, start, examine, Story(show, log)) or statuses[-1]
