"""Decides which addresses the service may connect to for a URL that a caller has given.

A caller could otherwise make the service reach what only it can: its own machine, its network, a cloud's metadata. So
an address must be public, or be allowed by the operator. A name is resolved once, all its addresses are checked, and
the connection goes to one of these: a name that resolves otherwise a moment later changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from dataloader.pipelines.toolkit.networks import Address, embedded_ipv4, is_public

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Sequence[str]]

MAX_URL_LENGTH = 2_000
_DEFAULT_PORTS = {"http": 80, "https": 443}


class ForbiddenAddress(ValueError):
    """The service does not connect to this address; the message says why and what is accepted."""


@dataclass(frozen=True)
class AllowedHosts:
    """Hosts and networks that are allowed although they are not public."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = field(default=())

    @classmethod
    def parse(cls, entries: Iterable[str]) -> AllowedHosts:
        """Raises ValueError for what is neither a network, an address nor a name."""
        hosts, networks = set(), []
        for word in entries:
            try:
                networks.append(ipaddress.ip_network(word, strict=False))
            except ValueError:
                if not word or "/" in word or ":" in word:
                    raise ValueError(f"{word!r} is neither the name of a host nor a network") from None
                hosts.add(word.lower().rstrip("."))
        return cls(frozenset(hosts), tuple(networks))

    def allows_host(self, name: str) -> bool:
        return name.lower().rstrip(".") in self.hosts

    def allows_address(self, address: Address) -> bool:
        return any(address in network for network in self.networks if network.version == address.version)


@dataclass(frozen=True)
class ParsedUrl:
    """The parts of a URL that a connection needs."""

    scheme: str
    host: str
    port: int
    request_target: str  # path and query, as a request line has them

    @property
    def host_header(self) -> str:
        """As a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str, allowed: AllowedHosts) -> ParsedUrl:
    """Split a URL, without resolving it. Raises `ForbiddenAddress` for one that is never allowed."""
    parts = _split_url(url)
    port = _port_of(parts)
    host = (parts.hostname or "").rstrip(".")
    literal = _parse_literal(host)
    if literal is not None:
        _require_allowed(host, literal, allowed)
    elif not allowed.allows_host(host) and (host == "localhost" or host.endswith(".localhost")):
        _raise_forbidden(host, "this machine itself")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return ParsedUrl(parts.scheme, host, port, target)


def _split_url(url: str) -> SplitResult:
    if len(url) > MAX_URL_LENGTH or not all("!" <= character <= "~" for character in url):
        raise ForbiddenAddress(
            f"a URL has at most {MAX_URL_LENGTH} characters, none of them a space; percent-encode others"
        )
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ForbiddenAddress(f"is no URL: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ForbiddenAddress("is no address to send to; one looks like https://hooks.example.com/dataloader")
    if parts.username is not None or parts.password is not None:
        raise ForbiddenAddress("has a user name or a password in it; the signature identifies the sender")
    if parts.fragment:
        raise ForbiddenAddress("has a fragment (#…), which is never sent")
    return parts


def _port_of(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError as error:
        raise ForbiddenAddress(f"is no URL: {error}") from None
    if port == 0:
        raise ForbiddenAddress("has the port 0, where no server can listen")
    return port or _DEFAULT_PORTS[parts.scheme]


def resolve(parsed_url: ParsedUrl, allowed: AllowedHosts, resolver: Resolver | None = None) -> list[str]:
    """Return the addresses to connect to, in the resolver's order. One forbidden address forbids all.

    Raises `ForbiddenAddress`, or OSError if the name is not known.
    """
    found = list(dict.fromkeys((resolver or _resolve_host)(parsed_url.host, parsed_url.port)))
    if not allowed.allows_host(parsed_url.host):
        for text in found:
            _require_allowed(parsed_url.host, ipaddress.ip_address(text.partition("%")[0]), allowed)
    return found


def _resolve_host(host: str, port: int) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except UnicodeError as error:
        raise OSError(f"{host!r} is no name: {error}") from None


def _parse_literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:  # 127.1, 0x7f000001 and 2130706433 are addresses to the C library, and so to the connection
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _require_allowed(host: str, address: Address, allowed: AllowedHosts) -> None:
    if allowed.allows_address(address):
        return
    embedded = embedded_ipv4(address)
    if embedded is not None and allowed.allows_address(embedded):
        return
    if not is_public(address):
        _raise_forbidden(host, f"the address {address}, which is not public")


def _raise_forbidden(host: str, description: str) -> None:
    raise ForbiddenAddress(f"{host} is {description}; DL_WEBHOOK_ALLOWED_HOSTS names the exceptions")
