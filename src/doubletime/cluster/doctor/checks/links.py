"""What lies between hosts: routes, firewalls, interfaces that lead nowhere, slow links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from doubletime.cluster import network
from doubletime.cluster.doctor.facts import Connection, HostFacts, Interface, Rate, Survey
from doubletime.cluster.doctor.finding import Finding, Severity
from doubletime.units import format_rate, plural

SLOW = 2.0  # times; a link slower than good ones by so much is named
_WAITS = "ranks connect to each other at ports that the system chooses: they wait until a timeout"


def routes(survey: Survey) -> Iterator[Finding]:
    """Hosts from which no route leads to another."""
    for facts in survey.hosts:
        others = [each.host for each in survey.hosts if each is not facts]
        known = [name for name in others if facts.record["names"].get(name)]
        if known and facts.address(others) is None:
            yield Finding(
                "no-common-interface",
                f"no interface of {facts.host} leads to the other hosts; it has "
                f"{_interfaces(facts)}",
                facts.host,
                "its ranks reach no other: the job hangs at its start",
                f"on {facts.host}: ip -br addr; ip route get "
                f"{facts.record['names'][known[0]][0]}   (an address in the others' network)",
            )
            continue
        for name in known:
            if facts.record["routes"].get(name) is None and not _is_loopback(facts, name):
                yield Finding(
                    "no-route",
                    f"no route leads from {facts.host} to {name} "
                    f"({facts.record['names'][name][0]})",
                    _pair(facts.host, name),
                    "their ranks cannot talk to each other: the job hangs at its start",
                    f"on {facts.host}: ip route get {facts.record['names'][name][0]}",
                )


def ports(survey: Survey) -> Iterator[Finding]:
    """Connections on the way that jobs take which do not come about."""
    tried = [each for each in survey.connections if each.is_chosen]
    failed = [each for each in tried if each.error is not None]
    told: set[tuple[str, str]] = set()
    for host in survey.names:
        inward = [each for each in tried if each.target == host]
        outward = [each for each in tried if each.source == host]
        if inward and all(each in failed for each in inward):
            # From one other host only: which of the two is to blame cannot be told but by ssh,
            # which came in by the same address.
            yield _closed(survey, host, inward)
            told |= {(each.source, each.target) for each in inward}
        elif len(outward) > 1 and all(each in failed for each in outward):
            yield Finding(
                "firewall-out",
                f"{host} reaches no other host: {outward[0].error} at {outward[0].address}",
                host,
                _WAITS,
                f"on {host}: sudo nft list ruleset, sudo iptables -S OUTPUT: a rule drops what "
                "leaves it",
            )
            told |= {(each.source, each.target) for each in outward}
    for each in failed:
        if (each.source, each.target) not in told:
            yield Finding(
                "port-closed",
                f"{each.source} cannot connect to {each.target} at {each.address}: {each.error}",
                _pair(each.source, each.target),
                _WAITS,
                _open(each.target, each.network),
            )


def interfaces(survey: Survey) -> Iterator[Finding]:
    """Networks that several hosts have an interface in, and that lead nowhere."""
    failed: dict[str, list[Connection]] = defaultdict(list)
    for each in survey.connections:
        if not each.is_chosen and each.error is not None:
            failed[each.network].append(each)
    good = {facts.host: facts.address(survey.names) for facts in survey.hosts}
    for found, connections in failed.items():
        hosts = [
            name for name in survey.names if any(name in (c.source, c.target) for c in connections)
        ]
        first = next(facts for facts in survey.hosts if facts.host == hosts[0])
        wrong = next((each for each in first.interfaces if each.network == found), None)
        right = first.interface(good[first.host])
        yield Finding(
            "interface-leads-nowhere",
            f"{', '.join(hosts)} have an interface in {found}"
            f"{f' ({wrong.name})' if wrong else ''} that leads nowhere: "
            f"{connections[0].source} cannot reach {connections[0].target} at "
            f"{connections[0].address} ({connections[0].error})",
            ", ".join(hosts),
            "MPI, gloo and NCCL may choose it by themselves, and hang; "
            "doubletime run tells them the right one",
            f"take it down (sudo ip link set {wrong.name if wrong else 'IFACE'} down), or "
            f"export {_settings(right)}",
            Severity.WARNING,
        )


def packet_sizes(survey: Survey) -> Iterator[Finding]:
    """Hosts of one network that differ in the longest packet they send."""
    for facts, found in _chosen(survey):
        usual = [each.mtu for _, each in _chosen(survey) if each.network == found.network]
        common = max(usual, key=usual.count)
        if found.mtu and found.mtu != common:
            yield Finding(
                "mtu-differs",
                f"{found.name} on {facts.host} has an MTU of {found.mtu}, the others' is {common}",
                facts.host,
                "connections come about, and hang with the first large message",
                f"on {facts.host}: sudo ip link set {found.name} mtu {common}",
                Severity.WARNING,
            )


def rates(survey: Survey) -> Iterator[Finding]:
    """Links that are slower than good ones by a factor of 2 or more."""
    slow = [each for each in survey.rates if is_slow(each)]
    told: set[tuple[str, str]] = set()
    for host in survey.names:
        out = [each for each in survey.rates if each.source == host]
        into = [each for each in survey.rates if each.target == host]
        directions = [
            (word, rates_)
            for word, rates_ in (("sends", out), ("receives", into))
            if len(rates_) > 1 and all(each in slow for each in rates_)
        ]
        mine = [each for _, rates_ in directions for each in rates_]
        if not mine or {(each.source, each.target) for each in mine} <= told:
            continue
        best = max(mine, key=lambda each: each.bytes_per_s)
        yield _slow(
            survey,
            best,
            host,
            f"{host} {' and '.join(word for word, _ in directions)} "
            f"{format_rate(best.bytes_per_s)} at most (that is with "
            f"{best.target if best.source == host else best.source}), other hosts "
            f"{format_rate(best.good_bytes_per_s)}",
        )
        told |= {(each.source, each.target) for each in mine}
    for each in slow:
        if (each.source, each.target) not in told:
            told |= {(each.source, each.target), (each.target, each.source)}
            yield _slow(
                survey,
                each,
                _pair(each.source, each.target),
                f"the link from {each.source} to {each.target} carries "
                f"{format_rate(each.bytes_per_s)}, others {format_rate(each.good_bytes_per_s)}",
            )


def is_slow(rate: Rate) -> bool:
    """Whether a link is clearly slower than good ones."""
    return rate.bytes_per_s * SLOW <= rate.good_bytes_per_s


def _slow(survey: Survey, rate: Rate, host: str, what: str) -> Finding:
    times = rate.good_bytes_per_s / max(rate.bytes_per_s, 1.0)
    suspect = host if host in survey.names else rate.source
    name = next((i.name for facts, i in _chosen(survey) if facts.host == suspect), "eth0")
    return Finding(
        "link-slow",
        what,
        host,
        f"a collective goes at the pace of its slowest link: about {times:.1f} times as long "
        "for all ranks",
        survey.at(suspect, f"sudo ethtool {name}") + "   (Speed, Duplex); another cable or port of "
        f"the switch; or leave {suspect} out",
        Severity.WARNING,
    )


def _closed(survey: Survey, host: str, inward: Sequence[Connection]) -> Finding:
    first = inward[0]
    facts = next(facts for facts in survey.hosts if facts.host == host)
    if first.address not in survey.here.record["names"].get(host, ()) and host != survey.local:
        found = facts.interface(first.address)
        return Finding(
            "interface-leads-nowhere",
            f"{host} would use {found.name if found else 'an interface'} ({first.address}) for the "
            f"others, and nobody reaches it there: {first.source} says {first.error}",
            host,
            _WAITS,
            f"on {host}: ip route; the route to the others belongs on the interface of "
            f"{(survey.here.record['names'].get(host) or ['?'])[0]}",
        )
    return Finding(
        "firewall",
        f"{host} lets ssh in, but drops what comes to other ports: "
        f"{', '.join(each.source for each in inward)} cannot connect ({first.error})",
        host,
        _WAITS,
        _open(host, first.network),
    )


def _open(host: str, network_: str) -> str:
    return (
        f"on {host}: sudo ufw allow from {network_}   (or: sudo firewall-cmd --permanent "
        f"--zone=trusted --add-source={network_} && sudo firewall-cmd --reload; or: sudo nft "
        f"insert rule inet filter input ip saddr {network_} accept)"
    )


def _settings(interface: Interface | None) -> str:
    if interface is None:
        return "GLOO_SOCKET_IFNAME=IFACE NCCL_SOCKET_IFNAME==IFACE"
    found = network.Interface(interface.name, interface.address, interface.network)
    return " ".join(
        f"{name}={value}" for name, value in network.variables(found, has_rdma=False).items()
    )


def _chosen(survey: Survey) -> list[tuple[HostFacts, Interface]]:
    found = []
    for facts in survey.hosts:
        others = [name for name in survey.names if name != facts.host]
        interface = facts.interface(facts.address(others))
        if interface is not None:
            found.append((facts, interface))
    return found


def _interfaces(facts: HostFacts) -> str:
    outward = [each for each in facts.interfaces if not each.is_inward]
    if not outward:
        return "none but loopback"
    listed = ", ".join(f"{each.name} {each.address}" for each in outward)
    return f"{plural(len(outward), 'interface')}: {listed}"


def _is_loopback(facts: HostFacts, name: str) -> bool:
    return any(each.startswith("127.") or each == "::1" for each in facts.record["names"][name])


def _pair(one: str, other: str) -> str:
    return f"{one} - {other}"
