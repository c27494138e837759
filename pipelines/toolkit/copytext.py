"""Encodes rows as the text format of COPY, a chunk of rows at a time.

A chunk is turned into columns, and each column into text by one call that stays in C, because a value at a time is
several times slower. A chunk with other values is encoded again value by value, which supports every type and
names the value that does not fit.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson

from dataloader.pipelines.toolkit.errors import UnsuitableValue
from dataloader.pipelines.toolkit.rejects import Rejects

Row = Sequence[Any] | Mapping[str, Any]

_NULL = r"\N"
_NUL = "it holds a NUL character, which PostgreSQL cannot store"
_ESCAPED = (("\\", r"\\"), ("\t", r"\t"), ("\n", r"\n"), ("\r", r"\r"))  # the backslash first
_ESCAPES = str.maketrans(dict(_ESCAPED))
_FIRST_YEAR_OF_WHOLE_MINUTE_OFFSETS = 1973  # Liberia was the last to give up one with seconds, in 1972
_BOOLEAN = {True: "t", False: "f"}


@dataclass(frozen=True)
class Column:
    """A column of the target, as far as it decides how a value is written."""

    name: str
    kind: str  # PostgreSQL's name of its type, a domain's base type, an array's element type
    array: bool = False

    @property
    def json(self) -> bool:
        return self.kind in ("json", "jsonb") and not self.array


class _ValueDoesNotFit(Exception):
    """A value cannot be written into its column."""

    def __init__(self, reason: str, column: str = "") -> None:
        self.reason = reason
        self.column = column


class CopyEncoder:
    """Writes rows for the columns of one COPY."""

    def __init__(self, columns: Sequence[Column], rejects: Rejects | None = None) -> None:
        self._columns = columns
        self._names = [column.name for column in columns]
        self._rejects = rejects
        self.row_count = 0
        self.rejected_count = 0

    def encode(self, rows: Sequence[Row]) -> bytes:
        """Return the rows' lines. A row that does not fit goes to the rejects, or raises `UnsuitableValue`."""
        try:
            lines = self._encode_by_column(rows)
        except (_ValueDoesNotFit, KeyError, TypeError, ValueError):
            lines = self._encode_by_row(rows)
        self.row_count += len(rows)
        return lines

    def _encode_by_column(self, rows: Sequence[Row]) -> bytes:
        columns = list(zip(*self._as_sequences(rows), strict=True))
        if len(columns) != len(self._columns):
            raise _ValueDoesNotFit("rows of another length")
        texts = [_encode_column(values, column) for values, column in zip(columns, self._columns, strict=True)]
        lines = map("\t".join, zip(*texts, strict=True))
        return ("\n".join(lines) + "\n").encode()

    def _as_sequences(self, rows: Sequence[Row]) -> Iterable[Sequence[Any]]:
        kinds = set(map(type, rows))
        if all(issubclass(kind, tuple | list) for kind in kinds):
            return rows  # type: ignore[return-value]  # checked above
        if kinds != {dict}:
            raise _ValueDoesNotFit("rows of mixed kinds")
        if len(self._names) == 1:
            return [(row[self._names[0]],) for row in rows]  # type: ignore[call-overload]  # they are all dicts
        return map(itemgetter(*self._names), rows)

    def _encode_by_row(self, rows: Sequence[Row]) -> bytes:
        lines = []
        for number, row in enumerate(rows, self.row_count + 1):
            try:
                lines.append("\t".join(self._encode_row(row)))
            except _ValueDoesNotFit as unfit:
                if self._rejects is None:
                    raise UnsuitableValue(number, unfit.column, unfit.reason) from unfit
                self.rejected_count += 1
                self._rejects.add(f"row {number}, column {unfit.column!r}", unfit.reason)
        return "".join(line + "\n" for line in lines).encode()

    def _encode_row(self, row: Row) -> Iterable[str]:
        values = self._row_values(row)
        if len(values) != len(self._columns):
            at = self._names[min(len(values), len(self._names) - 1)]
            raise _ValueDoesNotFit(f"the row has {len(values)} values for {len(self._columns)} columns", at)
        for value, column in zip(values, self._columns, strict=True):
            try:
                text = _NULL if value is None else _encode_value(value, column).translate(_ESCAPES)
                _check_storable(text)
            except _ValueDoesNotFit as unfit:
                raise _ValueDoesNotFit(unfit.reason, column.name) from unfit
            yield text

    def _row_values(self, row: object) -> Sequence[Any]:
        if isinstance(row, Mapping):
            if missing := [name for name in self._names if name not in row]:
                raise _ValueDoesNotFit("it is missing; give None to mean NULL", missing[0])
            return [row[name] for name in self._names]
        if isinstance(row, Sequence) and not isinstance(row, str | bytes | bytearray):
            return row
        raise _ValueDoesNotFit(f"a row is a sequence or a mapping, not a {type(row).__name__}", self._names[0])


def _encode_column(values: Sequence[Any], column: Column) -> Iterable[str]:
    """Encode a column of a chunk, in one call where its values have one plain type."""
    kinds = set(map(type, values))
    nullable = NoneType in kinds
    kinds.discard(NoneType)
    if not kinds:
        return [_NULL] * len(values)
    plain = len(kinds) == 1 and not column.array and (not column.json or kinds == {str})
    at_once = _COLUMN_ENCODERS.get(next(iter(kinds))) if plain else None
    if at_once is None:
        each = [_NULL if value is None else _encode_value(value, column).translate(_ESCAPES) for value in values]
        _check_storable("".join(each))
        return each
    if not nullable:
        return at_once(values, column)
    texts = iter(at_once([value for value in values if value is not None], column))
    return [_NULL if value is None else next(texts) for value in values]


def _encode_strings(values: Sequence[str], _: Column) -> Iterable[str]:
    joined = "\0".join(values)
    if joined.count("\0") >= len(values):
        raise _ValueDoesNotFit(_NUL)
    if not any(special in joined for special in "\\\t\n\r"):
        return values
    for special, escaped in _ESCAPED:
        joined = joined.replace(special, escaped)
    return joined.split("\0")


def _encode_numbers(values: Sequence[int | float], _: Column) -> Iterable[str]:
    """As JSON: orjson writes a list many times faster than `repr` converts its items."""
    try:
        written = orjson.dumps(values)
    except TypeError:  # past 64 bits
        return map(repr, values)
    if b"n" in written:  # null: JSON has no NaN and infinity
        return map(repr, values)
    return written[1:-1].decode().split(",")


def _encode_quoted(values: Sequence[date | UUID], _: Column) -> Iterable[str]:
    return orjson.dumps(values)[2:-2].decode().split('","')


def _encode_datetimes(values: Sequence[datetime], column: Column) -> Iterable[str]:
    zones = set(map(attrgetter("tzinfo"), values))
    if column.kind == "timestamp" and zones != {None}:
        raise _ValueDoesNotFit("a value with a zone")
    # Some offsets of the past include seconds, which orjson leaves out.
    if zones <= {None, UTC} or (
        min(map(attrgetter("year"), values)) >= _FIRST_YEAR_OF_WHOLE_MINUTE_OFFSETS
        and all(isinstance(zone, ZoneInfo) for zone in zones - {None, UTC})
    ):
        return _encode_quoted(values, column)
    return map(str, values)


_COLUMN_ENCODERS: Mapping[type, Callable[[Sequence[Any], Column], Iterable[str]]] = {
    str: _encode_strings,
    int: _encode_numbers,
    float: _encode_numbers,
    bool: lambda values, _: map(_BOOLEAN.__getitem__, values),
    Decimal: lambda values, _: map(_encode_decimal, values),
    datetime: _encode_datetimes,
    date: _encode_quoted,
    time: lambda values, _: map(str, values),  # orjson drops leading zeros of the fraction
    UUID: _encode_quoted,
    bytes: lambda values, _: [r"\\x" + value.hex() for value in values],
}


def _encode_value(value: Any, column: Column) -> str:
    """One value as PostgreSQL would read it in a quoted literal."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return str.__str__(value)
    if column.array:
        return _encode_array(value, Column(column.name, column.kind))
    if column.json or isinstance(value, dict | list | tuple):
        return _encode_json(value)
    return _encode_scalar(value, column)


def _encode_scalar(value: Any, column: Column) -> str:
    match value:
        case bool():
            return _BOOLEAN[value]
        case int():
            try:
                return int.__repr__(value)
            except ValueError as error:  # thousands of digits
                raise _ValueDoesNotFit("the number has too many digits") from error
        case float():
            return float.__repr__(value)
        case Decimal():
            return _encode_decimal(value)
        case datetime():
            if column.kind == "timestamp" and value.tzinfo is not None:
                raise _ValueDoesNotFit(f"{value} has a zone and the column keeps none; convert it, or use timestamptz")
            return value.isoformat()
        case timedelta():
            return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
        case bytes() | bytearray() | memoryview():
            return r"\x" + bytes(value).hex()
    if isinstance(value, _WRITTEN_AS_TEXT):
        return str(value)
    raise _ValueDoesNotFit(f"a {type(value).__name__} cannot be written; convert it to a plain value first")


_WRITTEN_AS_TEXT = (
    date,
    time,
    UUID,
    ipaddress.IPv4Address,  # also of interfaces
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
)


def _encode_decimal(value: Decimal) -> str:
    return "NaN" if value.is_nan() else str(value)  # also -NaN and sNaN, which PostgreSQL does not know


def _encode_json(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _ValueDoesNotFit(f"it is no JSON: {error}") from error
    if r"\u0000" in text.replace(r"\\", ""):
        raise _ValueDoesNotFit(_NUL)
    return text


def _encode_array(value: Any, element: Column) -> str:
    if not isinstance(value, list | tuple):
        raise _ValueDoesNotFit(f"a {type(value).__name__} is no array; give a list")
    texts = []
    for item in value:
        if item is None:
            texts.append("NULL")
        elif isinstance(item, list | tuple) and not element.json:
            texts.append(_encode_array(item, element))
        else:
            text = _encode_value(item, element)
            texts.append('"' + text.replace("\\", r"\\").replace('"', r"\"") + '"')
    return "{" + ",".join(texts) + "}"


def _check_storable(text: str) -> None:
    if "\0" in text:
        raise _ValueDoesNotFit(_NUL)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"it holds half of a surrogate pair ({text[error.start]!a}), which is no character"
        raise _ValueDoesNotFit(problem) from error
