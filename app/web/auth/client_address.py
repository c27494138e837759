"""The origin of a request: the client's address, whether it is local, and whether another site's page sent it."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Any of these headers shows that a proxy has forwarded the request.
_FORWARDING_HEADERS = (
    "HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PROTO",
    "HTTP_VIA", "HTTP_X_CLIENT_IP", "HTTP_TRUE_CLIENT_IP", "HTTP_CF_CONNECTING_IP",
)  # fmt: skip
_HOST_HEADER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::\d+)?")
_SAME_SITE = ("same-origin", "none")  # none: a typed address or a bookmark


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse addresses and networks such as 10.0.0.0/8. Raises ValueError."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def client_address(environ: WSGIEnvironment, proxies: tuple[Network, ...]) -> str:
    """The address of the peer, or of the client for which trusted proxies have forwarded the request."""
    peer = str(environ.get("REMOTE_ADDR", ""))
    if not proxies or not _in_networks(peer, proxies):
        return peer
    for entry in reversed(environ.get("HTTP_X_FORWARDED_FOR", "").split(",")):
        hop = str(entry).strip()
        if _parse_address(hop) is None:
            return peer
        if not _in_networks(hop, proxies):
            return hop
    return peer


def is_local(environ: WSGIEnvironment) -> bool:
    """Whether a program on this machine sent the request itself; a proxy on this machine only forwards."""
    return (
        is_loopback(environ.get("REMOTE_ADDR", ""))
        and not any(header in environ for header in _FORWARDING_HEADERS)
        and environ.get("SERVER_PROTOCOL") != "HTTP/1.0"  # proxies use it towards their backends
    )


@lru_cache(maxsize=256)
def is_loopback(text: str) -> bool:
    address = _parse_address(text)
    return address is not None and address.is_loopback


@lru_cache(maxsize=256)
def is_local_host_header(host: str) -> bool:
    """Whether a Host header names this machine. DNS rebinding makes the name of another site resolve to 127.0.0.1: its
    pages send their own name."""
    match = _HOST_HEADER.fullmatch(host)
    if match is None:
        return False
    name = match[1].strip("[]").lower().rstrip(".")
    return name in ("localhost", socket.gethostname().lower()) or name.endswith(".localhost") or is_loopback(name)


def is_cross_site(environ: WSGIEnvironment) -> bool:
    """Whether a page of another site made a browser send the request; other clients send neither header."""
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if site is not None:
        return site not in _SAME_SITE
    origin = environ.get("HTTP_ORIGIN")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != environ.get("HTTP_HOST", "").lower() or not origin.startswith("http")
    except ValueError:
        return True


def is_https(environ: WSGIEnvironment, proxies: tuple[Network, ...]) -> bool:
    if environ.get("wsgi.url_scheme") == "https":
        return True
    protocol = environ.get("HTTP_X_FORWARDED_PROTO", "")
    return bool(protocol == "https" and proxies and _in_networks(str(environ.get("REMOTE_ADDR", "")), proxies))


def _parse_address(text: str) -> Address | None:
    """Parse an address, or return None; an IPv4 address mapped into IPv6 is returned as IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _in_networks(text: str, networks: tuple[Network, ...]) -> bool:
    address = _parse_address(text)
    return address is not None and any(address in network for network in networks)
