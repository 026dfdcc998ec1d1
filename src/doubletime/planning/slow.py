"""Which links are clearly slower than the others, and whether one host is to blame for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from doubletime.collectives.profile import Estimate, Pair

_CLEARLY = 1.5
# Latency scatters with what else hosts do: only much more of it tells of the link.
_CLEARLY_LATER, _LATER_S = 3.0, 1e-3


@dataclass(frozen=True)
class Slow:
    """What to tell of slow links.

    Attributes:
        hosts: two whose link is slow, or one all of whose links are.
        slowdown: how many times as long as over a good link, at least.
    """

    hosts: tuple[str, ...]
    slowdown: float


def judged(pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs, each with its slowdown.

    A good link is the one that three quarters of the links are not better than: with one slow host
    among three or four, up to two thirds of them are slow.
    """
    if len(pairs) < 2:
        return list(pairs)
    beta = _good([pair.beta_s_per_byte for pair in pairs])
    alpha = _good([pair.alpha_s for pair in pairs])
    return [replace(pair, slowdown=_slowdown(pair, alpha, beta)) for pair in pairs]


def blamed(pairs: Sequence[Pair]) -> list[Slow]:
    """Slow links, those of a host that has no other as one; the slowest first."""
    slow = [pair for pair in pairs if pair.is_slow]
    hosts = sorted({host for pair in pairs for host in pair.hosts})
    of_host = {host: [pair for pair in pairs if host in pair.hosts] for host in hosts}
    bad = [
        host
        for host in hosts
        if len(of_host[host]) > 1 and all(pair.is_slow for pair in of_host[host])
    ]
    found = [Slow((host,), min(pair.slowdown for pair in of_host[host])) for host in bad]
    found += [Slow(pair.hosts, pair.slowdown) for pair in slow if not set(pair.hosts) & set(bad)]
    return sorted(found, key=lambda each: -each.slowdown)


def _slowdown(pair: Pair, alpha_s: float, beta_s_per_byte: float) -> float:
    """By bandwidth where that is clear, else by latency where that is; else 1."""
    by_byte = _times(pair.beta_s_per_byte, beta_s_per_byte, _CLEARLY)
    if by_byte > 1 or pair.alpha_s.low < alpha_s + _LATER_S:
        return by_byte
    return _times(pair.alpha_s, alpha_s, _CLEARLY_LATER)


def _times(found: Estimate, good: float, clearly: float) -> float:
    """How many times as much as is good; 1 unless that is clear for the whole interval."""
    return found.value / good if good > 0 and found.low > clearly * good else 1.0


def _good(estimates: Sequence[Estimate]) -> float:
    values = sorted(each.value for each in estimates)
    return values[(len(values) - 1) // 4]
