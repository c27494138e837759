"""Which addresses are of the public Internet.

`ipaddress.is_global` depends on the Python release: 3.11 calls 3fff::/20, 192.0.0.8 and the site-local fec0::/10
public. So the special-purpose networks of the IANA registries are listed here as well; where is_global refuses more,
that holds too.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private use
            "100.64.0.0/10",  # behind a carrier's NAT
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local, and the metadata of clouds
            "172.16.0.0/12",  # private use
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays of 6to4, deprecated
            "192.168.0.0/16",  # private use
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and the broadcast
            "::/96",  # unspecified, loopback, IPv4-compatible
            "::ffff:0:0/96",  # IPv4-mapped: judged by the address inside
            "64:ff9b::/96",  # NAT64: judged by the address inside
            "64:ff9b:1::/48",  # NAT64 for local use
            "100::/64",  # discard
            "2001::/23",  # protocol assignments, Teredo among them
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: judged by the address inside
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
            "fc00::/7",  # unique local
            "fe80::/10",  # link-local
            "fec0::/10",  # site-local, deprecated
            "ff00::/8",  # multicast
        ),
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether an address is of the public Internet; of one with an IPv4 address inside, whether that is."""
    address = embedded_ipv4(address) or address
    return address.is_global and not any(address in network for network in _NOT_PUBLIC)


def embedded_ipv4(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a gateway, or the kernel, would take out of an IPv6 one."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
