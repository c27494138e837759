"""Python values on their way into SQL: what PostgreSQL cannot store is refused or cleaned before it is sent.

Callers' requests are refused (`validate_json`, `validate_text`). What pipelines report is cleaned (`sanitize_json`,
`sanitize_text`), so that a run that has ended can always be settled.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID, uuid4, uuid5

from dataloader.app.errors import InvalidJob

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_MAX_DEPTH = 200
_MAX_ITEMS = 500_000
_MAX_REPR_LENGTH = 1_000
_MAX_NUMBER = 10**300  # within the limits of jsonb numbers and of Python's conversion to text

_encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class JsonNull(Enum):
    """JSON's null, where None means unchanged."""

    NULL = "null"


_KEY_NAMESPACE = UUID("2f0d1a5e-6c1b-4c53-9b5e-0d4a8f3f7c21")


def array(values: Iterable[Any]) -> str:
    """A PostgreSQL array literal, of the type of the parameter."""
    return "{" + ",".join(map(_encode_element, values)) + "}"


def unquoted_array(values: Iterable[Any]) -> str:
    """An array literal of values that need no quotes: ids and numbers, none of them NULL."""
    return "{" + ",".join(map(str, values)) + "}"


def _encode_element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _is_storable(text: str) -> bool:
    return "\0" not in text and (text.isascii() or not _UNSTORABLE.search(text))


def validate_text(name: str, value: str) -> str:
    if not _is_storable(value):
        raise InvalidJob(f"{name} has a NUL character or half a surrogate pair, which PostgreSQL cannot store")
    return value


def validate_texts(texts: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: None if text is None else validate_text(name, text) for name, text in texts.items()}


def validate_json(name: str, value: Any) -> str:
    try:
        _require_storable(value, 0)
        return _encode_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"{name} is not JSON that PostgreSQL can store: {error}") from error


def _require_storable(value: Any, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH}")
    if isinstance(value, str):
        if not _is_storable(value):
            raise ValueError("a text has a NUL character or half a surrogate pair")
    elif isinstance(value, int):
        if not -_MAX_NUMBER <= value <= _MAX_NUMBER:
            raise ValueError("an integer has more than 300 digits")
    elif isinstance(value, dict | Mapping):  # `dict` first: the test is faster
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a text")
            _require_storable(key, depth)
            _require_storable(inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _require_storable(inner, depth + 1)


def sanitize_text(value: str, max_length: int) -> str:
    """The text without what PostgreSQL cannot store; of one that is too long, both ends."""
    if len(value) > max_length:
        half = (max_length - 40) // 2
        value = f"{value[:half]}\n… {len(value) - 2 * half} characters left out …\n{value[-half:]}"
    return value if _is_storable(value) else _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)


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
        match value:
            case Mapping():
                return {_sanitize_scalar(str(key)): self.sanitize(inner, depth + 1) for key, inner in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self.sanitize(inner, depth + 1) for inner in value]
        return _sanitize_scalar(value)


def _sanitize_scalar(value: Any) -> Any:
    match value:
        case None | bool():
            return value
        case JsonNull.NULL:
            return None
        case str():
            return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", str(value))
        case int():
            return int(value) if abs(value) <= _MAX_NUMBER else "… an integer of more than 300 digits …"
        case float():
            return float(value) if math.isfinite(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
    return sanitize_text(repr(value), _MAX_REPR_LENGTH)


def is_array_or_number(value: Any) -> bool:
    """Whether the value is an array or a number of a library such as numpy, which is not imported for that."""
    return isinstance(getattr(getattr(value, "dtype", None), "kind", None), str)


def plain_value(value: Any) -> Any:
    """Convert such an array or number to a list, a number or a text. The items of a list may be arrays and numbers."""
    if value.ndim:
        if value.size > _MAX_ITEMS:
            return f"… an array of {value.size} values, more than can be stored …"
        return list(value)
    match value.dtype.kind:
        case "b":
            return bool(value)
        case "i" | "u":
            return int(value)
        case "f":
            return float(value)
        case "M" | "m" | "U":
            return str(value)
    return sanitize_text(repr(value), _MAX_REPR_LENGTH)


_Object = TypeVar("_Object")


def from_row(row_class: Callable[..., _Object], row: Sequence[Any], **values: Any) -> _Object:
    """Make an object of a row that has its fields in their order, apart from those in `values`."""
    decoders = [(name, decode) for name, decode in _field_decoders(row_class).items() if name not in values]
    for (name, decode), value in zip(decoders, row, strict=True):
        values[name] = value if value is None or decode is None else decode(value)
    return row_class(**values)


@cache
def _field_decoders(row_class: Callable[..., Any]) -> Mapping[str, Callable[[Any], Any] | None]:
    return {name: _decoder(hint) for name, hint in get_type_hints(row_class).items()}


def _decoder(hint: Any) -> Callable[[Any], Any] | None:
    """Return what converts a value to the type of its field, or None if psycopg2 returns that type."""
    if isinstance(hint, UnionType):
        hint = get_args(hint)[0]  # of `X | None`
    container = get_origin(hint) or hint
    if container is Any:
        return decode_json
    if container is dict:
        return decode_object
    if container is UUID:
        return as_uuid
    if container in (tuple, list, frozenset):
        decode = _decoder(get_args(hint)[0])
        return container if decode is None else lambda elements: container(map(decode, elements))
    if isinstance(container, type) and issubclass(container, bytes | Enum):
        return container
    return getattr(container, "from_json", None)


def id_of_key(kind: str, idempotency_key: str | None) -> UUID:
    """The id of a new row: with an idempotency key always the same, so that a second row with the key is not made."""
    return uuid4() if idempotency_key is None else uuid5(_KEY_NAMESPACE, f"{kind} {idempotency_key}")


def as_uuid(value: str | UUID) -> UUID:
    """Also for a UUID: a pipeline may have registered psycopg2's UUID type for all connections of its process."""
    return value if isinstance(value, UUID) else UUID(value)


def decode_json(text: str) -> Any:
    """Decode any jsonb value; a number beyond Python's limits becomes its text."""
    try:
        try:
            return json.loads(text, parse_float=_parse_finite_float)
        except ValueError:
            return json.loads(text, parse_int=str, parse_float=_parse_finite_float)
    except RecursionError:
        return {"$dropped": "nested too deep to be shown"}


def decode_object(text: str) -> dict[str, Any]:
    """Decode a jsonb object. Another service may have written any other value: it becomes the value of a name."""
    value = decode_json(text)
    return value if isinstance(value, dict) else {"$not_an_object": value}


def _parse_finite_float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text
