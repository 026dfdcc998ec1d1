"""The terms of a closed formula: what a paper says an algorithm costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["flat", "inside", "between"]


@dataclass(frozen=True)
class Terms:
    """α, β and γ of a closed formula, along the critical path.

    Attributes:
        rounds: messages one after the other: the factor of α.
        nbytes: bytes sent one after the other: the factor of β.
        reduced_nbytes: bytes reduced one after the other: the factor of γ.
        level: over which links: inside hosts, between them, or (`flat`) whichever joins the ranks.
        is_exact: whether the schedule takes just that where messages divide evenly, or at most that.
    """

    rounds: float
    nbytes: float
    reduced_nbytes: float = 0.0
    level: Level = "flat"
    is_exact: bool = True

    def __add__(self, other: Terms) -> Terms:
        """One after the other, on the same level."""
        return Terms(
            self.rounds + other.rounds,
            self.nbytes + other.nbytes,
            self.reduced_nbytes + other.reduced_nbytes,
            self.level,
            self.is_exact and other.is_exact,
        )


def lg_down(ranks: int) -> int:
    """⌊lg p⌋."""
    return ranks.bit_length() - 1


def lg_up(ranks: int) -> int:
    """⌈lg p⌉."""
    return (ranks - 1).bit_length()
