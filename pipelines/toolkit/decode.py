"""Parses the records of a source: JSON Lines, CSV, XML.

A bad record is named by its line and goes to the `Rejects`; without them it is raised.
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

from dataloader.pipelines.toolkit.deprecation import renamed_keywords
from dataloader.pipelines.toolkit.errors import BadRecord, DecodeError, ExpandsTooMuch
from dataloader.pipelines.toolkit.rejects import Rejects
from dataloader.pipelines.toolkit.safepoint import SafePoint
from dataloader.pipelines.toolkit.unpack import Bounds, Compression, Source, pieces

Record = dict[str, Any]

_BOM = codecs.BOM_UTF8
_EXCERPT_LENGTH = 60  # bytes of a bad record
_MAX_NUMBER_LENGTH = 100  # digits; arithmetic with a million digits takes minutes and holds the GIL
_NUMBER = re.compile(r"[+-]?\d+(?:[.,]\d+)?")
_THOUSANDS_SPACES = re.compile(r"(?<=\d)[ \u00a0\u2009\u202f](?=\d{3}(?:\D|$))")  # between groups of three digits


@renamed_keywords(packing="compression")
def json_lines(
    source: Source,
    *,
    compression: Compression = Compression.BY_CONTENT,
    bounds: Bounds | None = None,
    exact: bool = False,
    rejects: Rejects | None = None,
    ctx: SafePoint | None = None,
) -> Iterator[Record]:
    """Yield the objects of a JSON Lines file, plain or compressed.

    `exact` keeps fractions as `Decimal` and whole numbers of any length, at a third of the speed; without it they are
    floats, and a whole number past 64 bits is one too.
    """
    numbered = numbered_json_lines(
        source, compression=compression, bounds=bounds, exact=exact, rejects=rejects, ctx=ctx
    )
    return map(itemgetter(1), numbered)


@renamed_keywords(packing="compression")
def numbered_json_lines(
    source: Source,
    *,
    compression: Compression = Compression.BY_CONTENT,
    bounds: Bounds | None = None,
    exact: bool = False,
    rejects: Rejects | None = None,
    ctx: SafePoint | None = None,
) -> Iterator[tuple[int, Record]]:
    """Like `json_lines`, each object with the number of its line, to report errors in objects that are valid JSON."""
    bounds = bounds or Bounds()
    loads = _load_json_exact if exact else orjson.loads
    chunks = pieces(source, compression=compression, bounds=bounds, ctx=ctx)
    for first, lines in _line_blocks(chunks, bounds, rejects):
        try:
            records = list(map(loads, lines))
        except (ValueError, RecursionError):
            yield from _load_lines(first, lines, loads, rejects)
            continue
        if set(map(type, records)) <= {dict}:
            yield from zip(count(first), records)
        else:
            yield from _load_lines(first, lines, loads, rejects)


def _load_json_exact(line: bytes) -> Any:
    return json.loads(line, parse_float=Decimal, parse_constant=_refuse_constant)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def _load_lines(
    first_number: int, lines: Sequence[bytes], loads: Any, rejects: Rejects | None
) -> Iterator[tuple[int, Record]]:
    for number, line in enumerate(lines, first_number):
        if not line.strip():
            continue
        try:
            record = loads(line)
        except (ValueError, RecursionError) as error:
            _reject_record(rejects, number, f"{error}: {_excerpt(line)}")
            continue
        if isinstance(record, dict):
            yield number, record
        else:
            _reject_record(rejects, number, f"a {type(record).__name__} where an object was expected: {_excerpt(line)}")


def _reject_record(rejects: Rejects | None, line: int, reason: str) -> None:
    if rejects is None:
        raise BadRecord(line, reason)
    rejects.add(f"line {line}", reason)


def _excerpt(line: bytes | bytearray) -> str:
    return repr(line[:_EXCERPT_LENGTH].decode(errors="replace")) + ("…" if len(line) > _EXCERPT_LENGTH else "")


def _line_blocks(chunks: Iterable[bytes], bounds: Bounds, rejects: Rejects | None) -> Iterator[tuple[int, list[bytes]]]:
    """Yield blocks of lines without their ends, each with the number of its first line."""
    number = 1
    for lines in _split_lines(chunks, bounds.line_bytes + len(_BOM) + 1):
        if number == 1:
            lines[0] = lines[0].removeprefix(_BOM)
        if max(map(len, lines)) <= bounds.line_bytes:
            yield number, lines
        else:
            for line_number, line in enumerate(lines, number):
                if len(line) <= bounds.line_bytes:
                    yield line_number, [line]
                else:
                    _reject_record(rejects, line_number, f"longer than the {bounds.line_bytes} bytes that Bounds allow")
        number += len(lines)


def _split_lines(chunks: Iterable[bytes], max_rest_bytes: int) -> Iterator[list[bytes]]:
    """Yield lists of whole lines. What is kept of a line across chunks is limited, and the rest of it dropped."""
    rest = b""
    for piece in chunks:
        *lines, last = piece.split(b"\n")
        if lines:
            lines[0] = rest + lines[0]
            rest = b""
            yield lines
        rest = (rest + last)[:max_rest_bytes]
    if rest:
        yield [rest]


@renamed_keywords(packing="compression")
def csv_records(
    source: Source,
    *,
    encoding: str = "utf-8",
    delimiter: str = ",",
    columns: Sequence[str] | None = None,
    compression: Compression = Compression.BY_CONTENT,
    bounds: Bounds | None = None,
    rejects: Rejects | None = None,
    ctx: SafePoint | None = None,
) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file by column name: `columns`, or those of its first line.

    A field holds at most 128 KB. The encoding must write a line end as ASCII does.
    """
    bounds = bounds or Bounds()
    if "\n".encode(encoding) != b"\n":
        raise DecodeError(f"a CSV file in {encoding} cannot be read line by line; convert it to UTF-8 first")
    chunks = pieces(source, compression=compression, bounds=bounds, ctx=ctx)
    lines = _TextLines(_line_blocks(chunks, bounds, rejects), encoding)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header = tuple(columns) if columns is not None else _read_header(reader, lines)
    while True:
        begin = lines.number + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            _reject_record(rejects, begin, str(error))
            continue
        if row is None:
            return
        if lines.undecodable:
            _reject_record(rejects, lines.undecodable.pop(), f"not in {encoding}")
            lines.undecodable.clear()
        elif len(row) == len(header):
            yield dict(zip(header, row, strict=True))
        elif row:  # a blank line is no record
            _reject_record(rejects, begin, f"{len(row)} fields where {len(header)} were expected")


def _read_header(reader: Iterator[list[str]], lines: _TextLines) -> tuple[str, ...]:
    try:
        header = tuple(name.strip() for name in next(reader, []))
    except csv.Error as error:
        raise DecodeError(f"the first line cannot be read: {error}") from error
    if len(set(header)) < len(header) or not all(header) or lines.undecodable:
        names = ", ".join(map(repr, header))
        raise DecodeError(f"the first line must name each column once, in the file's encoding, and names {names}")
    return header


class _TextLines:
    """Lines as text for the csv module. One that is not in the encoding is recorded, and decoded as Latin-1."""

    def __init__(self, blocks: Iterator[tuple[int, list[bytes]]], encoding: str) -> None:
        self.number = 0  # of the last line returned
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
    """Return the root of an XML document, in the encoding it declares. Entities and DTDs are refused as unsafe.

    `max_nodes` limits elements and attributes: the tree of many `<a/>` is thirty times as large as the document.
    """
    data = bytearray()
    for piece in (source,) if isinstance(source, bytes) else pieces(source):
        data += piece
        if len(data) > max_bytes:
            raise ExpandsTooMuch(f"the XML document has more than the {max_bytes} bytes allowed")
    if data.count(b"<") > 2 * max_nodes or data.count(b"=") > max_nodes:  # an element has two <
        raise ExpandsTooMuch(f"the XML document has more than the {max_nodes} elements and attributes allowed")
    try:
        root: Element = ElementTree.fromstring(data, forbid_dtd=True)
    except defusedxml.DefusedXmlException as error:
        raise DecodeError(f"the XML document declares entities or a DTD, which is not safe to read: {error}") from error
    except (ParseError, LookupError, ValueError) as error:  # the last two: an encoding it cannot read
        raise DecodeError(f"no XML document: {error}; it begins {_excerpt(data)}") from error
    return root


def decimal(text: str) -> Decimal:
    """Parse a number with a decimal comma or point, and with or without spaces between thousands."""
    plain = _THOUSANDS_SPACES.sub("", text[: 4 * _MAX_NUMBER_LENGTH].strip())
    if len(plain) > _MAX_NUMBER_LENGTH or not _NUMBER.fullmatch(plain):
        raise DecodeError(f"{text[:_EXCERPT_LENGTH]!r} is no number; expected one such as '1 234,56'")
    return Decimal(plain.replace(",", "."))
