"""What a webhook is sent to, and in which format: our JSON, a chat, or e-mail."""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import urlsplit

from dataloader.app.config.smtp import is_mail_address
from dataloader.app.net import AllowedHosts, ForbiddenAddress, parse_url

_MAX_RECIPIENTS = 20
_MAIL_SCHEME = "mailto:"


class Format(StrEnum):
    JSON = "json"  # signed, as the documentation of webhooks has it
    SLACK = "slack"  # an incoming webhook of Slack
    TEAMS = "teams"  # a workflow of Microsoft Teams that posts an Adaptive Card
    GOOGLE_CHAT = "google_chat"  # a webhook of a space in Google Chat
    EMAIL = "email"  # by the mail server of DL_SMTP_URL

    @property
    def label(self) -> str:
        """As pages name it."""
        return _LABELS[self]


_LABELS = {
    Format.JSON: "JSON, signed",
    Format.SLACK: "Slack",
    Format.TEAMS: "Teams",
    Format.GOOGLE_CHAT: "Google Chat",
    Format.EMAIL: "e-mail",
}
CHAT_FORMATS = (Format.SLACK, Format.TEAMS, Format.GOOGLE_CHAT)  # whose addresses are passwords
_SCHEMES = {"slack": Format.SLACK, "teams": Format.TEAMS, "gchat": Format.GOOGLE_CHAT}  # of slack://… for https://…
_HOSTS = {
    "hooks.slack.com": Format.SLACK,
    "chat.googleapis.com": Format.GOOGLE_CHAT,
    ".webhook.office.com": Format.TEAMS,
    ".logic.azure.com": Format.TEAMS,
    ".powerplatform.com": Format.TEAMS,
}


def read_receiver(url: str, format: Format | None) -> tuple[str, Format | None]:
    """The address to send to, and the format that it names; None: neither the format nor the address does.

    `slack://`, `teams://` and `gchat://` stand for https and a format. Raises ForbiddenAddress if address and format
    contradict each other.
    """
    scheme, separator, rest = url.partition("://")
    named = _SCHEMES.get(scheme.lower()) if separator else None
    if named is not None:
        url = f"https://{rest}"
    elif url.lower().startswith(_MAIL_SCHEME):
        named = Format.EMAIL
    if format is not None and (named or format) is not format:
        raise ForbiddenAddress(f"is an address of the format {named}, not {format}")
    if format is Format.EMAIL and named is None:
        raise ForbiddenAddress("is no address of e-mail, such as mailto:on-call@example.com")
    return url, format or named or _format_of_host(url)


def check_receiver(url: str, allowed: AllowedHosts) -> None:
    """Raises ForbiddenAddress, as far as this is known without resolving the host."""
    if not url.lower().startswith(_MAIL_SCHEME):
        parse_url(url, allowed)
        return
    addresses = mail_addresses(url)
    if not 0 < len(addresses) <= _MAX_RECIPIENTS or not all(map(is_mail_address, addresses)):
        raise ForbiddenAddress(
            f"is not mailto: with up to {_MAX_RECIPIENTS} addresses, such as mailto:on-call@example.com,ann@example.com"
        )


def mail_addresses(url: str) -> list[str]:
    return [address.strip() for address in url[len(_MAIL_SCHEME) :].split(",")]


def shown_url(url: str, format: Format) -> str:
    """The address as a caller sees it who may set it; that of a chat is a password."""
    return host_of(url) if format in CHAT_FORMATS else url


def host_of(url: str) -> str:
    """The address without its path: those of many receivers are passwords."""
    scheme, _, rest = url.partition("://")
    authority, *more = re.split(r"(?=[/?#\\])", rest, maxsplit=1)
    return f"{scheme}://{authority.rpartition('@')[2]}{'/…' if more and more != ['/'] else '/'}"


def _format_of_host(url: str) -> Format | None:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return None
    return next(
        (format for name, format in _HOSTS.items() if host == name or (name.startswith(".") and host.endswith(name))),
        None,
    )
