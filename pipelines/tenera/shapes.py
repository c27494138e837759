"""The words in which a source's payload is declared, and how a payload is taken apart by them.

A path leads from one JSON value to another: `data.rows` by the names of objects, `[]` to each item of a list, `{}` to
each value of an object. A field is looked for in the record; `../x` in what encloses it, `/x` in the whole payload,
`@` is the name under which `{}` found the record, and `=text` is that text itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from pipelines.tenera.amounts import Numbers
from pipelines.toolkit.errors import BadTime, DecodeError
from pipelines.toolkit.rejects import Rejects
from pipelines.toolkit.times import TimeReader

MOSCOW = ZoneInfo("Europe/Moscow")
COLUMNS = ("open", "high", "low", "close", "volume")
_SHOWN_KEYS = 8


class Layout(StrEnum):
    """How records stand in what `records` leads to."""

    OBJECTS = "objects"  # each an object with its fields
    TABLE = "table"  # an object with the names in `columns` and a list of lists in `rows`
    PARALLEL = "parallel"  # an object with one list a field, of one length


class Grain(StrEnum):
    DAY = "day"
    MOMENT = "moment"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One source of the aggregator: where it is, what its payload looks like, and what that means."""

    name: str  # in args and in quote_section.source
    path: str  # behind the endpoint
    records: str
    layout: Layout = Layout.OBJECTS
    section: str
    code: str
    title: str  # the quote's name
    at: str
    grain: Grain
    times: TimeReader = field(default_factory=TimeReader)
    numbers: Numbers = field(default_factory=Numbers)
    per: str = ""  # the field that says for how many units a price is
    values: Mapping[str, str]  # column → field, of open, high, low, close, volume
    measures: Mapping[str, str] = field(default_factory=dict)  # further measures → field


class UnknownShape(DecodeError):
    """A payload that does not look as its source was declared."""


@dataclass(frozen=True)
class Value:
    """One record of a source, in the words of our tables."""

    section: str
    code: str
    title: str
    grain: Grain
    quoted_at: datetime  # in Moscow
    quoted_on: date
    values: Mapping[str, Decimal | None]
    measures: Mapping[str, Decimal | None]


@dataclass(frozen=True)
class _Found:
    """A value in the payload, and the way to it."""

    value: Any
    place: str  # for people: data.rows[3]
    name: str = ""
    outer: _Found | None = None

    @property
    def root(self) -> Any:
        return self.value if self.outer is None else self.outer.root


def read(source: Source, payload: Any, rejects: Rejects) -> Iterator[Value]:
    """The values in a payload. A bad record goes to the rejects by its place; another shape is `UnknownShape`."""
    for record in _records(source, payload):
        try:
            yield _value(source, record)
        except (_Unfit, BadTime) as reason:
            rejects.add(f"{source.name} {record.place}", str(reason))


class _Unfit(ValueError):
    """A record cannot be used."""


def _records(source: Source, payload: Any) -> Iterator[_Found]:
    for found in _follow(source, _Found(payload, ""), _steps(source.records)):
        match source.layout:
            case Layout.OBJECTS:
                yield found
            case Layout.TABLE:
                yield from _table(source, found)
            case Layout.PARALLEL:
                yield from _parallel(source, found)


def _steps(path: str) -> list[str]:
    """`data.rows[]` as data, rows, []."""
    return path.replace("[]", ".[]").replace("{}", ".{}").strip(".").split(".") if path else []


def _follow(source: Source, found: _Found, steps: Sequence[str]) -> Iterator[_Found]:
    if not steps:
        yield found
        return
    step, rest = steps[0], steps[1:]
    if step == "[]":
        for number, item in enumerate(_expect(source, found, list)):
            yield from _follow(source, _Found(item, f"{found.place}[{number}]", outer=found), rest)
    elif step == "{}":
        for name, item in _expect(source, found, dict).items():
            yield from _follow(source, _Found(item, _inner(found, name), name, found), rest)
    else:
        inside = _expect(source, found, dict)
        if step not in inside:
            raise UnknownShape(f"{source.name}: there is no {_inner(found, step)}; {_looks(found)}")
        yield from _follow(source, _Found(inside[step], _inner(found, step), step, found), rest)


def _expect(source: Source, found: _Found, kind: type) -> Any:
    if not isinstance(found.value, kind):
        expected = "a list" if kind is list else "an object"
        raise UnknownShape(f"{source.name}: {found.place or 'the payload'} should be {expected}; {_looks(found)}")
    return found.value


def _table(source: Source, found: _Found) -> Iterator[_Found]:
    table = _expect(source, found, dict)
    columns, rows = table.get("columns"), table.get("rows")
    if not isinstance(rows, list) or not isinstance(columns, list) or not all(isinstance(n, str) for n in columns):
        raise UnknownShape(f"{source.name}: {found.place} should have columns and rows; {_looks(found)}")
    for number, row in enumerate(rows):
        fits = isinstance(row, list) and len(row) == len(columns)
        record = dict(zip(columns, row, strict=True)) if fits else row
        yield _Found(record, _inner(found, f"rows[{number}]"), outer=found)


def _parallel(source: Source, found: _Found) -> Iterator[_Found]:
    lists = {name: item for name, item in _expect(source, found, dict).items() if isinstance(item, list)}
    lengths = {name: len(item) for name, item in lists.items()}
    if source.at not in lists or len(set(lengths.values())) > 1:
        wanted = f"lists of one length, {source.at!r} among them"
        raise UnknownShape(f"{source.name}: {found.place} should have {wanted}; it has {lengths}")
    for number in range(lengths[source.at]):
        fields = {name: item[number] for name, item in lists.items()}
        yield _Found(fields, f"{found.place}[{number}]", outer=found)


def _inner(found: _Found, name: str) -> str:
    return f"{found.place}.{name}" if found.place else name


def _looks(found: _Found) -> str:
    if not isinstance(found.value, dict):
        return f"it is a {type(found.value).__name__}"
    names = list(found.value)
    return f"it has {', '.join(map(str, names[:_SHOWN_KEYS]))}{' …' if len(names) > _SHOWN_KEYS else ''}"


def _value(source: Source, record: _Found) -> Value:
    if not isinstance(record.value, dict):
        raise _Unfit(f"a {type(record.value).__name__} where a record was expected")
    quoted_at, quoted_on = _time(source, record)
    units = _amount(source, record, source.per) if source.per else Decimal(1)
    if not units:
        raise _Unfit(f"{source.per!r} is {units}, and a price cannot be for that many units")
    values = {column: _amount(source, record, path) for column, path in source.values.items()}
    if all(value is None for value in values.values()):
        raise _Unfit(f"it has no value in {', '.join(source.values.values())}")
    return Value(
        section=_text(record, source.section),
        code=_text(record, source.code),
        title=_text(record, source.title),
        grain=source.grain,
        quoted_at=quoted_at,
        quoted_on=quoted_on,
        values={column: _each(value, units, column) for column, value in values.items()},
        measures={name: _amount(source, record, path) for name, path in source.measures.items()},
    )


def _each(value: Decimal | None, units: Decimal, column: str) -> Decimal | None:
    return value if value is None or column == "volume" or units == 1 else value / units


def _time(source: Source, record: _Found) -> tuple[datetime, date]:
    """A day is the day that the source states, wherever it is; a moment is moved to Moscow."""
    found = source.times.read(_look(record, source.at))
    if source.grain is Grain.DAY:
        day = found.astimezone(source.times.written_in or source.times.zone).date()
        return datetime.combine(day, time(), MOSCOW), day
    moment = found.astimezone(MOSCOW)
    return moment, moment.date()


def _amount(source: Source, record: _Found, path: str) -> Decimal | None:
    try:
        return source.numbers.read(_look(record, path))
    except ValueError as error:
        raise _Unfit(f"{path!r}: {error}") from error


def _text(record: _Found, path: str) -> str:
    found = _look(record, path)
    if isinstance(found, bool) or not isinstance(found, str | int) or str(found).strip() == "":
        raise _Unfit(f"{path!r} is {found!r}, and should be a text")
    return str(found).strip()


def _look(record: _Found, path: str) -> Any:
    """The value of a field; None where there is none."""
    if path.startswith("="):
        return path[1:]
    if path == "@":
        return record.name
    at: Any = record.value
    if path.startswith("/"):
        at, path = record.root, path[1:]
    outer = record.outer
    while path.startswith("../"):
        while outer is not None and isinstance(outer.value, list):  # a list encloses its items, and has no fields
            outer = outer.outer
        at, path, outer = (None, path[3:], None) if outer is None else (outer.value, path[3:], outer.outer)
    for name in path.split("."):
        at = at.get(name) if isinstance(at, dict) else None
    return at
