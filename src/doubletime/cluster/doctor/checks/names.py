"""Host names: that every host knows every other, by the same address, which is no loopback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from doubletime.cluster.doctor.facts import HostFacts, Survey, is_loopback
from doubletime.cluster.doctor.finding import Finding, Severity

_HANGS = (
    "ranks tell each other names to connect to: they wait for a host that they never find, "
    "until a timeout"
)


def unknown(survey: Survey) -> Iterator[Finding]:
    """Names that a host does not know; this machine's own troubles with names are ssh's."""
    for facts in survey.hosts:
        for name, addresses in facts.record["names"].items():
            if not addresses and name != facts.host and survey.here.record["names"].get(name):
                yield Finding(
                    "name-unknown",
                    f"the name {name} does not resolve on {facts.host}",
                    facts.host,
                    _HANGS,
                    _line(survey, name, facts.host),
                )


def known_to_ssh_only(survey: Survey) -> Iterator[Finding]:
    """Hosts that ssh reaches by a name of its own settings."""
    for facts in survey.hosts:
        if facts.host != survey.local and not survey.here.record["names"].get(facts.host):
            yield Finding(
                "name-of-ssh-only",
                f"the name {facts.host} is known here to ssh alone (its Host and HostName)",
                facts.host,
                "MPI, gloo and NCCL look names up elsewhere: logins work, connections do not",
                f"name it {facts.record['hostname']} in the hostfile if that resolves, or: "
                f"echo 'ADDRESS {facts.host}' | sudo tee -a /etc/hosts   (on all hosts)",
                Severity.WARNING,
            )


def loopback(survey: Survey) -> Iterator[Finding]:
    """Names that a host takes for its own loopback; of a host alone that is right."""
    if len(survey.names) < 2:
        return
    for facts in survey.hosts:
        for name, addresses in facts.record["names"].items():
            wrong = _first_loopback(addresses)
            if wrong is None or name == "localhost":
                continue
            is_own = name == facts.host
            yield Finding(
                "name-is-loopback",
                f"{facts.host} takes {'its own name' if is_own else 'the name'} {name} for {wrong}",
                facts.host,
                "it tells the others that address, or listens there, and they connect to themselves",
                _line(survey, name, facts.host, _forget(name)),
                Severity.WARNING if is_own else Severity.ERROR,
            )
        own = facts.record["hostname"]
        if own in facts.record["names"]:
            continue
        wrong = _first_loopback(facts.record["own_addresses"])
        if wrong is not None:
            yield Finding(
                "name-is-loopback",
                f"{facts.host} takes its own name {own} for {wrong}",
                facts.host,
                "it tells the others that address, and they connect to themselves",
                f"on {facts.host}, in /etc/hosts: give {own} the address by which others reach it",
                Severity.WARNING,
            )


def here_loopback(survey: Survey) -> Iterator[Finding]:
    """Other hosts' names that this machine, if it is none of them, takes for itself."""
    for name in survey.names:
        if survey.local is None and survey.is_looped(name):
            wrong = _first_loopback(survey.here.record["names"][name])
            yield Finding(
                "name-is-loopback",
                f"this machine takes the name {name} for {wrong}",
                name,
                "ssh to it ends up here",
                f"correct the line of {name} in /etc/hosts on this machine",
            )


def different(survey: Survey) -> Iterator[Finding]:
    """Names that mean different addresses on different hosts."""
    for name in survey.names:
        known = [
            (facts.host, addresses)
            for facts in survey.everywhere
            if (addresses := _outward(facts, name))
        ]
        if not known:
            continue
        first_host, first = known[0]
        for host, addresses in known[1:]:
            if not set(addresses) & set(first):
                yield Finding(
                    "name-differs",
                    f"the name {name} is {addresses[0]} on {host}, and {first[0]} on {first_host}",
                    host,
                    "ranks may talk over different networks, or to different machines",
                    _line(survey, name, host),
                    Severity.WARNING,
                )


def _forget(name: str) -> str:
    """The command that takes a name out of the lines of loopback addresses."""
    return f'sudo sed -i -E "/^127[.]/s/\\b{name}\\b//" /etc/hosts; '


def _first_loopback(addresses: Sequence[str]) -> str | None:
    return next((each for each in addresses if is_loopback(each)), None)


def _outward(facts: HostFacts, name: str) -> list[str]:
    found = facts.record["names"].get(name, ())
    return [each for each in found if not is_loopback(each)]


def _line(survey: Survey, name: str, host: str, before: str = "") -> str:
    """The command that teaches a host the address by which most others know a name."""
    known = [address for facts in survey.everywhere for address in _outward(facts, name)]
    address = max(known, key=known.count) if known else "ADDRESS"
    return survey.at(host, f"{before}echo {address} {name} | sudo tee -a /etc/hosts")
