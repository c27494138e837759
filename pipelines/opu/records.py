"""A record of the archive as a row of the table, at a million records a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from functools import lru_cache
from operator import itemgetter
from types import NoneType
from typing import Any
from zoneinfo import ZoneInfo

from pipelines.opu.table import Column, Kind
from pipelines.toolkit.decode import Record
from pipelines.toolkit.rejects import Rejects
from pipelines.toolkit.times import TimeReader

Row = tuple[Any, ...]
Reader = Callable[[Any], Any]

_MOSCOW = ZoneInfo("Europe/Moscow")
_TIMES = TimeReader(zone=_MOSCOW)
_BIGINT = 2**63


class Misfit(ValueError):
    """A record that is no row."""


def _whole(value: int) -> int:
    if not -_BIGINT <= value < _BIGINT:
        raise ValueError("has more digits than a bigint holds")
    return value


@lru_cache(maxsize=10_000)  # days repeat themselves, and reading one costs as much as the rest of its column
def _day(value: str) -> str:
    """The text itself, once it is sure that PostgreSQL will read it as that day."""
    try:
        if str(date.fromisoformat(value)) == value:  # ISO 8601 has other forms, such as 2024-W05-1
            return value
    except ValueError:
        pass
    raise ValueError(f"{value[:40]!r} is no date such as 2024-01-31")


def _moment(value: Any) -> datetime:
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            if found.tzinfo is not None:
                return found
    return _TIMES.read(value)


# By kind: which types a field may have in JSON, and how each is read. None: as it is.
_READERS: dict[Kind, dict[type, Reader | None]] = {
    Kind.TEXT: {str: None},
    Kind.WHOLE: {int: _whole},
    Kind.NUMBER: {int: None, float: None},
    Kind.FLAG: {bool: None},
    Kind.DAY: {str: _day},
    Kind.MOMENT: {str: _moment, int: _moment, float: _moment},
}

Readers = tuple[tuple[int, Reader], ...]


class Rows:
    """The rows of the records, in the order of the columns; what does not fit goes to the rejects by its line."""

    def __init__(self, columns: Sequence[Column], rejects: Rejects) -> None:
        self._columns = columns
        self._rejects = rejects
        self._pick = itemgetter(*(column.source for column in columns))
        self._known: dict[tuple[type, ...], Readers] = {}  # by the types of a record's fields: there are few such
        self.unknown_fields: tuple[str, ...] = ()  # of the first record: the export may have grown

    def read(self, records: Iterable[tuple[int, Record]]) -> Iterator[Row]:
        for line, record in records:
            if line == 1:
                self.unknown_fields = tuple(sorted(record.keys() - {column.source for column in self._columns}))
            try:
                yield self._row(record)
            except Misfit as misfit:
                self._rejects.add(f"line {line}", str(misfit))

    def _row(self, record: Record) -> Row:
        try:
            values = self._pick(record)
        except KeyError as missing:
            raise Misfit(f"field {missing} is missing; an empty one is null") from None
        types = tuple(map(type, values))
        readers = self._known.get(types)
        if readers is None:
            readers = self._known[types] = self._readers(types)
        if not readers:
            return values  # type: ignore[no-any-return]  # of itemgetter with several names: a tuple
        row = list(values)
        for index, read in readers:
            try:
                row[index] = read(row[index])
            except ValueError as error:
                raise Misfit(f"field {self._columns[index].source!r}: {error}") from None
        return tuple(row)

    def _readers(self, types: tuple[type, ...]) -> Readers:
        """How a record with fields of such types is read; `Misfit` if it cannot be."""
        readers = []
        for index, (column, kind) in enumerate(zip(self._columns, types, strict=True)):
            fitting = _READERS[column.kind]
            if kind is NoneType and not column.key:
                continue
            if kind not in fitting:
                found = "null" if kind is NoneType else f"a {kind.__name__}"
                raise Misfit(f"field {column.source!r} is {found}; expected {' or '.join(t.__name__ for t in fitting)}")
            reader = fitting[kind]
            if reader is not None:
                readers.append((index, reader))
        return tuple(readers)
