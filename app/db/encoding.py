"""Python values on their way into SQL and back. What PostgreSQL cannot store in a caller's request is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID, uuid4, uuid5

from dataloader.app.errors import InvalidJob
from dataloader.pipelines.json_values import encode_strictly, is_storable

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


def validate_text(name: str, value: str) -> str:
    if not is_storable(value):
        raise InvalidJob(f"{name} has a NUL character or half a surrogate pair, which PostgreSQL cannot store")
    return value


def validate_texts(texts: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: None if text is None else validate_text(name, text) for name, text in texts.items()}


def validate_json(name: str, value: Any) -> str:
    try:
        return encode_strictly(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"{name} is not JSON that PostgreSQL can store: {error}") from error


_Object = TypeVar("_Object")


def from_row(row_class: Callable[..., _Object], row: Sequence[Any], **values: Any) -> _Object:
    """Make an object of a row that has its fields in their order, apart from those in `values`."""
    for (name, decode), value in zip(_field_decoders(row_class, tuple(values)), row, strict=True):
        values[name] = value if value is None or decode is None else decode(value)
    return row_class(**values)


@cache
def _field_decoders(
    row_class: Callable[..., Any], given: tuple[str, ...]
) -> Sequence[tuple[str, Callable[[Any], Any] | None]]:
    return [(name, _decoder(hint)) for name, hint in get_type_hints(row_class).items() if name not in given]


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
            return _JSON.decode(text)
        except ValueError:
            return _JSON_WITH_LONG_NUMBERS.decode(text)
    except RecursionError:
        return {"$dropped": "nested too deep to be shown"}


def decode_object(text: str) -> dict[str, Any]:
    """Decode a jsonb object. Another service may have written any other value: it becomes the value of a name."""
    value = decode_json(text)
    return value if isinstance(value, dict) else {"$not_an_object": value}


def _parse_finite_float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


# Made once: pages decode thousands of small values.
_JSON = json.JSONDecoder(parse_float=_parse_finite_float)
_JSON_WITH_LONG_NUMBERS = json.JSONDecoder(parse_int=str, parse_float=_parse_finite_float)
