"""JSON read the strict way: what PostgreSQL or the next reader could not take is refused, and named by its path."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

LONGEST_NUMBER = 300  # digits; what jsonb, and Python when it reads it back, bear with ease
MOST_FAULTS = 20  # enough to mend a request by; a hostile body does not get a report as long as itself

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class NotJson(Exception):
    """The bytes are no JSON at all; the message says where reading ended."""


@dataclass(frozen=True)
class FieldFault:
    """One thing wrong with one field of a request."""

    field: str
    message: str


@dataclass(frozen=True)
class Reading:
    value: Any
    faults: tuple[FieldFault, ...] = ()


@dataclass(frozen=True)
class _Refused:
    """Stands in the tree where a number was that cannot be taken."""

    why: str


class _Repeated(dict[str, Any]):
    """An object in which a key came twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.keys_twice = tuple(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)


@dataclass
class _Reader:
    """Builds the tree, and remembers whether anything in it must be looked for."""

    suspicious: bool = False
    decoder: json.JSONDecoder = field(init=False)

    def __post_init__(self) -> None:
        self.decoder = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_constant=self._constant,
            parse_float=self._float,
            parse_int=self._int,
        )

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        tree = dict(pairs)
        if len(tree) == len(pairs):
            return tree
        self.suspicious = True
        return _Repeated(pairs)

    def _constant(self, name: str) -> Any:
        return self._refuse(f"{name} is no JSON number; use null, or a text")

    def _float(self, text: str) -> Any:
        number = float(text)
        if number - number == 0:  # neither infinite nor NaN
            return number
        return self._refuse("a number past ±1.8e308 cannot be kept; use a text")

    def _int(self, text: str) -> Any:
        digits = len(text.lstrip("-"))
        if digits > LONGEST_NUMBER:
            return self._refuse(f"an integer of {digits} digits; at most {LONGEST_NUMBER} are kept, use a text")
        return int(text)

    def _refuse(self, why: str) -> _Refused:
        self.suspicious = True
        return _Refused(why)


def read(body: bytes, *, max_depth: int) -> Reading:
    """Read a JSON text. Raises `NotJson`; what is JSON and yet refused is told in the reading's faults."""
    if not body.strip():
        raise NotJson("the body is empty; send a JSON object")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson(f"the body is not UTF-8: byte {error.start} cannot be read") from None
    reader = _Reader()
    try:
        value = reader.decoder.decode(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"the body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        return Reading({}, (_too_deep(_deepest_field(text, max_depth), max_depth),))
    # A NUL or a lone surrogate can come in as an escape only, and depth needs brackets: most bodies need no walk.
    if reader.suspicious or "\\u" in text or text.count("[") + text.count("{") > max_depth:
        return Reading(value, tuple(islice(_faults(value, "", 1, max_depth), MOST_FAULTS)))
    return Reading(value)


def path_to(parent: str, key: str | int) -> str:
    """The field's name as a caller would write it: `args.rows[3].name`."""
    if isinstance(key, int):
        return f"{parent}[{key}]"
    if not _PLAIN_KEY.fullmatch(key):
        key = json.dumps(key[:64])  # escapes whatever could not be sent back
        return f"{parent}[{key}]" if parent else key
    return f"{parent}.{key}" if parent else key


def _faults(value: Any, path: str, depth: int, max_depth: int) -> Iterator[FieldFault]:
    if isinstance(value, _Refused):
        yield FieldFault(path or "body", value.why)
    elif isinstance(value, str):
        yield from _text_faults(value, path)
    elif isinstance(value, dict | list):
        if depth > max_depth:
            yield _too_deep(path, max_depth)
            return
        if isinstance(value, _Repeated):
            for twice in value.keys_twice:
                yield FieldFault(path_to(path, twice), "the key comes twice in one object; send it once")
        for key, item in _items(value):
            below = path_to(path, key)
            if isinstance(key, str):
                yield from _text_faults(key, below)
            yield from _faults(item, below, depth + 1, max_depth)


def _items(value: dict[str, Any] | list[Any]) -> Iterable[tuple[str | int, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value)


def _text_faults(text: str, path: str) -> Iterator[FieldFault]:
    if "\0" in text:
        yield FieldFault(
            path or "body", "holds the character NUL (\\u0000), which PostgreSQL cannot keep; leave it out"
        )
    if _SURROGATE.search(text):
        yield FieldFault(path or "body", "holds half a surrogate pair (\\ud800 to \\udfff), which is no character")


def _too_deep(path: str, max_depth: int) -> FieldFault:
    return FieldFault(path or "body", f"is nested deeper than {max_depth} levels")


def _deepest_field(text: str, max_depth: int) -> str:
    """The top-level field in which the nesting passes the limit, found without recursion."""
    depth, name = 0, ""
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in ("{", "["):
            depth += 1
            if depth > max_depth:
                break
        elif mark in ("}", "]"):
            depth -= 1
        elif depth == 1:
            name = mark
    return path_to("", json.loads(name)) if name else ""
