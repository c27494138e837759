"""The mail server that a URL names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_MAX_ADDRESS_LENGTH = 254
_EXAMPLE = "smtps://user:password@mail.example.com:465?from=dataloader@example.com"
_PORTS = {"smtps": 465, "smtp": 587}


@dataclass(frozen=True)
class SmtpServer:
    host: str
    port: int
    security: Literal["tls", "starttls", "off"]
    sender: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)


def is_mail_address(text: str) -> bool:
    return len(text) <= _MAX_ADDRESS_LENGTH and _ADDRESS.fullmatch(text) is not None


def parse_smtp_url(url: str) -> SmtpServer:
    """Raises ValueError, whose message does not have the URL: it holds a password."""
    try:
        parts = urlsplit(url)
        port = parts.port  # raises ValueError
    except ValueError:
        raise ValueError(f"it is no URL such as {_EXAMPLE}") from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.path not in ("", "/") or parts.fragment:
        raise ValueError(f"it is no URL such as {_EXAMPLE}")
    query = parse_qs(parts.query, keep_blank_values=True)
    if unknown := query.keys() - {"from", "tls"}:
        raise ValueError(f"it has the parameter {min(unknown)!r}; there are from and tls=off")
    sender, tls = query.get("from", [""])[-1], query.get("tls", ["on"])[-1]
    if not is_mail_address(sender):
        raise ValueError("it names no sender; add ?from=dataloader@example.com")
    if tls not in ("on", "off") or (tls == "off" and parts.scheme == "smtps"):
        raise ValueError("it has tls with another value than off, or with smtps")
    password = None if parts.password is None else unquote(parts.password)
    if password is not None and tls == "off" and not _is_loopback(parts.hostname):
        raise ValueError("it would send the password without TLS; leave out tls=off")
    return SmtpServer(
        parts.hostname,
        port or _PORTS[parts.scheme],
        "tls" if parts.scheme == "smtps" else "off" if tls == "off" else "starttls",
        sender,
        None if not parts.username else unquote(parts.username),
        password,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
