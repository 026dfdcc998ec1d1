"""Every pair once, nobody twice in a round."""

from itertools import combinations

import pytest

from doubletime.cluster.tournament import rounds


@pytest.mark.parametrize("players", range(17))
def test_every_pair_meets_once_and_nobody_plays_twice_in_a_round(players):
    found = rounds(players)
    assert sorted(pair for games in found for pair in games) == list(
        combinations(range(players), 2)
    )
    for games in found:
        busy = [player for pair in games for player in pair]
        assert len(busy) == len(set(busy))
    assert len(found) == (players - 1 + players % 2 if players else 0)
