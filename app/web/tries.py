"""Failed tries to get in, by address: so many a minute are told and answered, the rest only answered, and shorter.

A key cannot be guessed, and who has one is let in whatever others at his address do. This keeps the log readable and
makes somebody who goes on trying wait.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

_MOST_ADDRESSES = 4096
_ONE_SITE = 64  # bits of an IPv6 address: the rest is anybody's to choose


@dataclass
class _Bucket:
    left: float
    at: float


class Tries:
    def __init__(self, *, burst: int = 10, a_minute: float = 10.0) -> None:
        self._burst, self._a_sec = burst, a_minute / 60
        self._lock = threading.Lock()
        self._by_address: OrderedDict[str, _Bucket] = OrderedDict()  # under the lock

    def failed(self, address: str) -> float | None:
        """Count a failed try. None: let it be told; else for how many seconds there have been too many."""
        now, site = time.monotonic(), _site(address)
        with self._lock:
            bucket = self._by_address.pop(site, None) or _Bucket(self._burst, now)
            self._by_address[site] = bucket
            if len(self._by_address) > _MOST_ADDRESSES:
                self._by_address.popitem(last=False)
            bucket.left = min(self._burst, bucket.left + (now - bucket.at) * self._a_sec)
            bucket.at = now
            if bucket.left >= 1:
                bucket.left -= 1
                return None
            return (1 - bucket.left) / self._a_sec


def _site(address: str) -> str:
    try:
        given = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(given, ipaddress.IPv4Address) or given.ipv4_mapped:
        return str(given)
    return str(ipaddress.ip_network((given, _ONE_SITE), strict=False))
