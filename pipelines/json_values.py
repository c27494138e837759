"""JSON and texts that PostgreSQL can store: a value is refused or cleaned before it is sent. Portable.

What a caller asks for is refused (`encode_strictly`). What a task reports is cleaned (`sanitize_json`,
`sanitize_text`), so that an attempt that has ended can always be settled.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from datetime import date, time
from enum import Enum
from typing import Any
from uuid import UUID

MAX_CHECKPOINT_BYTES = 1_000_000  # of JSON
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_MAX_DEPTH = 200
_MAX_ITEMS = 500_000
_MAX_REPR_LENGTH = 1_000
_MAX_NUMBER = 10**300  # within the limits of jsonb numbers and of Python's conversion to text

_encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class JsonNull(Enum):
    """JSON's null, where None means unchanged."""

    NULL = "null"


def is_storable(text: str) -> bool:
    return "\0" not in text and (text.isascii() or not _UNSTORABLE.search(text))


def encode_strictly(value: Any) -> str:
    """Return the value as JSON. Raises TypeError or ValueError for what is no JSON or cannot be stored."""
    _require_storable(value, 0)
    return _encode_json(value)


def _require_storable(value: Any, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH}")
    if isinstance(value, str):
        if not is_storable(value):
            raise ValueError("a text has a NUL character or half a surrogate pair")
    elif isinstance(value, int):
        if not -_MAX_NUMBER <= value <= _MAX_NUMBER:
            raise ValueError("an integer has more than 300 digits")
    elif isinstance(value, (dict, Mapping)):  # `dict` first: the test is faster
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a text")
            _require_storable(key, depth)
            _require_storable(inner, depth + 1)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _require_storable(inner, depth + 1)


def sanitize_text(value: str, max_length: int) -> str:
    """The text without what PostgreSQL cannot store; of one that is too long, both ends."""
    if len(value) > max_length:
        half = (max_length - 40) // 2
        value = f"{value[:half]}\n… {len(value) - 2 * half} characters left out …\n{value[-half:]}"
    return value if is_storable(value) else _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)


def sanitize_json(value: Any, max_bytes: int) -> str:
    """The value as JSON; if it is too large or no JSON, {"$dropped": reason}."""
    try:
        text = _encode_json(_Sanitizer().sanitize(value, 0))
    except Exception as error:  # an object whose own methods fail must not fail the settlement
        return json.dumps({"$dropped": f"not JSON: {type(error).__name__}"})
    size = len(text.encode())
    if size > max_bytes:
        return json.dumps({"$dropped": f"{size} bytes of JSON; at most {max_bytes} are kept"})
    return text


class _Sanitizer:
    """Bounded in depth and in size: a list may hold itself."""

    def __init__(self) -> None:
        self._items_left = _MAX_ITEMS

    def sanitize(self, value: Any, depth: int) -> Any:
        self._items_left -= 1
        if self._items_left < 0:
            raise ValueError(f"more than {_MAX_ITEMS} values")
        if depth > _MAX_DEPTH:
            return "… nested too deep …"
        if is_array_or_number(value):
            value = plain_value(value)
        if isinstance(value, Mapping):
            return {_sanitize_scalar(str(key)): self.sanitize(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.sanitize(inner, depth + 1) for inner in value]
        return _sanitize_scalar(value)


def _sanitize_scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if value is JsonNull.NULL:
        return None
    if isinstance(value, str):
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", str(value))
    if isinstance(value, int):
        return int(value) if abs(value) <= _MAX_NUMBER else "… an integer of more than 300 digits …"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, (date, time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, UUID) or _is_decimal(value):
        return str(value)
    return sanitize_text(repr(value), _MAX_REPR_LENGTH)


def _is_decimal(value: Any) -> bool:
    """Without the module, unless the task has loaded it."""
    module = sys.modules.get("decimal")
    return module is not None and isinstance(value, module.Decimal)


def is_array_or_number(value: Any) -> bool:
    """Whether the value is an array or a number of a library such as numpy, which is not imported for that."""
    return isinstance(getattr(getattr(value, "dtype", None), "kind", None), str)


def plain_value(value: Any) -> Any:
    """Convert such an array or number to a list, a number or a text. The items of a list may be arrays and numbers."""
    if value.ndim:
        if value.size > _MAX_ITEMS:
            return f"… an array of {value.size} values, more than can be stored …"
        return list(value)
    kind = value.dtype.kind
    if kind == "b":
        return bool(value)
    if kind in "iu":
        return int(value)
    if kind == "f":
        return float(value)
    return str(value) if kind in "MmU" else sanitize_text(repr(value), _MAX_REPR_LENGTH)
