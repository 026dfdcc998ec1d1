"""What the doctor's record says of the hosts on which a job is about to start."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from doubletime.cluster.doctor import record
from doubletime.cluster.doctor.record import ClusterHosts, KnownHost, Problem
from doubletime.errors import DataError

_SHOWN = 3  # problems, and names of hosts in a line
_LOOK_AGAIN = "doubletime doctor --hosts {} looks again"


def recall(file: Path, counts: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Lines worth telling before a job starts; none where nothing is known, or all was well.

    Args:
        file: where the record is, if there is one.
        counts: name and number of ranks of each host of the job.
    """
    if not file.exists():
        return ()
    try:
        known = record.read(file)
    except DataError as error:
        return (f"{error.what}; nothing is told of hosts",)
    return remarks(known, counts, addresses)


def remarks(
    known: ClusterHosts,
    counts: Sequence[tuple[str, int]],
    addresses: Callable[[str], frozenset[str]],
) -> tuple[str, ...]:
    """The same, from a record.

    Args:
        known: what the doctor found.
        counts: name and number of ranks of each host of the job.
        addresses: what a name leads to now. A host that had other ones is another host of that name.
    """
    ranks = dict(counts)
    hosts = {
        host.name: host
        for host in known.hosts
        if host.name in ranks and not _is_another(host, addresses(host.name))
    }
    problems = [each for each in known.problems if each.hosts and hosts.keys() >= set(each.hosts)]
    lines = [_told(problem, hosts) for problem in problems[:_SHOWN]]
    if problems:
        more = len(problems) - len(lines)
        again = _LOOK_AGAIN.format(",".join(name for name in ranks if name in hosts))
        lines.append(f"and {more} more; {again}" if more else again)
    crowded: dict[tuple[int, int], list[str]] = {}
    for name, host in hosts.items():
        if 0 < host.cores < ranks[name]:
            crowded.setdefault((ranks[name], host.cores), []).append(name)
    for (count, cores), names in crowded.items():
        shared = f"{cores} cores" if cores > 1 else "1 core"
        lines.append(f"{count} ranks share {shared} on {_listed(names)}")
    return tuple(lines)


def addresses(name: str) -> frozenset[str]:
    """What a name leads to, without this host's own loopback; nothing where it is unknown here."""
    try:
        found = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return frozenset()
    each = {str(target[0]).partition("%")[0] for *_, target in found}
    return frozenset(text for text in each if not ipaddress.ip_address(text).is_loopback)


def _is_another(host: KnownHost, now: frozenset[str]) -> bool:
    return bool(now and host.addresses) and now.isdisjoint(host.addresses)


def _told(problem: Problem, hosts: dict[str, KnownHost]) -> str:
    date = max(hosts[name].date for name in problem.hosts)
    when = date[:16].replace("T", " ")
    return f"the doctor found on {' - '.join(problem.hosts)} ({when} UTC): {problem.what}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
