"""Converts records of the archive to rows of the table: a million in a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from functools import lru_cache
from operator import itemgetter
from types import NoneType
from typing import Any
from zoneinfo import ZoneInfo

from pipelines.opu.table import Column, FieldKind
from pipelines.toolkit.decode import Record
from pipelines.toolkit.rejects import Rejects
from pipelines.toolkit.times import TimeReader

Row = tuple[Any, ...]
FieldParser = Callable[[Any], Any]

_MOSCOW = ZoneInfo("Europe/Moscow")
_TIME_READER = TimeReader(zone=_MOSCOW)
_BIGINT_LIMIT = 2**63


class InvalidRecord(ValueError):
    """A record that is no row."""


def _parse_int(value: int) -> int:
    if not -_BIGINT_LIMIT <= value < _BIGINT_LIMIT:
        raise ValueError("has more digits than a bigint holds")
    return value


@lru_cache(maxsize=10_000)  # days repeat, and parsing one is the main cost of its column
def _parse_day(value: str) -> str:
    """Return the text unchanged if PostgreSQL reads it as that day."""
    try:
        if str(date.fromisoformat(value)) == value:  # ISO 8601 has other forms, such as 2024-W05-1
            return value
    except ValueError:
        pass
    raise ValueError(f"{value[:40]!r} is no date such as 2024-01-31")


def _parse_timestamp(value: Any) -> datetime:
    if isinstance(value, str):
        try:
            timestamp = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            if timestamp.tzinfo is not None:
                return timestamp
    return _TIME_READER.read(value)


# By kind: which types a field may have in JSON, and how each is read. None: as it is.
_PARSERS: dict[FieldKind, dict[type, FieldParser | None]] = {
    FieldKind.TEXT: {str: None},
    FieldKind.INTEGER: {int: _parse_int},
    FieldKind.NUMBER: {int: None, float: None},
    FieldKind.BOOLEAN: {bool: None},
    FieldKind.DAY: {str: _parse_day},
    FieldKind.TIMESTAMP: {str: _parse_timestamp, int: _parse_timestamp, float: _parse_timestamp},
}

RowParsers = tuple[tuple[int, FieldParser], ...]


class RowDecoder:
    """Converts records to rows in the order of the columns; an invalid one goes to the rejects with its line."""

    def __init__(self, columns: Sequence[Column], rejects: Rejects) -> None:
        self._columns = columns
        self._rejects = rejects
        self._get_fields = itemgetter(*(column.source for column in columns))
        self._parsers_by_types: dict[
            tuple[type, ...], RowParsers
        ] = {}  # by the types of a record's fields: there are few such
        self.unknown_fields: tuple[str, ...] = ()  # of the first record: the export may have grown

    def decode(self, records: Iterable[tuple[int, Record]]) -> Iterator[Row]:
        for line, record in records:
            if line == 1:
                self.unknown_fields = tuple(sorted(record.keys() - {column.source for column in self._columns}))
            try:
                yield self._decode_record(record)
            except InvalidRecord as error:
                self._rejects.add(f"line {line}", str(error))

    def _decode_record(self, record: Record) -> Row:
        try:
            values = self._get_fields(record)
        except KeyError as missing:
            raise InvalidRecord(f"field {missing} is missing; an empty one is null") from None
        types = tuple(map(type, values))
        parsers = self._parsers_by_types.get(types)
        if parsers is None:
            parsers = self._parsers_by_types[types] = self._parsers_for(types)
        if not parsers:
            return values  # type: ignore[no-any-return]  # of itemgetter with several names: a tuple
        row = list(values)
        for index, parse in parsers:
            try:
                row[index] = parse(row[index])
            except ValueError as error:
                raise InvalidRecord(f"field {self._columns[index].source!r}: {error}") from None
        return tuple(row)

    def _parsers_for(self, types: tuple[type, ...]) -> RowParsers:
        """Return the parsers for a record with fields of these types. Raises `InvalidRecord`."""
        parsers = []
        for index, (column, kind) in enumerate(zip(self._columns, types, strict=True)):
            fitting = _PARSERS[column.kind]
            if kind is NoneType and not column.key:
                continue
            if kind not in fitting:
                actual = "null" if kind is NoneType else f"a {kind.__name__}"
                raise InvalidRecord(
                    f"field {column.source!r} is {actual}; expected {' or '.join(t.__name__ for t in fitting)}"
                )
            parser = fitting[kind]
            if parser is not None:
                parsers.append((index, parser))
        return tuple(parsers)
