"""Algorithms by name."""

import pytest

from doubletime.collectives.catalogue import ALGORITHMS, find
from doubletime.collectives.topology import Topology
from doubletime.errors import ScheduleError


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_name_finds_its_algorithm_with_its_source(name):
    assert find(name).name == name
    assert "all_reduce" in find(name).collectives
    assert any(year in find(name).source for year in ("2004", "2005", "2009"))


def test_two_levels_are_composed_by_name():
    assert find("two_level:linear+ring").name == "two_level:linear+ring"


@pytest.mark.parametrize(
    "name", ["rnig", "two_level:", "two_level:ring", "two_level:ring+two_level", "ring:ring+ring"]
)
def test_an_unknown_name_gets_the_list(name):
    with pytest.raises(ScheduleError, match="reduction algorithm") as caught:
        find(name)
    assert all(known in caught.value.remedy for known in ALGORITHMS)


def test_a_collective_that_an_algorithm_does_not_define_is_refused_with_what_it_does():
    with pytest.raises(ScheduleError, match="ring does not define broadcast") as caught:
        find("ring").problem("broadcast", Topology.flat(4))
    assert caught.value.remedy == "it defines all_reduce, reduce_scatter, all_gather"
