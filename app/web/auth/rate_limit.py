"""Rate limit of failed logins by network: further failures in the same minute are answered with 429 and not logged.

Keys cannot be guessed, and a valid key is accepted whatever others at its address do: the limit keeps the log readable.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

_MAX_NETWORKS = 4096
_IPV6_PREFIX_LENGTH = 64  # the other bits are chosen by the client


@dataclass
class _TokenBucket:
    tokens: float
    updated_at: float


class LoginThrottle:
    """A token bucket for each network."""

    def __init__(self, *, burst: int = 10, per_minute: float = 10.0) -> None:
        self._burst, self._per_sec = burst, per_minute / 60
        self._lock = threading.Lock()
        self._by_network: OrderedDict[str, _TokenBucket] = OrderedDict()  # under the lock

    def record_failure(self, address: str) -> float | None:
        """Count a failed login. Return None below the limit, else the seconds until the next one is accepted."""
        now, network = time.monotonic(), _network_of(address)
        with self._lock:
            bucket = self._by_network.pop(network, None) or _TokenBucket(self._burst, now)
            self._by_network[network] = bucket
            if len(self._by_network) > _MAX_NETWORKS:
                self._by_network.popitem(last=False)
            bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.updated_at) * self._per_sec)
            bucket.updated_at = now
            if bucket.tokens >= 1:
                bucket.tokens -= 1
                return None
            return (1 - bucket.tokens) / self._per_sec


def _network_of(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv4Address) or parsed.ipv4_mapped:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX_LENGTH), strict=False))
