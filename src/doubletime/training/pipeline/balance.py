"""Where to cut a sequence so that its parts weigh alike. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Weigh = Callable[[int, int], float]  # of the part from one place to before another


def balance(places: Sequence[int], parts: int, weigh: Weigh) -> tuple[list[int], float]:
    """Choose cuts so that the heaviest part is as light as can be.

    Args:
        places: where cuts may lie, ascending; the first is the begin, the last the end.
        parts: how many there shall be.
        weigh: the weight of the part between two places; infinite where it may not stand alone.

    Returns:
        The parts - 1 cuts, and the weight of the heaviest part: infinite, without cuts, where there
        is no way to cut so.
    """
    count = len(places)
    heaviest = [math.inf] * count  # of the best way to cut what lies before each place
    heaviest[0] = 0.0
    came_from: list[list[int]] = []
    for _ in range(parts):
        now, source = [math.inf] * count, [0] * count
        for end in range(1, count):
            for begin in range(end):
                if heaviest[begin] < now[end]:
                    weight = max(heaviest[begin], weigh(places[begin], places[end]))
                    if weight < now[end]:
                        now[end], source[end] = weight, begin
        heaviest = now
        came_from.append(source)
    if math.isinf(heaviest[-1]):
        return [], math.inf
    cuts, at = [], count - 1
    for source in reversed(came_from[1:]):
        at = source[at]
        cuts.append(places[at])
    return cuts[::-1], heaviest[-1]


def thin(places: Sequence[int], most: int) -> list[int]:
    """At most so many of the places, evenly chosen, the first and the last among them."""
    if len(places) <= most:
        return list(places)
    step = (len(places) - 1) / (most - 1)
    return sorted({places[round(number * step)] for number in range(most)})
