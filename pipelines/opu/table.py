"""The table and the export's fields, declared once. The table's SQL and the decoding of records follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from types import NoneType
from typing import Any

from dataloader.pipelines.toolkit.decode import Record
from dataloader.pipelines.toolkit.rejects import Rejects
from dataloader.pipelines.toolkit.times import TimeReader


class FieldKind(StrEnum):
    """What a field holds in JSON, and the type of its column."""

    TEXT = "text"
    INTEGER = "bigint"
    NUMBER = "numeric"
    BOOLEAN = "boolean"
    DAY = "date"  # 2024-01-31
    TIMESTAMP = "timestamptz"  # ISO 8601 or Unix; without a zone it is Moscow's time


@dataclass(frozen=True)
class Column:
    name: str
    kind: FieldKind
    key: bool = False
    field: str = ""  # the field's name in the export, where it is another than the column's

    @property
    def source(self) -> str:
        return self.field or self.name


TABLE = "opu.brief_digital_certificate_opu"

# The export's real fields are not public: these stand for them, with the right numbers of columns and of key columns.
COLUMNS: Sequence[Column] = (
    Column("opu_id", FieldKind.INTEGER, key=True),
    Column("region_code", FieldKind.TEXT, key=True),
    Column("field_code", FieldKind.TEXT, key=True),
    Column("object_code", FieldKind.TEXT, key=True),
    Column("section_code", FieldKind.TEXT, key=True),
    Column("indicator_code", FieldKind.TEXT, key=True),
    Column("period_start", FieldKind.DAY, key=True),
    Column("revision", FieldKind.INTEGER, key=True),
    Column("period_end", FieldKind.DAY),
    Column("certificate_number", FieldKind.TEXT),
    Column("opu_name", FieldKind.TEXT),
    Column("field_name", FieldKind.TEXT),
    Column("object_name", FieldKind.TEXT),
    Column("indicator_name", FieldKind.TEXT),
    Column("unit", FieldKind.TEXT),
    Column("plan_value", FieldKind.NUMBER),
    Column("fact_value", FieldKind.NUMBER),
    Column("forecast_value", FieldKind.NUMBER),
    Column("is_final", FieldKind.BOOLEAN),
    Column("status", FieldKind.TEXT),
    Column("author", FieldKind.TEXT),
    Column("note", FieldKind.TEXT),
    Column("changed_at", FieldKind.TIMESTAMP),
)


def create_statements(table: str = TABLE, columns: Sequence[Column] = COLUMNS) -> str:
    """The schema and the table. Names are ours, not a caller's: they need no quoting."""
    lines = [f"{column.name} {column.kind.value}{' NOT NULL' if column.key else ''}" for column in columns]
    lines.append(f"PRIMARY KEY ({', '.join(column.name for column in columns if column.key)})")
    body = ",\n    ".join(lines)
    return f"CREATE SCHEMA IF NOT EXISTS opu;\nCREATE TABLE IF NOT EXISTS {table} (\n    {body}\n);\n"


Row = tuple[Any, ...]
FieldParser = Callable[[Any], Any]

_TIME_READER = TimeReader()
_BIGINT_LIMIT = 2**63


def _parse_int(value: int) -> int:
    if not -_BIGINT_LIMIT <= value < _BIGINT_LIMIT:
        raise ValueError("has more digits than a bigint holds")
    return value


@lru_cache(maxsize=10_000)  # days repeat, and parsing one is the main cost of its column
def _parse_day(value: str) -> str:
    """Return the text unchanged if PostgreSQL reads it as that day."""
    with suppress(ValueError):
        if str(date.fromisoformat(value)) == value:  # ISO 8601 has other forms, such as 2024-W05-1
            return value
    raise ValueError(f"{value[:40]!r} is no date such as 2024-01-31")


def _parse_timestamp(value: Any) -> datetime:
    if isinstance(value, str):
        with suppress(ValueError):
            timestamp = datetime.fromisoformat(value)
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
        self.rejects = rejects
        self._get_fields = itemgetter(*(column.source for column in columns))
        self._parsers_by_types: dict[tuple[type, ...], RowParsers] = {}  # by the types of a record's fields: few
        self.unknown_fields: tuple[str, ...] = ()  # of the first record: the export may have grown

    def decode(self, records: Iterable[tuple[int, Record]]) -> Iterator[Row]:
        for line, record in records:
            if line == 1:
                self.unknown_fields = tuple(sorted(record.keys() - {column.source for column in self._columns}))
            try:
                yield self._decode_record(record)
            except ValueError as error:
                self.rejects.add(f"line {line}", str(error))

    def _decode_record(self, record: Record) -> Row:
        try:
            values = self._get_fields(record)
        except KeyError as missing:
            raise ValueError(f"field {missing} is missing; an empty one is null") from None
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
                raise ValueError(f"field {self._columns[index].source!r}: {error}") from None
        return tuple(row)

    def _parsers_for(self, types: tuple[type, ...]) -> RowParsers:
        """Return the parsers for a record with fields of these types. Raises ValueError."""
        parsers = []
        for index, (column, kind) in enumerate(zip(self._columns, types, strict=True)):
            fitting = _PARSERS[column.kind]
            if kind is NoneType and not column.key:
                continue
            if kind not in fitting:
                actual = "null" if kind is NoneType else f"a {kind.__name__}"
                expected = " or ".join(t.__name__ for t in fitting)
                raise ValueError(f"field {column.source!r} is {actual}; expected {expected}")
            if (parser := fitting[kind]) is not None:
                parsers.append((index, parser))
        return tuple(parsers)
