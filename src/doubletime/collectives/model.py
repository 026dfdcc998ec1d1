"""The α-β-γ model of a cluster, and what closed formulas and bounds say under it.

α is the latency of a message, β the time of a byte on a link, γ the time to reduce a byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from doubletime.collectives.formula import Terms
from doubletime.collectives.schedule import Collective
from doubletime.collectives.topology import Topology


@dataclass(frozen=True)
class Link:
    """One level of links.

    Attributes:
        alpha_s: seconds from the start of an empty message to its arrival.
        beta_s_per_byte: seconds for each byte more.
        overhead_s: the part of `alpha_s` during which no other message can start on the same way.
    """

    alpha_s: float
    beta_s_per_byte: float
    overhead_s: float = 0.0


@dataclass(frozen=True)
class Parameters:
    """A cluster, as the model sees it.

    Attributes:
        inside: between two ranks of one host.
        between: between two hosts.
        gamma_s_per_byte: seconds to reduce a byte of one operand into another.
    """

    inside: Link
    between: Link
    gamma_s_per_byte: float


def formula_s(terms: Iterable[Terms], topology: Topology, parameters: Parameters) -> float:
    """The time of a closed formula in seconds; `flat` terms go over the slowest links there are."""
    total_s = 0.0
    for each in terms:
        is_inside = each.level == "inside" or (each.level == "flat" and topology.host_count == 1)
        link = parameters.inside if is_inside else parameters.between
        total_s += each.rounds * link.alpha_s + each.nbytes * link.beta_s_per_byte
        total_s += each.reduced_nbytes * parameters.gamma_s_per_byte
    return total_s


def lower_bound_s(
    collective: Collective, topology: Topology, nbytes: int, parameters: Parameters
) -> float:
    """What no algorithm that sends whole values can beat on links of that rate; seconds.

    Each host's link (on one host: each rank's way) must carry all that has to leave or enter it:
    2(h−1)/h·n for all_reduce (Patarasuk & Yuan 2009), n for reduce and broadcast; for
    reduce_scatter and all_gather the blocks of the host's own ranks one way, all others the other
    way, so (h−1)/h·n for even hosts. Latency, at least ⌈lg p⌉·α, is left out.
    """
    hosts = topology.host_count
    ends = topology.ranks if hosts == 1 else hosts
    link = parameters.inside if hosts == 1 else parameters.between
    if ends == 1:
        return 0.0
    owned = [1] * ends if hosts == 1 else [len(ranks) for ranks in topology.members]
    blocks = max(max(owned), topology.ranks - min(owned)) / topology.ranks
    factor = {
        "all_reduce": 2 * (ends - 1) / ends,
        "reduce_scatter": blocks,
        "all_gather": blocks,
        "reduce": 1.0,
        "broadcast": 1.0,
    }[collective]
    return factor * nbytes * link.beta_s_per_byte
