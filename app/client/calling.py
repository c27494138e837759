"""How a method of the API becomes a question: what is not given is not sent, and None is sent as null."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from urllib.parse import quote, urlencode
from uuid import UUID

Ask = Callable[..., Any]


class Unset(Enum):
    """Stands where nothing was given, for None has a meaning of its own."""

    UNSET = "unset"


UNSET = Unset.UNSET


class Calling:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
        repeatable: bool,
    ) -> Any:
        asked = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        sent = None if body is None else {name: _plain(value) for name, value in body.items() if value is not UNSET}
        more = {name: value for name, value in (headers or {}).items() if value is not None}
        address = f"{path}?{urlencode(asked)}" if asked else path
        return self._ask(method, address, body=sent, repeatable=repeatable, headers=more)


def part(value: object) -> str:
    """A value as a part of an address."""
    return quote(str(value), safe="")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items() if inner is not UNSET}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
