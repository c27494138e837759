"""Makes objects of rows: psycopg2 returns uuids and jsonb as texts, and arrays as lists."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

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
    if container is Any or container is dict:
        return decode_json
    if container is UUID:
        return as_uuid
    if container in (tuple, list, frozenset):
        decode = _decoder(get_args(hint)[0])
        return container if decode is None else lambda elements: container(map(decode, elements))
    if isinstance(container, type) and issubclass(container, bytes | Enum):
        return container
    return getattr(container, "from_json", None)


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


def _parse_finite_float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text
