"""Addresses of the public Internet, and the first and last ones of every network that is not."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from dataloader.pipelines.toolkit.networks import embedded_ipv4, is_public

# The IANA special-purpose registries of IPv4 and IPv6, and what their predecessors reserved.
SPECIAL = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.0.8/32", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
    "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "::/128", "::1/128", "::/96", "64:ff9b:1::/48", "100::/64",
    "2001::/23", "2001::/32", "2001:db8::/32", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10",
    "ff00::/8", "::ffff:10.0.0.0/104", "::ffff:192.0.0.8/128", "64:ff9b::a00:0/104", "64:ff9b::7f00:0/104",
    "2002:a00::/24", "2002:c0a8::/32",
]  # fmt: skip


@pytest.mark.parametrize("network", SPECIAL)
def test_special_purpose_network_is_not_public(network: str):
    first, last = ip_network(network)[0], ip_network(network)[-1]

    assert not is_public(first)
    assert not is_public(last)


@pytest.mark.parametrize(
    "host",
    [
        "8.8.8.8", "1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
        "192.0.1.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700::1111", "2a00:1450::1", "2001:200::",
        "2003::1", "64:ff9b::808:808", "::ffff:8.8.8.8", "2002:808:808::1",
    ],
)  # fmt: skip
def test_neighbour_of_special_network_is_public(host: str):
    assert is_public(ip_address(host))


def test_ipv4_inside_ipv6_is_found():
    assert embedded_ipv4(ip_address("64:ff9b::a00:1")) == ip_address("10.0.0.1")
    assert embedded_ipv4(ip_address("::ffff:10.0.0.1")) == ip_address("10.0.0.1")
    assert embedded_ipv4(ip_address("2002:a00:1::")) == ip_address("10.0.0.1")
    assert embedded_ipv4(ip_address("2a00::1")) is None
    assert embedded_ipv4(ip_address("10.0.0.1")) is None
