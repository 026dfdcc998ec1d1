"""How many ranks on which host."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from doubletime.cluster import placement
from doubletime.cluster.hosts import Host
from doubletime.cluster.placement import Placement, place
from doubletime.errors import LaunchError

SLOTS = st.lists(st.integers(1, 9), min_size=1, max_size=9)
A, B, C = Host("a", 4), Host("b", 2), Host("c")


def named(slots):
    return [Host(f"n{index}", count) for index, count in enumerate(slots)]


@given(SLOTS)
def test_every_slot_gets_a_rank_by_default(slots):
    assert [count for _, count in place(named(slots)).counts] == slots


@given(slots=SLOTS, data=st.data())
def test_fewer_ranks_fill_the_first_hosts(slots, data):
    ranks = data.draw(st.integers(1, sum(slots)))
    placed = place(named(slots), ranks)
    counts = [count for _, count in placed.counts]
    assert placed.ranks == ranks == len(placed.host_of)
    assert counts[:-1] == slots[: len(counts) - 1]
    assert 1 <= counts[-1] <= slots[len(counts) - 1]
    assert sorted(placed.host_of) == list(placed.host_of)


@given(slots=st.lists(st.none() | st.integers(1, 9), min_size=1), ranks=st.integers(1, 99))
def test_hosts_that_say_no_slots_share_evenly_what_is_left(slots, ranks):
    assume(None in slots)
    hosts = named(slots)
    counts = dict(place(hosts, ranks).counts)
    assert sum(counts.values()) == ranks
    assert all(counts.get(host.name, 0) <= host.slots for host in hosts if host.slots)
    shares = [counts.get(host.name, 0) for host in hosts if host.slots is None]
    assert max(shares) - min(shares) <= 1
    assert not any(shares) or all(counts[host.name] == host.slots for host in hosts if host.slots)


@given(hosts=st.integers(1, 9), per_host=st.integers(1, 9), data=st.data())
def test_so_many_on_each_host(hosts, per_host, data):
    used = data.draw(st.integers(1, hosts))
    placed = place(named([None] * hosts), used * per_host, per_host)
    assert [count for _, count in placed.counts] == [per_host] * used
    assert place(named([None] * hosts), None, per_host).ranks == hosts * per_host


def test_reads_as_it_is_written():
    placed = place([A, B, C])
    assert str(placed) == "a:4,b:2,c:1"
    assert placed.hosts == ("a", "b", "c")
    assert placed == Placement((("a", 4), ("b", 2), ("c", 1)))


@pytest.mark.parametrize(
    ("hosts", "ranks", "per_host", "message"),
    [
        ([A, B], 7, None, r"7 ranks are more than the 6 slots of a:4, b:2\n.*-n 6"),
        ([Host("a", 1)], 2, None, r"the 1 slot of a:1"),
        ([A, B], 5, 2, r"--per-host 2 does not divide -n 5\n.*-n 4 or -n 6"),
        ([A, B], 1, 2, r"does not divide -n 1\n.*-n 2"),
        ([A, B], 6, 2, r"need 3 hosts; there are 2\n.*-n 4"),
        ([A, B], None, 3, r"host b has 2 slots\n.*--per-host 2.*b:3"),
        ([A], 0, None, "-n 0"),
        ([A], None, 0, "--per-host 0"),
        ([Host("a")], 5000, None, r"-n 5000: 4096 ranks are the most\D*-n 4096"),
        ([Host("a"), B], None, 9999, r"--per-host 9999: 4096 ranks are the most"),
        ([], None, None, "no host"),
    ],
)
def test_what_does_not_fit_is_told(hosts, ranks, per_host, message):
    with pytest.raises(LaunchError, match=message):
        placement.place(hosts, ranks, per_host)
