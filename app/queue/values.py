"""Python values on their way into SQL: what PostgreSQL cannot hold is refused, or cleaned, before it is sent.

Callers' requests are refused (`checked_json`, `checked_text`). What pipelines report is cleaned (`clean_json`,
`clean_text`), so that a run that has ended can always be written down.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from app.errors import InvalidJob

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_DEEPEST = 200
_MOST_VALUES = 500_000
_LARGEST = 10**300  # what both a jsonb number and Python's own limit on digits bear with ease


_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Json(Enum):
    """JSON's own null, where None says that nothing has changed."""

    NULL = "null"


def array(values: Iterable[Any]) -> str:
    """A PostgreSQL array literal. The server gives it the parameter's type."""
    return "{" + ",".join(map(_element, values)) + "}"


def plain_array(values: Iterable[Any]) -> str:
    """The same of values that need no quotes: ids and numbers, none of them NULL."""
    return "{" + ",".join(map(str, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _is_storable(text: str) -> bool:
    return "\0" not in text and (text.isascii() or not _UNSTORABLE.search(text))


def checked_text(name: str, value: str) -> str:
    if not _is_storable(value):
        raise InvalidJob(f"{name} holds a NUL character or half a surrogate pair, which PostgreSQL cannot keep")
    return value


def checked_json(name: str, value: Any) -> str:
    try:
        _check(value, 0)
        return _encoded(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"{name} is not JSON that PostgreSQL can keep: {error}") from error


def _check(value: Any, depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"nested deeper than {_DEEPEST}")
    if isinstance(value, str):
        if not _is_storable(value):
            raise ValueError("a text holds a NUL character or half a surrogate pair")
    elif isinstance(value, int):
        if not -_LARGEST <= value <= _LARGEST:
            raise ValueError("an integer has more than 300 digits")
    elif isinstance(value, dict | Mapping):  # the first is told at once
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a text")
            _check(key, depth)
            _check(inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check(inner, depth + 1)


def clean_text(value: str, most: int) -> str:
    """Without what PostgreSQL cannot keep, and no longer than `most`: of too long a text the two ends."""
    if len(value) > most:
        half = (most - 40) // 2
        value = f"{value[:half]}\n… {len(value) - 2 * half} characters left out …\n{value[-half:]}"
    return value if _is_storable(value) else _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)


def clean_json(value: Any, most: int) -> str:
    """The value as JSON; where it is too large, an object that says so."""
    try:
        text = _encoded(_Cleaner().clean(value, 0))
    except Exception as error:  # an object whose own methods fail: say so rather than lose the run's end
        return json.dumps({"$dropped": f"not JSON: {type(error).__name__}"})
    size = len(text.encode())
    if size > most:
        return json.dumps({"$dropped": f"{size} bytes of JSON; at most {most} are kept"})
    return text


class _Cleaner:
    """Bounded in depth and in size: a list may hold itself."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def clean(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {_MOST_VALUES} values")
        if depth > _DEEPEST:
            return "… nested too deep …"
        match value:
            case Mapping():
                return {_clean_scalar(str(key)): self.clean(inner, depth + 1) for key, inner in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self.clean(inner, depth + 1) for inner in value]
        return _clean_scalar(value)


def _clean_scalar(value: Any) -> Any:
    match value:
        case None | bool():
            return value
        case Json.NULL:
            return None
        case str():
            return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", str(value))
        case int():
            return int(value) if abs(value) <= _LARGEST else "… an integer of more than 300 digits …"
        case float():
            return float(value) if math.isfinite(value) else str(value)
        case datetime() | date():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
    return clean_text(repr(value), 1000)
