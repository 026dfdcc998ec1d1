"""What tells one cluster from another: hosts, ranks on each, MPI, backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from doubletime.collectives.topology import Topology


@dataclass(frozen=True)
class Cluster:
    """Where ranks ran, and what carried their messages.

    Attributes:
        hosts: names, in the order of their first ranks.
        ranks_per_host: of each.
        mpi: the library, such as "MPICH 5.0.2"; empty for another backend.
        backend: `mpi`, `gloo` or `nccl`.
    """

    hosts: tuple[str, ...]
    ranks_per_host: tuple[int, ...]
    mpi: str
    backend: str

    @classmethod
    def of(cls, hosts: Sequence[str], mpi: str, backend: str) -> Cluster:
        """From each rank's host."""
        members = Topology.of(hosts).members
        return cls(
            tuple(dict.fromkeys(hosts)), tuple(map(len, members)), mpi, backend
        )  # fmt: skip

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Cluster:
        """From what `record` gave.

        Raises:
            KeyError: if something is missing.
            ValueError: if hosts and ranks do not go together.
        """
        hosts = tuple(str(host) for host in table["hosts"])
        ranks = tuple(int(count) for count in table["ranks_per_host"])
        if len(hosts) != len(ranks) or not hosts or min(ranks) < 1:
            raise ValueError(f"{len(hosts)} hosts, and ranks_per_host = {list(ranks)}")
        return cls(hosts, ranks, str(table["mpi"]), str(table["backend"]))

    def record(self) -> dict[str, Any]:
        """Plain data for TOML."""
        return {
            "hosts": list(self.hosts),
            "ranks_per_host": list(self.ranks_per_host),
            "mpi": self.mpi,
            "backend": self.backend,
        }

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks per host, whichever host has how many."""
        return tuple(sorted(self.ranks_per_host, reverse=True))

    def difference(self, here: Cluster) -> str | None:
        """Why what was measured on this cluster says nothing of `here`, or None if it does.

        Some of its hosts will do, and another version of its MPI, and other numbers of ranks.
        """
        foreign = sorted(set(here.hosts) - set(self.hosts))
        if foreign:
            return (
                f"it was measured on {_listed(self.hosts)}, and this job runs on {_listed(foreign)}"
            )
        if self.backend != here.backend:
            return (
                f"it was measured with {self.backend}, and this group's backend is {here.backend}"
            )
        if _library(self.mpi) != _library(here.mpi):
            return f"it was measured with {self.mpi}, and this job runs with {here.mpi}"
        return None

    def show(self) -> str:
        """A few words: hosts, ranks, MPI."""
        ranks, hosts = sum(self.ranks_per_host), len(self.hosts)
        where = f"host {self.hosts[0]}" if hosts == 1 else f"{hosts} hosts"
        return f"{ranks} ranks on {where}, {self.mpi or self.backend}"


def _library(mpi: str) -> str:
    """The name without the version, which ends in a number."""
    return " ".join(word for word in mpi.split() if not word[:1].isdigit())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
