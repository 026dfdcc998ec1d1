"""Hosts, and the order in which neighbours share one."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.collectives.topology import Topology
from doubletime.errors import ScheduleError

NAMES = st.lists(st.sampled_from("abcde"), min_size=1, max_size=20)


def test_ranks_of_hosts_in_any_order():
    topology = Topology.of(["b", "a", "b", "c", "a", "b"])
    assert topology.hosts == (0, 1, 0, 2, 1, 0)
    assert topology.members == ((0, 2, 5), (1, 4), (3,))
    assert topology.leaders == (0, 1, 3)
    assert topology.order() == (0, 2, 5, 1, 4, 3)
    assert topology.order(root=4) == (4, 1, 0, 2, 5, 3)
    assert not topology.is_even
    assert (topology.ranks, topology.host_count) == (6, 3)


def test_the_usual_layouts():
    assert Topology.flat(3).hosts == (0, 1, 2)
    assert Topology.one_host(3).hosts == (0, 0, 0)
    assert Topology.even(2, 3) == Topology((0, 0, 0, 1, 1, 1))
    assert Topology.even(2, 3).is_even


@given(NAMES, st.data())
def test_the_order_leaves_each_host_once(names, data):
    topology = Topology.of(names)
    root = data.draw(st.none() | st.integers(0, len(names) - 1))
    order = topology.order(root)
    assert sorted(order) == list(range(len(names)))
    assert root is None or order[0] == root
    visits = [host for host, _ in groupby(order, key=lambda rank: names[rank])]
    assert len(visits) == len(set(names))


@pytest.mark.parametrize("hosts", [(), (1, 0), (0, 2)])
def test_a_topology_that_is_none_is_refused(hosts):
    with pytest.raises(ScheduleError):
        Topology(hosts)
