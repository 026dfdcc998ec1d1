"""Between every two hosts: whether they connect, on which networks, and what their links carry."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from doubletime.cluster import tournament
from doubletime.cluster.doctor.checks.links import is_slow
from doubletime.cluster.doctor.facts import Connection, HostFacts, Rate
from doubletime.cluster.doctor.session import Lost, Session

_ASK_S = 30.0
_ALL_PAIRS = 32  # hosts; of more, each tries some of the others only
_RATE_S = 0.2
_MOST_ROUNDS = 16  # a host that is slow is so in all of them
_MOST_SUSPECTS = 24
_TRIES = 3
_AGAIN = 1.2  # times; a rate that differs by no more is the same
_TOLD_APART = 2.5e9  # bytes per second; above, it is our own sending that is measured


@dataclass(frozen=True)
class Way:
    """Where a host can be connected to.

    Attributes:
        address: its own.
        network: which that is on.
        is_chosen: whether it is the one on the way to the other hosts.
    """

    address: str
    network: str
    is_chosen: bool


def ways(facts: Sequence[HostFacts]) -> dict[str, list[Way]]:
    """By host, the addresses that others may connect to: pure.

    The one that routes lead to, and any other in a network that another host has an interface in:
    libraries that choose by themselves may choose those.
    """
    names = [each.host for each in facts]
    found: dict[str, list[Way]] = {}
    taken: dict[str, int] = {}
    for each in facts:
        for interface in each.interfaces:
            taken[interface.address] = taken.get(interface.address, 0) + 1
    for each in facts:
        chosen = each.address([name for name in names if name != each.host])
        found[each.host] = []
        for interface in each.interfaces:
            is_chosen = interface.address == chosen
            # An address that several hosts have is each one's own affair (docker0).
            is_shared = not interface.is_inward and taken[interface.address] == 1
            if is_chosen or (is_shared and _is_elsewhere(interface.network, each, facts)):
                found[each.host].append(Way(interface.address, interface.network, is_chosen))
        if chosen is not None and not any(way.is_chosen for way in found[each.host]):
            found[each.host].append(Way(chosen, str(ipaddress.ip_network(chosen)), True))  # IPv6
    return found


def peers(names: Sequence[str], source: str) -> list[str]:
    """Whom a host tries: all others, or of very many those at distances of powers of two."""
    if len(names) <= _ALL_PAIRS:
        return [name for name in names if name != source]
    index, distances = names.index(source), [1 << power for power in range(len(names).bit_length())]
    near = {names[(index + distance) % len(names)] for distance in distances}
    return [name for name in names if name in near and name != source]


async def connect(
    sessions: Mapping[str, Session], facts: Sequence[HostFacts], lost: dict[str, str]
) -> tuple[dict[str, int], tuple[Connection, ...]]:
    """Let every host connect to every other one.

    Args:
        sessions: of the hosts.
        facts: theirs.
        lost: gets whoever answers no more, and what it was asked.

    Returns:
        The port at which each listens, and how the connections went.
    """
    names = [each.host for each in facts]
    listening = await _each({name: sessions[name].ask("listen", _ASK_S) for name in names}, lost)
    at = ways(facts)
    wanted = {
        source: [
            Connection(source, target, way.address, way.network, is_chosen=way.is_chosen)
            for target in peers(names, source)
            if target in listening
            for way in at[target]
            if way.is_chosen or any(way.network == own.network for own in at[source])
        ]
        for source in listening
    }
    asked = {
        source: sessions[source].ask(
            "connect",
            _ASK_S,
            targets=[
                {"address": each.address, "port": listening[each.target]} for each in connections
            ],
        )
        for source, connections in wanted.items()
        if connections
    }
    answers = await _each(asked, lost)
    found = [
        replace(each, error=answer.get("error"), round_trip_s=answer.get("round_trip_s"))
        for source, given in answers.items()
        for each, answer in zip(wanted[source], given, strict=True)
    ]
    return listening, tuple(found)


async def rates(
    sessions: Mapping[str, Session],
    listening: Mapping[str, int],
    connections: Iterable[Connection],
    lost: dict[str, str],
) -> tuple[Rate, ...]:
    """What links carry: pairs at once, no host in two, one way after the other; those in doubt alone.

    Returns:
        A rate for each direction of the pairs that were measured.
    """
    open_ = {
        (each.source, each.target): each.address
        for each in connections
        if each.is_chosen and each.error is None
    }
    names = list(listening)

    async def measure(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
        asked = {
            pair: sessions[pair[0]].ask(
                "rate", _ASK_S, address=open_[pair], port=listening[pair[1]], seconds=_RATE_S
            )
            for pair in pairs
            if not {*pair} & {*lost}
        }
        missed: dict[Any, str] = {}
        found: dict[tuple[str, str], float] = await _each(asked, missed)
        return found

    found: dict[tuple[str, str], float] = {}
    for games in tournament.rounds(len(names))[:_MOST_ROUNDS]:
        there = [(names[one], names[other]) for one, other in games]
        # Both ways at once the acknowledgements of one wait in the queue of the other.
        for ways_ in (there, [pair[::-1] for pair in there]):
            found.update(await measure(pair for pair in ways_ if pair in open_))
    good = good_rate(found.values())
    judged = [Rate(*pair, rate, good) for pair, rate in found.items()]
    suspects = sorted((each for each in judged if is_slow(each)), key=lambda r: r.bytes_per_s)
    if not suspects:
        return tuple(judged)
    # Pairs that are measured at once may be in each other's way, which says nothing of their links.
    reference = max(found, key=lambda pair: found[pair])
    alone = [(await measure([reference])).get(reference, 0.0) for _ in range(_TRIES)]
    good = min(good, median(alone))
    result = {(each.source, each.target): replace(each, good_bytes_per_s=good) for each in judged}
    for each in suspects[:_MOST_SUSPECTS]:
        pair = (each.source, each.target)
        for _ in range(_TRIES):
            if not is_slow(result[pair]):
                break
            before = result[pair].bytes_per_s
            again = (await measure([pair])).get(pair, 0.0)
            result[pair] = replace(result[pair], bytes_per_s=max(before, again))
            if again <= _AGAIN * before:
                break  # the same again: it is the link
    return tuple(result.values())


def good_rate(found: Iterable[float]) -> float:
    """What a good link carries: what three quarters of the links do not exceed, in bytes/s; pure."""
    ordered = sorted(found)
    return min(_TOLD_APART, ordered[(3 * len(ordered)) // 4]) if ordered else 0.0


def _is_elsewhere(network: str, own: HostFacts, facts: Sequence[HostFacts]) -> bool:
    if ipaddress.ip_network(network).num_addresses == 1:
        return False
    return any(
        interface.network == network and not interface.is_inward
        for each in facts
        if each is not own
        for interface in each.interfaces
    )


async def _each(asked: Mapping[Any, Any], lost: dict[Any, str]) -> dict[Any, Any]:
    """All answers; whoever gives none goes to `lost` with the reason."""
    given = await asyncio.gather(*asked.values(), return_exceptions=True)
    answers = {}
    for key, answer in zip(asked, given, strict=True):
        if isinstance(answer, Lost):
            lost[key] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[key] = answer
    return answers
