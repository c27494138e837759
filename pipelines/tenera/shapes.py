"""Declares what a source's payload looks like, and parses a payload by its declaration.

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

from pipelines.tenera.amounts import NumberFormat
from pipelines.toolkit.errors import BadTime, DecodeError
from pipelines.toolkit.rejects import Rejects
from pipelines.toolkit.times import TimeReader

MOSCOW = ZoneInfo("Europe/Moscow")
COLUMNS = ("open", "high", "low", "close", "volume")
_MAX_LISTED_KEYS = 8


class Layout(StrEnum):
    """The layout of the records at the path `records`."""

    OBJECTS = "objects"  # each an object with its fields
    TABLE = "table"  # an object with the names in `columns` and a list of lists in `rows`
    PARALLEL = "parallel"  # an object with one list a field, of one length


class Grain(StrEnum):
    DAY = "day"
    MOMENT = "moment"


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
    path: str  # for people: data.rows[3]
    name: str = ""
    parent: _Node | None = None

    @property
    def root(self) -> Any:
        return self.value if self.parent is None else self.parent.root


def parse_payload(source: SourceDeclaration, payload: Any, rejects: Rejects) -> Iterator[QuoteValue]:
    """Yield the values of a payload. A bad record goes to the rejects; another shape raises `UnknownShape`."""
    for record in _find_records(source, payload):
        try:
            yield _parse_record(source, record)
        except (_UnusableRecord, BadTime) as reason:
            rejects.add(f"{source.name} {record.path}", str(reason))


class _UnusableRecord(ValueError):
    """A record cannot be used."""


def _find_records(source: SourceDeclaration, payload: Any) -> Iterator[_Node]:
    for node in _walk(source, _Node(payload, ""), _split_path(source.records)):
        match source.layout:
            case Layout.OBJECTS:
                yield node
            case Layout.TABLE:
                yield from _table_records(source, node)
            case Layout.PARALLEL:
                yield from _parallel_records(source, node)


def _split_path(path: str) -> list[str]:
    """`data.rows[]` as data, rows, []."""
    return path.replace("[]", ".[]").replace("{}", ".{}").strip(".").split(".") if path else []


def _walk(source: SourceDeclaration, node: _Node, steps: Sequence[str]) -> Iterator[_Node]:
    if not steps:
        yield node
        return
    step, rest = steps[0], steps[1:]
    if step == "[]":
        for number, item in enumerate(_require_type(source, node, list)):
            yield from _walk(source, _Node(item, f"{node.path}[{number}]", parent=node), rest)
    elif step == "{}":
        for name, item in _require_type(source, node, dict).items():
            yield from _walk(source, _Node(item, _child_path(node, name), name, node), rest)
    else:
        inside = _require_type(source, node, dict)
        if step not in inside:
            raise UnknownShape(f"{source.name}: there is no {_child_path(node, step)}; {_describe(node)}")
        yield from _walk(source, _Node(inside[step], _child_path(node, step), step, node), rest)


def _require_type(source: SourceDeclaration, node: _Node, kind: type) -> Any:
    if not isinstance(node.value, kind):
        expected = "a list" if kind is list else "an object"
        raise UnknownShape(f"{source.name}: {node.path or 'the payload'} should be {expected}; {_describe(node)}")
    return node.value


def _table_records(source: SourceDeclaration, node: _Node) -> Iterator[_Node]:
    table = _require_type(source, node, dict)
    columns, rows = table.get("columns"), table.get("rows")
    if not isinstance(rows, list) or not isinstance(columns, list) or not all(isinstance(n, str) for n in columns):
        raise UnknownShape(f"{source.name}: {node.path} should have columns and rows; {_describe(node)}")
    for number, row in enumerate(rows):
        fits = isinstance(row, list) and len(row) == len(columns)
        record = dict(zip(columns, row, strict=True)) if fits else row
        yield _Node(record, _child_path(node, f"rows[{number}]"), parent=node)


def _parallel_records(source: SourceDeclaration, node: _Node) -> Iterator[_Node]:
    lists = {name: item for name, item in _require_type(source, node, dict).items() if isinstance(item, list)}
    lengths = {name: len(item) for name, item in lists.items()}
    if source.at not in lists or len(set(lengths.values())) > 1:
        wanted = f"lists of one length, {source.at!r} among them"
        raise UnknownShape(f"{source.name}: {node.path} should have {wanted}; it has {lengths}")
    for number in range(lengths[source.at]):
        fields = {name: item[number] for name, item in lists.items()}
        yield _Node(fields, f"{node.path}[{number}]", parent=node)


def _child_path(node: _Node, name: str) -> str:
    return f"{node.path}.{name}" if node.path else name


def _describe(node: _Node) -> str:
    if not isinstance(node.value, dict):
        return f"it is a {type(node.value).__name__}"
    names = list(node.value)
    return f"it has {', '.join(map(str, names[:_MAX_LISTED_KEYS]))}{' …' if len(names) > _MAX_LISTED_KEYS else ''}"


def _parse_record(source: SourceDeclaration, record: _Node) -> QuoteValue:
    if not isinstance(record.value, dict):
        raise _UnusableRecord(f"a {type(record.value).__name__} where a record was expected")
    quoted_at, quoted_on = _parse_time(source, record)
    units = _parse_amount(source, record, source.per) if source.per else Decimal(1)
    if not units:
        raise _UnusableRecord(f"{source.per!r} is {units}, and a price cannot be for that many units")
    values = {column: _parse_amount(source, record, path) for column, path in source.values.items()}
    if all(value is None for value in values.values()):
        raise _UnusableRecord(f"it has no value in {', '.join(source.values.values())}")
    return QuoteValue(
        section=_required_text(record, source.section),
        code=_required_text(record, source.code),
        title=_required_text(record, source.title),
        grain=source.grain,
        quoted_at=quoted_at,
        quoted_on=quoted_on,
        values={column: _per_unit(value, units, column) for column, value in values.items()},
        measures={name: _parse_amount(source, record, path) for name, path in source.measures.items()},
    )


def _per_unit(value: Decimal | None, units: Decimal, column: str) -> Decimal | None:
    return value if value is None or column == "volume" or units == 1 else value / units


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
        raise _UnusableRecord(f"{path!r}: {error}") from error


def _required_text(record: _Node, path: str) -> str:
    value = _lookup(record, path)
    if isinstance(value, bool) or not isinstance(value, str | int) or str(value).strip() == "":
        raise _UnusableRecord(f"{path!r} is {value!r}, and should be a text")
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
