"""Which addresses on the net the service may speak to because somebody named a URL.

Whoever may name a URL could have the service knock at doors that only it can reach: its own machine, the network it
stands in, a cloud's metadata. So an address must be public, or be allowed by whoever runs the service. A name is
resolved once, every address that it has is looked at, and the connection is made to one of these: a name that answers
otherwise a moment later gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from pipelines.toolkit.networks import Address, embedded_ipv4, is_public

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Sequence[str]]

LONGEST_URL = 2_000
_PORTS = {"http": 80, "https": 443}


class Unwelcome(ValueError):
    """The service does not speak to this address; the message says why and what would do."""


@dataclass(frozen=True)
class Allowed:
    """What may be spoken to although it is not public: names of hosts, and networks."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = field(default=())

    @classmethod
    def of(cls, told: Iterable[str]) -> Allowed:
        """Raises ValueError for what is neither a network, an address nor a name."""
        hosts, networks = set(), []
        for word in told:
            try:
                networks.append(ipaddress.ip_network(word, strict=False))
            except ValueError:
                if not word or "/" in word or ":" in word:
                    raise ValueError(f"{word!r} is neither the name of a host nor a network") from None
                hosts.add(word.lower().rstrip("."))
        return cls(frozenset(hosts), tuple(networks))

    def host(self, name: str) -> bool:
        return name.lower().rstrip(".") in self.hosts

    def address(self, address: Address) -> bool:
        return any(address in network for network in self.networks if network.version == address.version)


@dataclass(frozen=True)
class Place:
    """Where a URL leads, once it has been looked at."""

    scheme: str
    host: str
    port: int
    target: str  # path and query, as a request line has them

    @property
    def named(self) -> str:
        """As a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def place_of(url: str, allowed: Allowed) -> Place:
    """Take a URL apart; nothing is resolved. Raises `Unwelcome` for one that could never be spoken to."""
    parts = _parts(url)
    port = _port(parts)
    host = (parts.hostname or "").rstrip(".")
    literal = _literal(host)
    if literal is not None:
        _require_welcome(host, literal, allowed)
    elif not allowed.host(host) and (host == "localhost" or host.endswith(".localhost")):
        _refuse(host, "this machine itself")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(parts.scheme, host, port, target)


def _parts(url: str) -> SplitResult:
    if len(url) > LONGEST_URL or not all("!" <= character <= "~" for character in url):
        raise Unwelcome(f"a URL has at most {LONGEST_URL} characters, none of them a space; percent-encode others")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Unwelcome(f"is no URL: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise Unwelcome("is no address to send to; one looks like https://hooks.example.com/dataloader")
    if parts.username is not None or parts.password is not None:
        raise Unwelcome("has a user name or a password in it; the signature tells who is speaking")
    if parts.fragment:
        raise Unwelcome("has a fragment (#…), which is never sent")
    return parts


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError as error:
        raise Unwelcome(f"is no URL: {error}") from None
    if port == 0:
        raise Unwelcome("has the port 0, where nobody can listen")
    return port or _PORTS[parts.scheme]


def resolve(place: Place, allowed: Allowed, look_up: Resolve | None = None) -> list[str]:
    """The addresses to connect to, in the resolver's order. One that is not welcome makes all of them so: a name that
    has both kinds is up to something. Raises `Unwelcome`, or OSError where the name is not known."""
    found = list(dict.fromkeys((look_up or _look_up)(place.host, place.port)))
    if not allowed.host(place.host):
        for text in found:
            _require_welcome(place.host, ipaddress.ip_address(text.partition("%")[0]), allowed)
    return found


def _look_up(host: str, port: int) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except UnicodeError as error:
        raise OSError(f"{host!r} is no name: {error}") from None


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:  # 127.1, 0x7f000001 and 2130706433 are addresses to the C library, and so to whoever connects
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _require_welcome(host: str, address: Address, allowed: Allowed) -> None:
    if allowed.address(address):
        return
    embedded = embedded_ipv4(address)
    if embedded is not None and allowed.address(embedded):
        return
    if not is_public(address):
        _refuse(host, f"the address {address}, which is not public")


def _refuse(host: str, what: str) -> None:
    raise Unwelcome(f"{host} is {what}; DL_WEBHOOK_ALLOW names what may be spoken to all the same")
