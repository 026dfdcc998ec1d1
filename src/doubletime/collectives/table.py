"""The decision table: which choice was best for each size, as `bench tune` writes and `auto` reads it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from doubletime.collectives.catalogue import find
from doubletime.collectives.choice import DEFAULT_SEGMENT_NBYTES, NATIVE, Choice
from doubletime.collectives.cluster import Cluster
from doubletime.errors import DataError, ScheduleError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KIND = "doubletime decision table"
_REMEDY = "doubletime bench tune writes one"
# Messages below and above differ in nothing that changes which algorithm is best.
_LEAST_NBYTES, _MOST_NBYTES = 1 << 10, 64 << 20
# So much smaller than the smallest measured size, or larger than the largest, is still alike.
_REACH = 4


@dataclass(frozen=True)
class Decision:
    """What was best for messages of one size.

    Attributes:
        nbytes: their size.
        choice: the best.
        time_s: what it took, in seconds: the median.
        native_s: what the backend's own way took.
    """

    nbytes: int
    choice: Choice
    time_s: float
    native_s: float


@dataclass(frozen=True)
class Measured:
    """All sizes of one collective on one topology.

    Attributes:
        cluster: where.
        collective: such as `all_reduce`.
        decisions: by ascending size.
        date: when, in UTC, ISO 8601.
        doubletime: the version that measured.
    """

    cluster: Cluster
    collective: str
    decisions: tuple[Decision, ...]
    date: str
    doubletime: str

    def choice(self, nbytes: int) -> Choice | None:
        """That of the next larger size that was measured; None far from all that were."""
        nbytes = min(max(nbytes, _LEAST_NBYTES), _MOST_NBYTES)
        if not self.decisions or nbytes * _REACH < self.decisions[0].nbytes:
            return None
        for decision in self.decisions:
            if nbytes <= decision.nbytes:
                return decision.choice
        last = self.decisions[-1]
        return last.choice if nbytes <= last.nbytes * _REACH else None

    def record(self) -> dict[str, Any]:
        """Plain data for TOML."""
        return {
            "collective": self.collective,
            **self.cluster.record(),
            "date": self.date,
            "doubletime": self.doubletime,
            "choice": [
                {
                    "nbytes": decision.nbytes,
                    "algorithm": decision.choice.algorithm,
                    "segment_nbytes": decision.choice.segment_nbytes,
                    "overlap": decision.choice.overlap,
                    "time_s": decision.time_s,
                    "native_s": decision.native_s,
                }
                for decision in self.decisions
            ],
        }


@dataclass(frozen=True)
class Table:
    """All that was measured, on whatever topologies."""

    measured: tuple[Measured, ...] = ()

    def find(self, here: Cluster, collective: str) -> Measured | None:
        """What was measured of this collective on a cluster that is shaped like this one."""
        for each in self.measured:
            if (
                each.collective == collective
                and each.cluster.shape == here.shape
                and each.cluster.difference(here) is None
            ):
                return each
        return None

    def difference(self, here: Cluster) -> str | None:
        """Why nothing of it says anything of `here`; None if something does, or there is nothing."""
        reasons = [each.cluster.difference(here) for each in self.measured]
        return None if None in reasons or not reasons else reasons[0]

    def with_new(self, new: Measured) -> Table:
        """With what has just been measured, in the place of what was there before of the same."""

        def is_of_the_same(old: Measured) -> bool:
            return (
                old.collective == new.collective
                and old.cluster.shape == new.cluster.shape
                and old.cluster.difference(new.cluster) is None
            )

        return Table((*(old for old in self.measured if not is_of_the_same(old)), new))

    def text(self) -> str:
        """The table as TOML, which `parse` reads."""
        import tomli_w

        return tomli_w.dumps({"kind": KIND, "table": [each.record() for each in self.measured]})


def parse(text: str, name: str) -> Table:
    """Read a table.

    Args:
        text: what `Table.text` wrote.
        name: of the file, for errors.

    Raises:
        DataError: if it is not a decision table; names what is wrong.
    """
    try:
        whole = tomllib.loads(text)
        if whole.get("kind") != KIND:
            raise ValueError(f"its kind is {whole.get('kind')!r}")
        return Table(tuple(_measured(table) for table in whole.get("table", ())))
    except ScheduleError as error:
        raise DataError(f"the decision table {name}: {error.what}", _REMEDY) from error
    except KeyError as error:
        raise DataError(f"the decision table {name} does not say {error}", _REMEDY) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{name} is not a decision table: {error}", _REMEDY) from error


def _measured(table: Mapping[str, Any]) -> Measured:
    return Measured(
        Cluster.read(table),
        str(table["collective"]),
        tuple(
            sorted(
                _decisions(str(table["collective"]), table["choice"]),
                key=lambda decision: decision.nbytes,
            )
        ),
        str(table.get("date", "")),
        str(table.get("doubletime", "")),
    )


def _decisions(collective: str, rows: Iterable[Mapping[str, Any]]) -> Iterable[Decision]:
    for row in rows:
        choice = Choice(
            str(row["algorithm"]),
            int(row.get("segment_nbytes", DEFAULT_SEGMENT_NBYTES)),
            int(row.get("overlap", 0)),
        )
        name = choice.algorithm
        if name != NATIVE and collective not in find(name).collectives:
            raise ValueError(f"{name} does not define {collective}")
        yield Decision(
            int(row["nbytes"]), choice,
            float(row.get("time_s", 0.0)), float(row.get("native_s", 0.0)),
        )  # fmt: skip
