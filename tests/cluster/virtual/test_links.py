"""The links of a virtual cluster: what they promise is what a bare TCP connection gets.

Bounds are generous upwards in time, as the machine may be busy; a link is never faster than it says.
"""

from __future__ import annotations

import pytest

from vcluster import measure
from vcluster.cluster import VirtualCluster

pytestmark = pytest.mark.alone
_MBIT = 125e3  # bytes per second


def _rate(cluster: VirtualCluster, nbytes: int) -> float:
    """The best of three transfers, in bytes per second: what others do on this machine only slows."""
    links = (measure.link(cluster, "node1", "node2", nbytes) for _ in range(3))
    return max(link.bytes_per_s for link in links)


def test_a_rate_is_held_and_lifted(cluster: VirtualCluster) -> None:
    cluster.shape("200mbit")
    # TCP and Ethernet headers take 4 %.
    assert 0.9 <= _rate(cluster, 8 << 20) / (200 * _MBIT) <= 1.05
    cluster.shape("off")
    assert _rate(cluster, 32 << 20) > 2000 * _MBIT


def test_hosts_do_not_share_a_link(cluster: VirtualCluster) -> None:
    cluster.shape("100mbit")
    turns = [measure.all_at_once(cluster, 4 << 20) for _ in range(3)]
    for host in cluster.hosts:
        best = max(turn[host].bytes_per_s for turn in turns) / (100 * _MBIT)
        assert 0.8 < best < 1.1, (host, best)


def test_one_host_can_be_slower_than_the_others(cluster: VirtualCluster) -> None:
    cluster.shape("50mbit", ["node1"])
    assert (
        0.85 <= measure.link(cluster, "node1", "node2", 2 << 20).bytes_per_s / (50 * _MBIT) <= 1.1
    )
    # In both directions; others are as fast as ever.
    assert (
        0.85 <= measure.link(cluster, "node2", "node1", 2 << 20).bytes_per_s / (50 * _MBIT) <= 1.1
    )
    assert measure.link(cluster, "node2", "node3", 8 << 20).bytes_per_s > 500 * _MBIT


def test_a_delay_is_there_and_so_is_its_rate(cluster: VirtualCluster) -> None:
    cluster.wan("200mbit", "5ms")
    link = measure.link(cluster, "node1", "node2", 8 << 20)
    assert 0.010 <= link.round_trip_s < 0.015
    assert 0.9 <= _rate(cluster, 8 << 20) / (200 * _MBIT) <= 1.05
    cluster.wan("1gbit", "50us")
    assert 100e-6 <= measure.link(cluster, "node3", "node4", 1 << 20).round_trip_s < 2e-3
    cluster.lan()
    assert measure.link(cluster, "node1", "node2", 1 << 20).round_trip_s < 1e-3


@pytest.mark.parametrize("is_far", [False, True], ids=["lan", "wan"])
def test_a_cut_host_is_silent_until_healed(cluster: VirtualCluster, is_far: bool) -> None:
    if is_far:
        cluster.wan("1gbit", "1ms")
    cluster.cut("node2")
    cluster.cut("node2")
    assert "timed out" in _login_error(cluster, "node1", "node2")
    assert "timed out" in _login_error(cluster, "node2", "node3")
    assert _login_error(cluster, "node1", "node3") == ""
    cluster.heal("node2")
    cluster.heal("node2")
    assert _login_error(cluster, "node1", "node2") == ""


@pytest.mark.parametrize(
    ("rate", "delay"), [("fast", "1ms"), ("1gbit", "soon"), ("1gb", "1ms"), ("1gbit", "1s")]
)
def test_what_is_no_rate_or_delay_is_refused(
    cluster: VirtualCluster, rate: str, delay: str
) -> None:
    with pytest.raises(ValueError, match="is not a"):
        cluster.wan(rate, delay)
    assert _login_error(cluster, "node1", "node2") == ""
    if rate != "1gbit":
        with pytest.raises(ValueError, match="is not a rate"):
            cluster.shape(rate)


def _login_error(cluster: VirtualCluster, source: str, target: str) -> str:
    command = [str(cluster.ssh), "-o", "ConnectTimeout=1", target, "true"]
    return cluster.exec(source, command).stderr
