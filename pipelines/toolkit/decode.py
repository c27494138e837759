"""Records out of what a source sent: JSON Lines, CSV, XML.

A bad record is named by its line and goes to the `Rejects`; where none are given, it ends the reading.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import count
from operator import itemgetter
from typing import Any
from xml.etree.ElementTree import Element, ParseError

import defusedxml
import orjson
from defusedxml import ElementTree

from pipelines.toolkit.errors import BadRecord, DecodeError, ExpandsTooMuch
from pipelines.toolkit.rejects import Rejects
from pipelines.toolkit.safepoint import SafePoint
from pipelines.toolkit.unpack import Bounds, Packing, Source, pieces

Record = dict[str, Any]

_BOM = codecs.BOM_UTF8
_SHOWN = 60  # bytes of a bad record
_LONGEST_NUMBER = 100  # digits; to reckon with a million of them takes minutes in which nothing else runs
_NUMBER = re.compile(r"[+-]?\d+(?:[.,]\d+)?")
_BLANKS = re.compile(r"(?<=\d)[ \u00a0\u2009\u202f](?=\d{3}(?:\D|$))")  # between groups of three digits


def json_lines(
    source: Source,
    *,
    packing: Packing = Packing.BY_CONTENT,
    bounds: Bounds | None = None,
    exact: bool = False,
    rejects: Rejects | None = None,
    ctx: SafePoint | None = None,
) -> Iterator[Record]:
    """The objects of a JSON Lines file, plain or packed, as a stream.

    `exact` keeps fractions as `Decimal` and whole numbers of any length, at a third of the speed; without it they are
    floats, and a whole number past 64 bits is one too.
    """
    numbered = numbered_json_lines(source, packing=packing, bounds=bounds, exact=exact, rejects=rejects, ctx=ctx)
    return map(itemgetter(1), numbered)


def numbered_json_lines(
    source: Source,
    *,
    packing: Packing = Packing.BY_CONTENT,
    bounds: Bounds | None = None,
    exact: bool = False,
    rejects: Rejects | None = None,
    ctx: SafePoint | None = None,
) -> Iterator[tuple[int, Record]]:
    """The same, each object with the number of its line: for whoever finds a fault in an object that is sound JSON."""
    bounds = bounds or Bounds()
    loads = _exact_loads if exact else orjson.loads
    found = pieces(source, packing=packing, bounds=bounds, ctx=ctx)
    for first, lines in _line_blocks(found, bounds, rejects):
        try:
            records = list(map(loads, lines))
        except (ValueError, RecursionError):
            yield from _one_by_one(first, lines, loads, rejects)
            continue
        if set(map(type, records)) <= {dict}:
            yield from zip(count(first), records)
        else:
            yield from _one_by_one(first, lines, loads, rejects)


def _exact_loads(line: bytes) -> Any:
    return json.loads(line, parse_float=Decimal, parse_constant=_no_number)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def _one_by_one(
    first: int, lines: Sequence[bytes], loads: Any, rejects: Rejects | None
) -> Iterator[tuple[int, Record]]:
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            record = loads(line)
        except (ValueError, RecursionError) as error:
            _reject(rejects, number, f"{error}: {_shown(line)}")
            continue
        if isinstance(record, dict):
            yield number, record
        else:
            _reject(rejects, number, f"a {type(record).__name__} where an object was expected: {_shown(line)}")


def _reject(rejects: Rejects | None, line: int, reason: str) -> None:
    if rejects is None:
        raise BadRecord(line, reason)
    rejects.add(f"line {line}", reason)


def _shown(line: bytes) -> str:
    return repr(line[:_SHOWN].decode(errors="replace")) + ("…" if len(line) > _SHOWN else "")


def _line_blocks(found: Iterable[bytes], bounds: Bounds, rejects: Rejects | None) -> Iterator[tuple[int, list[bytes]]]:
    """Whole lines without their ends, a piece's worth at a time, with the number of the first."""
    number = 1
    rest = b""
    too_long = False  # the line that is coming is past its bound, and is passed over up to its end
    for piece in _without_bom(found):
        *lines, last = piece.split(b"\n")
        if lines:
            lines[0] = rest + lines[0]
            rest = b""
            if too_long:
                _reject_line(rejects, number, bounds)
                number, lines, too_long = number + 1, lines[1:], False
            yield from _within_bounds(number, lines, bounds, rejects)
            number += len(lines)
        rest = b"" if too_long else rest + last
        too_long = too_long or len(rest) > bounds.line_bytes
    if too_long:
        _reject_line(rejects, number, bounds)
    elif rest:
        yield number, [rest]


def _within_bounds(
    first: int, lines: list[bytes], bounds: Bounds, rejects: Rejects | None
) -> Iterator[tuple[int, list[bytes]]]:
    while lines and max(map(len, lines)) > bounds.line_bytes:
        at = next(n for n, line in enumerate(lines) if len(line) > bounds.line_bytes)
        yield first, lines[:at]
        _reject_line(rejects, first + at, bounds)
        first, lines = first + at + 1, lines[at + 1 :]
    yield first, lines


def _reject_line(rejects: Rejects | None, number: int, bounds: Bounds) -> None:
    _reject(rejects, number, f"longer than the {bounds.line_bytes} bytes that Bounds allow")


def _without_bom(found: Iterable[bytes]) -> Iterator[bytes]:
    remaining = iter(found)
    start = b""
    for piece in remaining:
        start += piece
        if len(start) >= len(_BOM):
            break
    yield start.removeprefix(_BOM)
    yield from remaining


def csv_records(
    source: Source,
    *,
    encoding: str = "utf-8",
    delimiter: str = ",",
    columns: Sequence[str] | None = None,
    packing: Packing = Packing.BY_CONTENT,
    bounds: Bounds | None = None,
    rejects: Rejects | None = None,
    ctx: SafePoint | None = None,
) -> Iterator[dict[str, str]]:
    """The rows of a CSV file by column name: `columns`, or those of its first line.

    A field holds at most 128 KB. Any encoding will do that writes a line end as ASCII does.
    """
    bounds = bounds or Bounds()
    if "\n".encode(encoding) != b"\n":
        raise DecodeError(f"a CSV file in {encoding} cannot be read line by line; convert it to UTF-8 first")
    found = pieces(source, packing=packing, bounds=bounds, ctx=ctx)
    lines = _TextLines(_line_blocks(found, bounds, rejects), encoding)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header = tuple(columns) if columns is not None else _header(reader, lines)
    while True:
        begin = lines.number + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            _reject(rejects, begin, str(error))
            continue
        if row is None:
            return
        if lines.undecodable:
            _reject(rejects, lines.undecodable.pop(), f"not in {encoding}")
            lines.undecodable.clear()
        elif len(row) == len(header):
            yield dict(zip(header, row, strict=True))
        elif row:  # a blank line is no record
            _reject(rejects, begin, f"{len(row)} fields where {len(header)} were expected")


def _header(reader: Iterator[list[str]], lines: _TextLines) -> tuple[str, ...]:
    try:
        header = tuple(name.strip() for name in next(reader, []))
    except csv.Error as error:
        raise DecodeError(f"the first line cannot be read: {error}") from error
    if len(set(header)) < len(header) or not all(header) or lines.undecodable:
        told = ", ".join(map(repr, header))
        raise DecodeError(f"the first line must name each column once, in the file's encoding, and names {told}")
    return header


class _TextLines:
    """Lines as text for the csv module. One that is not in the encoding is passed on for its commas, and noted."""

    def __init__(self, blocks: Iterator[tuple[int, list[bytes]]], encoding: str) -> None:
        self.number = 0  # of the line given last
        self.undecodable: list[int] = []
        self._encoding = encoding
        self._lines = ((number, line) for first, lines in blocks for number, line in enumerate(lines, first))

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        try:
            return line.decode(self._encoding) + "\n"
        except UnicodeDecodeError:
            self.undecodable.append(self.number)
            return line.decode("latin-1") + "\n"


def xml_root(source: bytes | Source, *, max_bytes: int = 64 * 1024**2, max_nodes: int = 1_000_000) -> Element:
    """The root of an XML document, in whatever encoding it declares. Entities and DTDs are refused: they are bombs.

    `max_nodes` bounds elements and attributes: of `<a/>` over and over, the tree is thirty times the document.
    """
    data = source if isinstance(source, bytes) else _whole(source, max_bytes)
    if len(data) > max_bytes:
        raise ExpandsTooMuch(f"the XML document has more than the {max_bytes} bytes allowed")
    if data.count(b"<") > 2 * max_nodes or data.count(b"=") > max_nodes:  # an element has two of the first
        raise ExpandsTooMuch(f"the XML document has more than the {max_nodes} elements and attributes allowed")
    try:
        root: Element = ElementTree.fromstring(data, forbid_dtd=True)
    except defusedxml.DefusedXmlException as error:
        raise DecodeError(f"the XML document declares entities or a DTD, which is not safe to read: {error}") from error
    except (ParseError, LookupError, ValueError) as error:  # the last two: an encoding it cannot read
        raise DecodeError(f"no XML document: {error}; it begins {_shown(data)}") from error
    return root


def _whole(source: Source, max_bytes: int) -> bytes:
    data = bytearray()
    for piece in pieces(source):
        data += piece
        if len(data) > max_bytes:
            break
    return bytes(data)


def decimal(text: str) -> Decimal:
    """A number as people write it: with a comma or a point, and perhaps blanks between the thousands."""
    plain = _BLANKS.sub("", text[: 4 * _LONGEST_NUMBER].strip())
    if len(plain) > _LONGEST_NUMBER or not _NUMBER.fullmatch(plain):
        raise DecodeError(f"{text[:_SHOWN]!r} is no number; expected one such as '1 234,56'")
    return Decimal(plain.replace(",", "."))
