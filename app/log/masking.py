"""What must not be seen in a log: hidden by the name of its field, by its shape in a text, and by its value."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, time
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"
# A shorter secret is no secret, and hiding it would hide half of every line.
_SHORTEST_SECRET = 4
_DEEPEST = 12
_INT_LIMIT = 2**63  # JSON readers, and Python's own int-to-text limit, end somewhere beyond

_SECRET_NAME = re.compile(
    r"passw|passphrase|(?:^|_)pwd|(?:^|_)pass$|secret|(?:^|_)token$|api_?key|access_?key|private_?key"
    r"|authori[sz]ation$|(?:^|_)auth$|credential|cookie|(?:^|_)dsn$"
)
_VALUE = r"""(?:[bru]{0,2}"(?:\\.|[^"\\])*"|[bru]{0,2}'(?:\\.|[^'\\])*'|(?:\\.|(?!&\w+=)\S)+)"""
_SHAPES = (
    # user:password@ of a URL, up to the last @ as passwords may hold a raw one; host:port/ is let through
    (re.compile(r"(://[^\s:/@]{0,256}):(?!\d{1,5}(?:[/?#,\s]|$))\S{0,512}@"), rf"\1:{MASK}@"),
    (re.compile(r"""((?:set-)?cookie\\?["']?\s?[=:]\s?)[^\r\n]+""", re.IGNORECASE), rf"\1{MASK}"),
    (
        re.compile(r"""(authorization\\?["']?\s?[=:]\s?\\?["']?)(?:\w{1,20}\s)?[^\s"',]+""", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    (re.compile(r"(\bBearer\s)[\w.~+/=-]+", re.IGNORECASE), rf"\1{MASK}"),
    (
        re.compile(
            r"""((?:(?:passw|passphrase|secret)\w{0,16}|pwd|token|(?:api|access|private)[_-]?key)"""
            rf"""\\?["']?\s{{0,3}}[=:]\s{{0,3}}){_VALUE}""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
)
# Of the shapes each has one of these in it, in any case of letters; most texts have none, and are spared the search.
_MARK = re.compile("://|cookie|authori|bearer|passw|passphrase|secret|pwd|token|key")


class Masker:
    """Hides secrets: by name and shape always, by value those it was told of."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {form for secret in secrets if len(secret) >= _SHORTEST_SECRET for form in _forms(secret)}
        # The longest first: one secret may be a part of another.
        self._known = sorted(known, key=len, reverse=True)
        self._name = lru_cache(maxsize=1024)(self.text)  # the same few names come again with every line

    def text(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, MASK)
        if text.isascii():
            return _without_shapes(text) if _is_marked(text) else text
        # Lone surrogates cannot be written to a file.
        return _without_shapes(text).encode("utf-8", "backslashreplace").decode()

    def value(self, value: Any) -> Any:
        """The value as plain JSON data without its secrets. Never raises, whatever it is given."""
        return self._plain(value, ())

    def fields(self, fields: Mapping[Any, Any]) -> dict[str, Any]:
        return self._mapping(fields, ())

    def _plain(self, value: Any, within: tuple[int, ...]) -> Any:
        match value:
            case None | bool():
                return value
            case int() | float():
                return value if abs(value) < _INT_LIMIT and math.isfinite(value) else self.text(_told(value))
            case str():
                return self.text(value)
            case Mapping() | list() | tuple() | set() | frozenset():
                if id(value) in within or len(within) >= _DEEPEST:
                    return "…"
                within = (*within, id(value))
                return (
                    self._mapping(value, within)
                    if isinstance(value, Mapping)
                    else [self._plain(part, within) for part in value]
                )
            case _:
                return self.text(_told(value))

    def _mapping(self, fields: Mapping[Any, Any], within: tuple[int, ...]) -> dict[str, Any]:
        return {
            self._name(key): MASK if _is_secret(key, value) else self._plain(value, within)
            for key, value in ((key if isinstance(key, str) else _told(key), value) for key, value in fields.items())
        }


def mask(value: Any) -> Any:
    """The value as plain JSON data without its secrets, those named to `set_up` among them."""
    # Python's logging registry is the one thing that is as wide as the process already.
    for handler in logging.getLogger().handlers:
        masker = getattr(handler.formatter, "masker", None)
        if isinstance(masker, Masker):
            return masker.value(value)
    return Masker().value(value)


def _is_marked(text: str) -> bool:
    """Whether one of the shapes may be in an ASCII text; outside ASCII further letters pass for an s or a k."""
    return _MARK.search(text.lower()) is not None


def _without_shapes(text: str) -> str:
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return text


def _forms(secret: str) -> Iterable[str]:
    """A secret as it is, as a URL spells it, and as a traceback quotes it."""
    return {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}


def _is_secret(name: str, value: Any) -> bool:
    # Whether there is one at all may be told.
    return value is not None and not isinstance(value, bool) and _names_a_secret(name)


@lru_cache(maxsize=1024)
def _names_a_secret(name: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
    return _SECRET_NAME.search(words) is not None


def _told(value: Any) -> str:
    try:
        match value:
            case date() | time():
                return value.isoformat()
            case BaseException():
                return f"{type(value).__name__}: {value}"
            case _:
                return str(value)
    except Exception:  # anybody's __str__ may be run here, and a log line is no reason to fail
        return f"<{type(value).__name__} that cannot be shown>"
