"""Which pairs are tried, at which addresses, and which rate counts as good."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster.doctor.pairs import good_rate, peers, ways
from host_facts import record, survey


@given(st.integers(2, 300), st.data())
def test_every_host_tries_some_and_never_itself(count: int, data: st.DataObject) -> None:
    names = [f"node{index}" for index in range(count)]
    source = data.draw(st.sampled_from(names))
    found = peers(names, source)
    assert source not in found
    assert len(found) == len(set(found))
    assert len(found) == count - 1 if count <= 32 else len(found) <= 10


def test_addresses_that_only_a_host_itself_knows_are_not_tried() -> None:
    facts = survey({}, {}).hosts
    found = ways(facts)
    assert [[(way.address, way.is_chosen) for way in found[host]] for host in found] == [
        [("10.0.0.1", True)], [("10.0.0.2", True)]
    ]  # fmt: skip


def test_an_address_on_no_interface_that_we_know_is_tried() -> None:
    six = [{"routes": dict.fromkeys(("node1", "node2"), f"fd00::{index}")} for index in (1, 2)]
    found = ways(survey(*six).hosts)
    assert [(way.address, way.network) for way in found["node2"] if way.is_chosen] == [
        ("fd00::2", "fd00::2/128")
    ]


def test_a_second_network_that_two_hosts_have_is_tried_too() -> None:
    second = [
        {"interfaces": [*record(("a", "b"), index)["interfaces"],
                        {"name": "eth1", "address": f"192.168.0.{index + 1}", "width": 24}]}
        for index in range(2)
    ]  # fmt: skip
    found = ways(survey(*second).hosts)
    assert [(way.address, way.is_chosen) for way in found["node2"]] == [
        ("10.0.0.2", True), ("192.168.0.2", False)
    ]  # fmt: skip


@given(st.lists(st.floats(1, 1e12)))
def test_a_good_rate_is_one_that_was_seen_or_all_that_can_be_told(rates: list[float]) -> None:
    good = good_rate(rates)
    assert good in (*rates, 2.5e9, 0.0)
    assert sum(rate > good for rate in rates) * 4 <= len(rates) or good == 2.5e9
