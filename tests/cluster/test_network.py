"""The interface that leads to the other hosts."""

import socket

import psutil
import pytest

from doubletime.cluster import network
from doubletime.cluster.network import Interface

ETH = Interface("eth0", "10.0.0.5", "10.0.0.0/24")


def test_each_library_is_told_in_its_own_words():
    told = network.variables(ETH, has_rdma=False)
    assert told["GLOO_SOCKET_IFNAME"] == "eth0"
    assert told["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert told["OMPI_MCA_btl_tcp_if_include"] == "10.0.0.0/24"
    assert told["FI_TCP_IFACE"] == told["UCX_NET_DEVICES"] == "eth0"


def test_rdma_devices_are_not_forbidden():
    assert "UCX_NET_DEVICES" not in network.variables(ETH, has_rdma=True)


def test_this_host_alone_needs_no_interface():
    names = ["localhost", "127.0.1.1", *psutil_addresses(), "no-such-host.invalid"]
    assert network.settings(names) == {}
    assert [network.source_address(name) for name in names] == [None] * len(names)


@pytest.mark.parametrize("setting", ["GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES"])
def test_what_the_user_has_set_stays(monkeypatch, setting):
    monkeypatch.setattr(network, "interface_to", lambda hosts: ETH)
    assert setting in network.settings(["other"]) or setting == "UCX_NET_DEVICES"
    monkeypatch.setenv(setting, "mine")
    assert setting not in network.settings(["other"])


def test_open_mpi_is_not_told_what_to_include_where_it_was_told_what_to_exclude(monkeypatch):
    monkeypatch.setattr(network, "interface_to", lambda hosts: ETH)
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_exclude", "docker0")
    assert "OMPI_MCA_btl_tcp_if_include" not in network.settings(["other"])


def psutil_addresses():
    return [
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET
    ]
