"""Cuts that weigh alike, against all ways to cut."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from doubletime.training.pipeline.balance import balance, thin


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 5))
def test_no_other_cuts_have_a_lighter_heaviest_part(weights: list[int], parts: int) -> None:
    def weigh(begin: int, end: int) -> float:
        return sum(weights[begin:end]) or math.inf  # a part without weight may not stand alone

    places = range(len(weights) + 1)
    cuts, heaviest = balance(places, parts, weigh)
    ways = [(0, *inner, len(weights)) for inner in itertools.combinations(places[1:-1], parts - 1)]
    best = min((max(map(weigh, way, way[1:])) for way in ways), default=math.inf)
    assert heaviest == best
    if math.isfinite(best):
        way = (0, *cuts, len(weights))
        assert len(cuts) == parts - 1
        assert max(map(weigh, way, way[1:])) == best


@given(st.sets(st.integers(0, 999), min_size=1), st.integers(2, 40))
def test_fewer_places_keep_both_ends(places: set[int], most: int) -> None:
    ascending = sorted(places)
    kept = thin(ascending, most)
    assert len(kept) <= most
    assert set(kept) <= places
    assert (kept[0], kept[-1]) == (ascending[0], ascending[-1])
