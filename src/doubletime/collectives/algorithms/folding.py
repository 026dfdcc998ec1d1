"""Ranks that are no power of two: surplus ranks hand their part to a neighbour, and get it back."""

from __future__ import annotations

from dataclasses import dataclass

from doubletime.collectives.formula import lg_down


@dataclass(frozen=True)
class Fold:
    """p positions folded to the largest power of two, the core.

    With r = p − core surplus positions, 2i + 1 folds into 2i for i < r. Members of the core are
    numbered 0 … core−1 in the order of their positions, so what neighbours own stays adjacent.
    """

    size: int

    @property
    def levels(self) -> int:
        """⌊lg p⌋: the core is 2 to this power."""
        return lg_down(self.size)

    @property
    def core(self) -> int:
        """How many positions stay."""
        return 1 << self.levels

    @property
    def surplus(self) -> int:
        """How many positions fold into their neighbour."""
        return self.size - self.core

    def number(self, position: int) -> int | None:
        """A position's number in the core, or None if it folds into position − 1."""
        if position >= 2 * self.surplus:
            return position - self.surplus
        return None if position % 2 else position // 2

    def position(self, number: int) -> int:
        """The position of a member of the core."""
        return 2 * number if number < self.surplus else number + self.surplus

    def guest(self, number: int) -> int | None:
        """The position that folds into this member of the core, if one does."""
        return 2 * number + 1 if number < self.surplus else None
