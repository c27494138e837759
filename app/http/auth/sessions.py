"""Browser sessions, which are signed cookies, and the rate limit of failed logins."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from itsdangerous import BadData, Signer, URLSafeTimedSerializer

_SIGNER_OPTIONS = {"key_derivation": "hmac", "digest_method": hashlib.sha256}
_MAX_AGE_SEC = 12 * 3600.0


@dataclass(frozen=True)
class Session:
    key_id: str
    expires_at: float  # seconds since the epoch
    id: str


class Sessions:
    """Creates and reads session cookies. `load_secret` is called with the first cookie and may query the database."""

    def __init__(self, load_secret: Callable[[], bytes], *, max_age_sec: float = _MAX_AGE_SEC) -> None:
        self._load_secret, self.max_age_sec = load_secret, int(max_age_sec)

    def create(self, key_id: str) -> str:
        """Return the cookie of a new session."""
        return self._serializer.dumps([key_id, secrets.token_hex(16)])

    def read(self, cookie: str) -> Session | None:
        """Return the session of a cookie, or None if its signature is wrong or it has expired."""
        try:
            (key_id, session_id), signed_at = self._serializer.loads(
                cookie, max_age=self.max_age_sec, return_timestamp=True
            )
        except (BadData, ValueError):
            return None
        return Session(key_id, signed_at.timestamp() + self.max_age_sec, session_id)

    def csrf_token(self, session: Session) -> str:
        """The token that forms of the session send back; pages of other sites cannot know it."""
        signer = Signer(self._secret, salt="dataloader.csrf", key_derivation="hmac", digest_method=hashlib.sha256)
        return signer.get_signature(session.id).decode()

    @cached_property
    def _secret(self) -> bytes:
        return self._load_secret()

    @cached_property
    def _serializer(self) -> URLSafeTimedSerializer:
        return URLSafeTimedSerializer(self._secret, salt="dataloader.session", signer_kwargs=_SIGNER_OPTIONS)


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
