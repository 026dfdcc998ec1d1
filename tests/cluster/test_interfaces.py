"""This host's network interfaces."""

import ipaddress
import socket

import psutil

from doubletime.cluster import interfaces


def test_they_are_those_that_psutil_knows():
    known = {
        (name, each.address.partition("%")[0], ipaddress.ip_address(each.netmask))
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family in (socket.AF_INET, socket.AF_INET6)
    }
    found = interfaces.own()
    assert known == {
        (each.name, address, ipaddress.ip_network(each.network).netmask)
        for address, each in found.items()
    }
    for address, each in found.items():
        assert each.address == address
        assert ipaddress.ip_address(address) in ipaddress.ip_network(each.network)
