"""Declares what a source's payload looks like, and parses a payload by its declaration.

A path leads from one JSON value to another: `data.rows` by the names of objects, `[]` to each item of a list, `{}` to
each value of an object. A field is looked for in the record; `../x` in what encloses it, `/x` in the whole payload,
`@` is the name under which `{}` found the record, and `=text` is that text itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from dataloader.pipelines.toolkit.errors import DecodeError
from dataloader.pipelines.toolkit.rejects import Rejects
from dataloader.pipelines.toolkit.times import TimeReader

T = TypeVar("T")

MOSCOW = ZoneInfo("Europe/Moscow")
COLUMNS = ("open", "high", "low", "close", "volume")
_MAX_LISTED_KEYS = 8
_SUFFIXES = {"": 1, "%": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NULL_TEXTS = frozenset({"", "-", "–", "—", "n/a", "null", "nan"})
_SPACES = "\u0020\u00a0\u202f"
_MAX_NUMBER_LENGTH = 60


class Layout(StrEnum):
    """The layout of the records at the path `records`."""

    OBJECTS = "objects"  # each an object with its fields
    TABLE = "table"  # an object with the names in `columns` and a list of lists in `rows`
    PARALLEL = "parallel"  # an object with one list a field, of one length


class Grain(StrEnum):
    DAY = "day"
    MOMENT = "moment"


@dataclass(frozen=True)
class NumberFormat:
    """How a source writes numbers in texts: 82,500.10 · 92,5058 · 312.45K · -1.2% · null."""

    decimal: str = "."
    thousands: str = ","

    def parse(self, value: Any) -> Decimal | None:
        """Return the number, or None for a text that means no value. Raises ValueError."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            raise ValueError(f"a {type(value).__name__} where a number was expected")
        if not isinstance(value, str):
            return Decimal(str(value))
        text = value.strip().replace("\u2212", "-")  # a minus of typographers
        if text.lower() in _NULL_TEXTS:
            return None
        suffix = text[-1].upper() if text[-1].upper() in _SUFFIXES else ""
        digits = text[: len(text) - len(suffix)].strip()
        # Thousands come in groups of three digits, so the comma of 1,5 is not read as a thousands separator.
        separator = f"[{re.escape(self.thousands)}{_SPACES}]"
        pattern = rf"[+-]?(\d+|\d{{1,3}}({separator}\d{{3}})+)({re.escape(self.decimal)}\d+)?"
        if len(digits) > _MAX_NUMBER_LENGTH or not re.fullmatch(pattern, digits):
            raise ValueError(f"{value[:_MAX_NUMBER_LENGTH]!r} is no number")
        return Decimal(re.sub(separator, "", digits).replace(self.decimal, ".")) * _SUFFIXES[suffix]


@dataclass(frozen=True, kw_only=True)
class SourceDeclaration:
    """One source of the aggregator: its path, the layout of its payload, and the meaning of the fields."""

    name: str  # in args and in quote_section.source
    path: str  # behind the endpoint
    records: str
    layout: Layout = Layout.OBJECTS
    section: str
    code: str
    title: str  # the quote's name
    at: str
    grain: Grain
    time_reader: TimeReader = field(default_factory=TimeReader)
    number_format: NumberFormat = field(default_factory=NumberFormat)
    per: str = ""  # the field that says for how many units a price is
    values: Mapping[str, str]  # column → field, of open, high, low, close, volume
    measures: Mapping[str, str] = field(default_factory=dict)  # further measures → field


class UnknownShape(DecodeError):
    """A payload that does not match its source's declaration."""


@dataclass(frozen=True)
class QuoteValue:
    """One record of a source, as columns of our tables."""

    section: str
    code: str
    title: str
    grain: Grain
    quoted_at: datetime  # in Moscow
    quoted_on: date
    values: Mapping[str, Decimal | None]
    measures: Mapping[str, Decimal | None]


@dataclass(frozen=True)
class _Node:
    """A value in the payload and its path."""

    value: Any
    path: str = ""  # for people: data.rows[3]
    name: str = ""
    parent: _Node | None = None

    @property
    def root(self) -> Any:
        return self.value if self.parent is None else self.parent.root

    def field(self, name: str, value: Any) -> _Node:
        return _Node(value, f"{self.path}.{name}" if self.path else name, name, self)

    def item(self, number: int, value: Any) -> _Node:
        return _Node(value, f"{self.path}[{number}]", parent=self)

    def require(self, kind: type[T]) -> T:
        if not isinstance(self.value, kind):
            expected = "a list" if kind is list else "an object"
            raise UnknownShape(f"{self.path or 'the payload'} should be {expected}; {self.describe()}")
        return self.value

    def describe(self) -> str:
        if not isinstance(self.value, dict):
            return f"it is a {type(self.value).__name__}"
        names = list(map(str, self.value))
        return f"it has {', '.join(names[:_MAX_LISTED_KEYS])}{' …' if len(names) > _MAX_LISTED_KEYS else ''}"


def parse_payload(source: SourceDeclaration, payload: Any, rejects: Rejects) -> Iterator[QuoteValue]:
    """Yield the values of a payload. A bad record goes to the rejects; another shape raises `UnknownShape`."""
    try:
        for record in _find_records(source, payload):
            try:
                yield _parse_record(source, record)
            except ValueError as reason:
                rejects.add(f"{source.name} {record.path}", str(reason))
    except UnknownShape as error:
        raise UnknownShape(f"{source.name}: {error}") from error


def _find_records(source: SourceDeclaration, payload: Any) -> Iterator[_Node]:
    steps = source.records.replace("[]", ".[]").replace("{}", ".{}").strip(".")  # data.rows[] as data.rows.[]
    for node in _walk(_Node(payload), steps.split(".") if steps else []):
        match source.layout:
            case Layout.OBJECTS:
                yield node
            case Layout.TABLE:
                yield from _table_records(node)
            case Layout.PARALLEL:
                yield from _parallel_records(node, source.at)


def _walk(node: _Node, steps: Sequence[str]) -> Iterator[_Node]:
    if not steps:
        yield node
        return
    step, rest = steps[0], steps[1:]
    if step == "[]":
        for number, item in enumerate(node.require(list)):
            yield from _walk(node.item(number, item), rest)
    elif step == "{}":
        for name, item in node.require(dict).items():
            yield from _walk(node.field(name, item), rest)
    elif step in node.require(dict):
        yield from _walk(node.field(step, node.value[step]), rest)
    else:
        raise UnknownShape(f"there is no {node.field(step, None).path}; {node.describe()}")


def _table_records(node: _Node) -> Iterator[_Node]:
    table = node.require(dict)
    columns, rows = table.get("columns"), table.get("rows")
    if not isinstance(rows, list) or not isinstance(columns, list) or not all(isinstance(n, str) for n in columns):
        raise UnknownShape(f"{node.path} should have columns and rows; {node.describe()}")
    for number, row in enumerate(rows):
        fits = isinstance(row, list) and len(row) == len(columns)
        record = dict(zip(columns, row, strict=True)) if fits else row
        yield replace(node.field("rows", rows).item(number, record), parent=node)


def _parallel_records(node: _Node, time_field: str) -> Iterator[_Node]:
    lists = {name: item for name, item in node.require(dict).items() if isinstance(item, list)}
    lengths = {name: len(item) for name, item in lists.items()}
    if time_field not in lists or len(set(lengths.values())) > 1:
        wanted = f"lists of one length, {time_field!r} among them"
        raise UnknownShape(f"{node.path} should have {wanted}; it has {lengths}")
    for number in range(lengths[time_field]):
        yield node.item(number, {name: item[number] for name, item in lists.items()})


def _parse_record(source: SourceDeclaration, record: _Node) -> QuoteValue:
    if not isinstance(record.value, dict):
        raise ValueError(f"a {type(record.value).__name__} where a record was expected")
    quoted_at, quoted_on = _parse_time(source, record)
    units = _parse_amount(source, record, source.per) if source.per else Decimal(1)
    if not units:
        raise ValueError(f"{source.per!r} is {units}, and a price cannot be for that many units")
    values = {column: _parse_amount(source, record, path) for column, path in source.values.items()}
    if all(value is None for value in values.values()):
        raise ValueError(f"it has no value in {', '.join(source.values.values())}")
    return QuoteValue(
        section=_required_text(record, source.section),
        code=_required_text(record, source.code),
        title=_required_text(record, source.title),
        grain=source.grain,
        quoted_at=quoted_at,
        quoted_on=quoted_on,
        values={
            column: value if value is None or column == "volume" or units == 1 else value / units
            for column, value in values.items()
        },
        measures={name: _parse_amount(source, record, path) for name, path in source.measures.items()},
    )


def _parse_time(source: SourceDeclaration, record: _Node) -> tuple[datetime, date]:
    """Return time and day: a day as the source states it, a moment converted to Moscow."""
    instant = source.time_reader.read(_lookup(record, source.at))
    if source.grain is Grain.DAY:
        day = instant.astimezone(source.time_reader.written_in or source.time_reader.zone).date()
        return datetime.combine(day, time(), MOSCOW), day
    moment = instant.astimezone(MOSCOW)
    return moment, moment.date()


def _parse_amount(source: SourceDeclaration, record: _Node, path: str) -> Decimal | None:
    try:
        return source.number_format.parse(_lookup(record, path))
    except ValueError as error:
        raise ValueError(f"{path!r}: {error}") from error


def _required_text(record: _Node, path: str) -> str:
    value = _lookup(record, path)
    if isinstance(value, bool) or not isinstance(value, str | int) or str(value).strip() == "":
        raise ValueError(f"{path!r} is {value!r}, and should be a text")
    return str(value).strip()


def _lookup(record: _Node, path: str) -> Any:
    """Return the value of a field, or None."""
    if path.startswith("="):
        return path[1:]
    if path == "@":
        return record.name
    at: Any = record.value
    if path.startswith("/"):
        at, path = record.root, path[1:]
    outer = record.parent
    while path.startswith("../"):
        while outer is not None and isinstance(outer.value, list):  # a list encloses its items, and has no fields
            outer = outer.parent
        at, path, outer = (None, path[3:], None) if outer is None else (outer.value, path[3:], outer.parent)
    for name in path.split("."):
        at = at.get(name) if isinstance(at, dict) else None
    return at
