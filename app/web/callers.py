"""Where a request comes from: its address, whether that is this very machine, and whether its page is one of ours."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Any of these says that somebody else has sent the request on.
_SENT_ON = (
    "HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PROTO",
    "HTTP_VIA", "HTTP_X_CLIENT_IP", "HTTP_TRUE_CLIENT_IP", "HTTP_CF_CONNECTING_IP",
)  # fmt: skip
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::\d+)?")
_OWN_PAGES = ("same-origin", "none")  # none: typed, or a bookmark


def networks(told: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks, such as 10.0.0.0/8. Raises ValueError."""
    return tuple(ipaddress.ip_network(one, strict=False) for one in told)


def address_of(environ: WSGIEnvironment, proxies: tuple[Network, ...]) -> str:
    """The caller's address: the peer's, or what the trusted proxies say of whom they have sent on."""
    peer = str(environ.get("REMOTE_ADDR", ""))
    if not proxies or not _within(peer, proxies):
        return peer
    for told in reversed(environ.get("HTTP_X_FORWARDED_FOR", "").split(",")):
        hop = str(told).strip()
        if not _is_address(hop):
            return peer
        if not _within(hop, proxies):
            return hop
    return peer


def is_from_here(environ: WSGIEnvironment) -> bool:
    """Did a program of this machine send it itself? A proxy of this machine did not, whatever it says about whom."""
    return (
        is_loopback(environ.get("REMOTE_ADDR", ""))
        and not any(header in environ for header in _SENT_ON)
        and environ.get("SERVER_PROTOCOL") != "HTTP/1.0"  # what proxies speak to those behind them
    )


@lru_cache(maxsize=256)
def is_loopback(address: str) -> bool:
    try:
        given = ipaddress.ip_address(address)
    except ValueError:
        return False
    return bool((getattr(given, "ipv4_mapped", None) or given).is_loopback)


@lru_cache(maxsize=256)
def names_this_machine(host: str) -> bool:
    """Is it a Host header of somebody who knows that he speaks to this machine? A page of another site whose name has
    come to mean 127.0.0.1 sends its own."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].strip("[]").lower().rstrip(".")
    ours = ("localhost", socket.gethostname().lower())
    return name in ours or name.endswith(".localhost") or is_loopback(name)


def comes_from_another_site(environ: WSGIEnvironment) -> bool:
    """Did a page of another site make a browser send it? What is no browser says nothing of sites."""
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if site is not None:
        return site not in _OWN_PAGES
    origin = environ.get("HTTP_ORIGIN")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != environ.get("HTTP_HOST", "").lower() or not origin.startswith("http")
    except ValueError:
        return True


def is_encrypted(environ: WSGIEnvironment, proxies: tuple[Network, ...]) -> bool:
    if environ.get("wsgi.url_scheme") == "https":
        return True
    told = environ.get("HTTP_X_FORWARDED_PROTO", "")
    return bool(told == "https" and proxies and _within(str(environ.get("REMOTE_ADDR", "")), proxies))


def _is_address(told: str) -> bool:
    try:
        ipaddress.ip_address(told)
    except ValueError:
        return False
    return True


def _within(told: str, known: tuple[Network, ...]) -> bool:
    try:
        given: Any = ipaddress.ip_address(told)
    except ValueError:
        return False
    given = getattr(given, "ipv4_mapped", None) or given
    return any(given in network for network in known)
