"""All algorithms by name: the one place where a new one is listed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from doubletime.collectives.algorithm import Algorithm
from doubletime.collectives.algorithms.binomial_tree import BINOMIAL_TREE
from doubletime.collectives.algorithms.double_binary_tree import DOUBLE_BINARY_TREE
from doubletime.collectives.algorithms.halving_doubling import HALVING_DOUBLING
from doubletime.collectives.algorithms.linear import LINEAR
from doubletime.collectives.algorithms.pipelined_ring import PIPELINED_RING
from doubletime.collectives.algorithms.recursive_doubling import RECURSIVE_DOUBLING
from doubletime.collectives.algorithms.ring import RING
from doubletime.collectives.algorithms.two_level import two_level
from doubletime.errors import ScheduleError

TWO_LEVEL = "two_level"
AUTO = "auto"  # no algorithm: whichever is best; see `auto`

FLAT: Mapping[str, Algorithm] = MappingProxyType(
    {
        algorithm.name: algorithm
        for algorithm in (
            LINEAR,
            BINOMIAL_TREE,
            RECURSIVE_DOUBLING,
            HALVING_DOUBLING,
            RING,
            PIPELINED_RING,
            DOUBLE_BINARY_TREE,
        )
    }
)
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {**FLAT, TWO_LEVEL: two_level(TWO_LEVEL, PIPELINED_RING, PIPELINED_RING)}
)


def find(name: str) -> Algorithm:
    """An algorithm by its name.

    Args:
        name: one of `ALGORITHMS`, or `two_level:INSIDE+BETWEEN` with two of `FLAT`, such as
            `two_level:linear+ring`.

    Raises:
        ScheduleError: if there is none of that name, or two that do not go together.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    kind, colon, levels = name.partition(":")
    inside, plus, between = levels.partition("+")
    if kind == TWO_LEVEL and colon and plus and inside in FLAT and between in FLAT:
        return two_level(name, FLAT[inside], FLAT[between])
    raise ScheduleError(
        f"no reduction algorithm is called {name!r}",
        f"one of {', '.join(ALGORITHMS)}, or {TWO_LEVEL}:INSIDE+BETWEEN with two of the others",
    )
