"""How many ranks on which host: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from doubletime.cluster.hosts import Host
from doubletime.errors import LaunchError

_MOST_ON_A_HOST = 4096  # ranks: no machine has more cores


@dataclass(frozen=True)
class Placement:
    """Ranks on hosts: the first ones on the first host, and so on.

    Attributes:
        counts: name and number of ranks (1 or more) of each host that has any, in order.
    """

    counts: tuple[tuple[str, int], ...]

    @property
    def ranks(self) -> int:
        """How many in all."""
        return sum(count for _, count in self.counts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(name for name, _ in self.counts)

    @property
    def host_of(self) -> tuple[str, ...]:
        """The host of each rank."""
        return tuple(name for name, count in self.counts for _ in range(count))

    def __str__(self) -> str:
        return ",".join(f"{name}:{count}" for name, count in self.counts)


def place(
    hosts: Sequence[Host], ranks: int | None = None, per_host: int | None = None
) -> Placement:
    """Place ranks on hosts, in the order of both.

    By default every slot gets a rank, and a host that does not say its slots gets one. Fewer ranks
    fill the slots of the first hosts; hosts that do not say their slots share evenly what is left.

    Args:
        hosts: at least one.
        ranks: how many in all; None for as many as fit.
        per_host: how many on each host that is used; None where the slots decide.

    Raises:
        LaunchError: if there are fewer slots than ranks, or `per_host` does not divide them.
    """
    if not hosts:
        raise LaunchError("there is no host to start ranks on", "--hosts node1:2,node2:2")
    for name, number in (("-n", ranks), ("--per-host", per_host)):
        if number is not None and number < 1:
            raise LaunchError(f"{name} {number}: no ranks to start", f"{name} 2")
    most = _MOST_ON_A_HOST * (len(hosts) if per_host is None else 1)
    for name, number in (("--per-host", per_host), ("-n", ranks if per_host is None else None)):
        if number is not None and number > most:
            raise LaunchError(
                f"{name} {number}: {_MOST_ON_A_HOST} ranks are the most that a host takes",
                f"{name} {most} or fewer",
            )
    if per_host is not None:
        return _evenly(hosts, ranks, per_host)
    if ranks is None:
        return Placement(tuple((host.name, host.slots or 1) for host in hosts))
    return _by_slot(hosts, ranks)


def _evenly(hosts: Sequence[Host], ranks: int | None, per_host: int) -> Placement:
    if ranks is not None and ranks % per_host:
        lower = ranks - ranks % per_host
        fitting = f"-n {lower} or -n {lower + per_host}" if lower else f"-n {per_host}"
        raise LaunchError(
            f"--per-host {per_host} does not divide -n {ranks}", f"{fitting}, or another --per-host"
        )
    needed = len(hosts) if ranks is None else ranks // per_host
    if needed > len(hosts):
        raise LaunchError(
            f"{ranks} ranks, {per_host} on each host, need {needed} hosts; there are {len(hosts)}",
            f"-n {per_host * len(hosts)}, or more hosts",
        )
    used = hosts[:needed]
    for host in used:
        if host.slots is not None and host.slots < per_host:
            raise LaunchError(
                f"--per-host {per_host}: host {host.name} has {_slots(host.slots)}",
                f"--per-host {host.slots}, or give it more slots: {host.name}:{per_host}",
            )
    return Placement(tuple((host.name, per_host) for host in used))


def _by_slot(hosts: Sequence[Host], ranks: int) -> Placement:
    left = ranks
    counts: dict[str, int] = {}
    for host in hosts:
        counts[host.name] = min(left, host.slots or 0)
        left -= counts[host.name]
    unsaid = [host.name for host in hosts if host.slots is None]
    if left and not unsaid:
        total = ranks - left
        listed = ", ".join(map(str, hosts[:8])) + (", …" if len(hosts) > 8 else "")
        raise LaunchError(
            f"{ranks} ranks are more than the {_slots(total)} of {listed}",
            f"-n {total}, or give the hosts more slots",
        )
    for index, name in enumerate(unsaid):
        counts[name] = left // len(unsaid) + (index < left % len(unsaid))
    return Placement(tuple((name, count) for name, count in counts.items() if count))


def _slots(count: int) -> str:
    return f"{count} slot{'' if count == 1 else 's'}"
