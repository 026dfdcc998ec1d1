"""Which host each rank is on, and the order of ranks in which neighbours share a host."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from doubletime.errors import ScheduleError


@dataclass(frozen=True)
class Topology:
    """The ranks' places.

    Attributes:
        hosts: the host of rank 0, 1, …, as numbers from 0 in the order in which hosts first appear.
    """

    hosts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ScheduleError("a topology without ranks", "give at least one rank's host")
        seen = list(dict.fromkeys(self.hosts))
        if seen != list(range(len(seen))):
            raise ScheduleError(
                f"hosts numbered {seen[:8]}, not 0, 1, … in order of appearance",
                "build it with Topology.of(names)",
            )

    @classmethod
    def of(cls, names: Sequence[Hashable]) -> Topology:
        """From anything that tells hosts apart, one per rank: names, addresses."""
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return cls(tuple(numbers[name] for name in names))

    @classmethod
    def flat(cls, ranks: int) -> Topology:
        """Every rank on a host of its own."""
        return cls(tuple(range(ranks)))

    @classmethod
    def one_host(cls, ranks: int) -> Topology:
        """All ranks on one host."""
        return cls((0,) * ranks)

    @classmethod
    def even(cls, hosts: int, ranks_per_host: int) -> Topology:
        """The same number of ranks on each host, one host after the other."""
        return cls(tuple(host for host in range(hosts) for _ in range(ranks_per_host)))

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)

    @property
    def host_count(self) -> int:
        """How many hosts there are."""
        return len(self.members)

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host, ascending."""
        found: list[list[int]] = [[] for _ in range(max(self.hosts) + 1)]
        for rank, host in enumerate(self.hosts):
            found[host].append(rank)
        return tuple(tuple(ranks) for ranks in found)

    @property
    def leaders(self) -> tuple[int, ...]:
        """The lowest rank of each host."""
        return tuple(ranks[0] for ranks in self.members)

    @property
    def is_even(self) -> bool:
        """Whether every host has the same number of ranks."""
        return len({len(ranks) for ranks in self.members}) == 1

    def order(self, root: int | None = None) -> tuple[int, ...]:
        """All ranks, host after host; with a root, that one first and its host before the others.

        A ring in this order leaves each host once, whatever the order of the ranks.
        """
        if root is None:
            return tuple(rank for ranks in self.members for rank in ranks)
        home = self.hosts[root]
        near = [rank for rank in self.members[home] if rank != root]
        rest = [rank for ranks in self.members for rank in ranks if self.hosts[rank] != home]
        return (root, *near, *rest)
