"""The geometry of drawings: all on the page, nothing on top of each other."""

from itertools import combinations

import pytest

from doubletime.collectives.catalogue import ALGORITHMS, find
from doubletime.collectives.drawing import draw
from doubletime.collectives.topology import Topology

TITLE = "a title"


def schedule(name, ranks, segments=1):
    algorithm = ALGORITHMS[name]
    hosts = 2 if name == "two_level" and ranks % 2 == 0 else ranks
    topology = Topology.even(hosts, ranks // hosts)
    return algorithm.schedule(algorithm.problem("all_reduce", topology, segments=segments))


def messages(schedule):
    return sum(len(each.sends) for rounds in schedule.rounds for each in rounds)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_everything_is_on_the_page_and_every_message_is_an_arrow(name, ranks):
    drawn = schedule(name, ranks)
    picture = draw(drawn, TITLE, shows_all=True)
    assert len(picture.arrows) == messages(drawn)
    for box in picture.boxes:
        assert 0 <= box.x <= box.x + box.width <= picture.width
        assert 0 <= box.y <= box.y + box.height <= picture.height
    for arrow in picture.arrows:
        assert 0 < arrow.x < arrow.to_x < picture.width
        assert max(arrow.y, arrow.to_y) < picture.height
    for label in picture.labels:
        assert 0 < label.x < picture.width
        assert 0 < label.y < picture.height
    assert picture.labels[0].text == TITLE


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8, 12, 16])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_names_of_messages_lie_apart(name, ranks):
    """Names are at most 0.1 inches high and 0.065 inches a letter wide."""
    check_names(draw(schedule(name, ranks, 2), TITLE))


def test_names_of_several_messages_of_one_rank_lie_apart():
    asked = find("two_level:linear+ring").problem("all_reduce", Topology((0, 0, 0, 1)))
    check_names(draw(find("two_level:linear+ring").schedule(asked), TITLE))


def check_names(picture):
    names = [label for label in picture.labels if label.is_on_arrow]
    for one, other in combinations(names, 2):
        is_apart = abs(one.y - other.y) >= 0.1 or abs(one.x - other.x) >= 0.0325 * (
            len(one.text) + len(other.text)
        )
        assert is_apart, (one, other)


def test_of_many_rounds_the_first_and_the_last_are_drawn_unless_all_are_asked_for():
    long = schedule("ring", 16)
    texts = [label.text for label in draw(long, TITLE).labels]
    assert "11 … 24" in texts
    assert {"round 1", "10", "25", "30"} <= set(texts)
    assert not {"11", "24"} & set(texts)
    texts = [label.text for label in draw(long, TITLE, shows_all=True).labels]
    assert {str(number) for number in range(2, 31)} <= set(texts)


def test_hosts_with_several_ranks_have_a_ground_of_their_own():
    picture = draw(schedule("two_level", 4), TITLE)
    first, second = (box for box in picture.boxes if box.role == "host")
    assert first.y + first.height < second.y
    assert not [b for b in draw(schedule("ring", 4), TITLE).boxes if b.role == "host"]
