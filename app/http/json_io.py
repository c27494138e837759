"""Strict JSON: requests may hold only what PostgreSQL and other readers can keep; responses encode our types."""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from uuid import UUID

MAX_NUMBER_DIGITS = 300
MAX_JSON_DEPTH = 64
MAX_ERRORS = 20  # a hostile body must not get a response as long as itself

_SIMPLE_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class InvalidJson(Exception):
    """The body is not JSON; the message names the position."""


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one field of a request, and what would be valid."""

    field: str
    message: str


@dataclass(frozen=True)
class ParsedJson:
    value: Any
    errors: tuple[FieldError, ...] = ()


@dataclass(frozen=True)
class _RejectedNumber:
    """Takes the place of a number that is rejected."""

    reason: str


class _DuplicateKeys(dict[str, Any]):
    """An object with duplicate keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.duplicate_keys = tuple(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)


class _StrictDecoder(threading.local):
    """Decodes JSON and records whether the result must be searched for rejected values. Each thread has one."""

    def __init__(self) -> None:
        self.needs_check = False
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_constant=self._constant,
            parse_float=self._float,
            parse_int=self._int,
        )

    def decode(self, text: str) -> Any:
        self.needs_check = False
        return self._decoder.decode(text)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        tree = dict(pairs)
        if len(tree) == len(pairs):
            return tree
        self.needs_check = True
        return _DuplicateKeys(pairs)

    def _constant(self, name: str) -> Any:
        return self._reject(f"{name} is not a JSON number; use null or a string")

    def _float(self, text: str) -> Any:
        number = float(text)
        if number - number == 0:  # finite
            return number
        return self._reject("a number beyond ±1.8e308 cannot be stored; use a string")

    def _int(self, text: str) -> Any:
        digits = len(text.lstrip("-"))
        if digits > MAX_NUMBER_DIGITS:
            return self._reject(f"an integer of {digits} digits; at most {MAX_NUMBER_DIGITS} are allowed, use a string")
        return int(text)

    def _reject(self, reason: str) -> _RejectedNumber:
        self.needs_check = True
        return _RejectedNumber(reason)


_STRICT = _StrictDecoder()


def parse(body: bytes, *, max_depth: int) -> ParsedJson:
    """Parse a JSON text. Raises InvalidJson; rejected values are listed in `errors` of the result."""
    if not body.strip():
        raise InvalidJson("the body is empty; send a JSON object")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJson(f"the body is not UTF-8: byte {error.start} cannot be decoded") from None
    try:
        value = _STRICT.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidJson(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        return ParsedJson({}, (_too_deep(_field_exceeding_depth(text, max_depth), max_depth),))
    # NUL and lone surrogates occur as escapes only: other bodies need no search for them.
    if _STRICT.needs_check or "\\u" in text or _is_too_deep(value, max_depth):
        return ParsedJson(value, tuple(islice(_find_errors(value, "", 1, max_depth), MAX_ERRORS)))
    return ParsedJson(value)


def _is_too_deep(value: Any, max_depth: int) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []  # the containers of one depth
    for _ in range(max_depth):
        if not level:
            return False
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        ]
    return bool(level)


def join_path(parent: str, key: str | int) -> str:
    """The path of a field as callers write it: `args.rows[3].name`."""
    if isinstance(key, int):
        return f"{parent}[{key}]"
    if not _SIMPLE_KEY.fullmatch(key):
        key = json.dumps(key[:64])  # escapes characters that a response cannot hold
        return f"{parent}[{key}]" if parent else key
    return f"{parent}.{key}" if parent else key


def _find_errors(value: Any, path: str, depth: int, max_depth: int) -> Iterator[FieldError]:
    if isinstance(value, _RejectedNumber):
        yield FieldError(path or "body", value.reason)
    elif isinstance(value, str):
        yield from _text_errors(value, path)
    elif isinstance(value, dict | list):
        if depth > max_depth:
            yield _too_deep(path, max_depth)
            return
        if isinstance(value, _DuplicateKeys):
            for key in value.duplicate_keys:
                yield FieldError(join_path(path, key), "is a duplicate key of one object; send it once")
        items: Iterable[tuple[str | int, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            item_path = join_path(path, name)
            if isinstance(name, str):
                yield from _text_errors(name, item_path)
            yield from _find_errors(item, item_path, depth + 1, max_depth)


def _text_errors(text: str, path: str) -> Iterator[FieldError]:
    if "\0" in text:
        yield FieldError(path or "body", "contains the character NUL (\\u0000), which PostgreSQL cannot store")
    if _SURROGATE.search(text):
        yield FieldError(
            path or "body", "contains half a surrogate pair (\\ud800 to \\udfff), which is not a character"
        )


def _too_deep(path: str, max_depth: int) -> FieldError:
    return FieldError(path or "body", f"is nested deeper than {max_depth} levels")


def _field_exceeding_depth(text: str, max_depth: int) -> str:
    """Find the top-level field whose nesting exceeds the limit, without recursion."""
    depth, name = 0, ""
    for token in _TOKEN.finditer(text):
        text_token = token.group()
        if text_token in ("{", "["):
            depth += 1
            if depth > max_depth:
                break
        elif text_token in ("}", "]"):
            depth -= 1
        elif depth == 1:
            name = text_token
    return join_path("", json.loads(name)) if name else ""


def dump_json(value: Any) -> str:
    try:
        return _encode(value)
    except ValueError:  # a jsonb number beyond the range of a float, written by another service
        return json.dumps(_replace_non_finite(json.loads(json.dumps(value, default=_default))))


def dump_body(value: Any) -> str:
    """Return the JSON body of a response, with a line feed, so that a shell's prompt begins on a new line."""
    return dump_json(value) + "\n"


def _default(value: Any) -> Any:
    """Encode times in UTC, UUIDs, and dataclasses as objects."""
    if isinstance(value, datetime):
        # Always UTC: the offsets of some old local times have seconds, which RFC 3339 does not allow.
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, UUID):
        return str(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "__dataclass_fields__"):
        return vars(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


_encode = json.JSONEncoder(default=_default, allow_nan=False).encode


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
