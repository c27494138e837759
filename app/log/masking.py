"""Masks secrets in logs: by the name of a field, by the shape of a text, and by value."""

from __future__ import annotations

import base64
import json
import logging
import math
import re
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from datetime import date, time
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"
# Masking a shorter value would mask parts of many lines.
_MIN_SECRET_LENGTH = 4
_MIN_SECRET_LINE_LENGTH = 8  # of one line of a secret
# Words of our own lines, paths and names. A setting that holds one as a secret does not mask it there; in a URL or
# under a secret's name it is masked all the same.
_OWN_WORDS = frozenset({
    "dataloader", "pipelines", "worker", "workers", "postgres", "postgresql", "database", "public", "default",
    "localhost", "development", "production",
})  # fmt: skip
_MAX_DEPTH = 12
_MAX_INT = 2**63  # JSON readers, and Python's own int-to-text limit, end somewhere beyond

_SECRET_NAME = re.compile(
    r"passw|passphrase|(?:^|_)pwd|(?:^|_)pass$|secret|(?:^|_)token$|api_?key|access_?key|private_?key"
    r"|authori[sz]ation$|(?:^|_)auth$|credential|cookie|(?:^|_)dsn$"
)
_VALUE = r"""(?:[bru]{0,2}"(?:\\.|[^"\\])*"|[bru]{0,2}'(?:\\.|[^'\\])*'|(?:\\.|(?!&\w+=)\S)+)"""
# user:password@ of a URL, up to the last @ as passwords may hold a raw one; host:port/ is let through. The pattern
# takes all up to the next blank, so that each character is read once; a password may be a token of any length.
_URL_PASSWORD = (
    re.compile(r"(://[^\s:/@]{0,256}):(?!\d{1,5}(?:[/?#,\s]|$))(\S*)"),
    lambda found: f"{found[1]}:{MASK}@{found[2].rpartition('@')[2]}" if "@" in found[2] else found[0],
)
# password=… of a URL's query, or of a connection string in the form of libpq or ODBC, where it may be PWD={…}
_PARAMETER_PASSWORD = (
    re.compile(
        r"""((?:^|[\s?&;])(?:(?:ssl)?password|pwd)\s{0,9}=\s{0,9})"""
        r"""(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\{(?:\}\}|[^{}])*\}|[^\s&;]+)""",
        re.IGNORECASE,
    ),
    rf"\1{MASK}",
)
_CONNECTION_STRING = re.compile(r"://|\b(?:host|hostaddr|user|uid|dbname|server|service)\s?=", re.IGNORECASE)
_OUR_KEYS = (re.compile(r"\b(dlk_[0-9a-f]{12})_[0-9a-f]{8,}"), rf"\1_{MASK}")
_SHAPES = (
    _OUR_KEYS,
    _URL_PASSWORD,
    (re.compile(r"""((?:set-)?cookie\\?["']?\s?[=:]\s?)[^\r\n]+""", re.IGNORECASE), rf"\1{MASK}"),
    (
        re.compile(r"""(authorization\\?["']?\s?[=:]\s?\\?["']?)(?:\w{1,20}\s)?[^\s"',]+""", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    (re.compile(r"(\bBearer\s)[\w.~+/=-]+", re.IGNORECASE), rf"\1{MASK}"),
    (
        re.compile(
            r"""((?:(?:passw|passphrase|secret)\w{0,16}|pwd|token|(?:api|access|private)[_-]?key)"""
            rf"""\\?["']?\s{{0,3}}[=:]\s{{0,3}}){_VALUE}""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
)
# Each shape contains one of these words, in any case; a text without any is not searched.
_MAX_PARTS = 1_000  # of one value in a line; a mapping may have no end
_SHAPE_MARKER = re.compile("://|cookie|authori|bearer|passw|passphrase|secret|pwd|token|key|dlk_")


# Secrets that drivers, URLs and command lines put into errors. Narrower than the shapes of log lines: "unexpected
# token: x" in an error is not a secret.
_ERROR_SHAPES = (
    _URL_PASSWORD,
    (re.compile(r"(\b(?:Bearer|Basic)\s)[\w.~+/=-]{8,}"), rf"\1{MASK}"),
    (
        re.compile(
            r"""((?:passw(?:or)?d|passphrase|\bpwd|secret|(?:api|access|private)[_-]?key|token)\w{0,16}"""
            rf"""(?:\s?=\s?|\\?["']\s?:\s?)){_VALUE}""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
)
_MAX_RETAINED_SECRETS = 2_000  # without a holder
_MAX_JSON_DEPTH = 200


class _SecretRegistry:
    """Values that are masked in every log of this process: lines come from any thread and library.

    The secrets of an attempt stay masked while any object of the attempt is alive. Of those without a holder the latest
    are kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._released: deque[list[str]] = deque()  # of dead holders: the garbage collector runs in any thread
        self._held_counts: Counter[str] = Counter()  # by how many runs; under the lock, as the next
        self._retained: dict[str, None] = {}  # the latest last
        self.forms: tuple[str, ...] = ()  # the longest first; replaced whole

    def add(self, forms: Iterable[str], holder: object | None) -> None:
        new = [form for form in dict.fromkeys(forms) if len(form) >= _MIN_SECRET_LENGTH]
        if not new:
            return
        with self._lock:
            if holder is None:
                self._retain(new)
            else:
                self._held_counts.update(new)
                weakref.finalize(holder, self._released.append, new).atexit = False
            while self._released:
                self._release(self._released.popleft())
            if (known := self._held_counts.keys() | self._retained.keys()) != set(self.forms):
                self.forms = tuple(sorted(known, key=len, reverse=True))

    def _release(self, forms: list[str]) -> None:
        self._held_counts.subtract(forms)
        self._held_counts = +self._held_counts  # without zero counts
        self._retain(form for form in forms if form not in self._held_counts)

    def _retain(self, forms: Iterable[str]) -> None:
        for form in forms:
            self._retained.pop(form, None)
            self._retained[form] = None
        for oldest in list(self._retained)[:-_MAX_RETAINED_SECRETS]:
            del self._retained[oldest]


_SECRETS = _SecretRegistry()


def register_secret(forms: Iterable[str], holder: object | None = None) -> None:
    """Mask these in every log of this process: while `holder` is alive, and for some time after."""
    _SECRETS.add(forms, holder)


def redact_text(text: str) -> str:
    """Mask passwords, tokens and keys in an error or a traceback."""
    text = _process_masker().mask_known(text)
    for shape, replacement in (*_ERROR_SHAPES, _OUR_KEYS):
        text = shape.sub(replacement, text)
    return text


class Masker:
    """Masks secrets by name, by shape, and by the values that it is created with."""

    def __init__(self, secrets: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self._extra_names = tuple(names)  # more words that mark a name as a secret's
        values = [secret for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH and secret not in _OWN_WORDS]
        known = {form for secret in values for form in secret_forms(secret)}
        # The longest first: one secret may be a part of another.
        self._known_forms = sorted(known, key=len, reverse=True)

    def mask_text(self, text: str) -> str:
        return _mask_shapes(self.mask_known(text))

    def mask_known(self, text: str) -> str:
        """Mask the values of this masker and those registered by the process."""
        for secret in _SECRETS.forms:
            text = text.replace(secret, MASK)
        for secret in self._known_forms:
            text = text.replace(secret, MASK)
        return text

    def mask_value(self, value: Any) -> Any:
        """Return the value as plain JSON data without its secrets. Never raises."""
        return self._mask_nested(value, ())

    def mask_fields(self, fields: Mapping[Any, Any]) -> dict[str, Any]:
        return dict(fields) if self._is_open(fields) else self._mask_mapping(fields, ())

    def _is_open(self, fields: Mapping[Any, Any]) -> bool:
        """Whether a line has only texts and numbers, and no secret: the usual case, for one search of it."""
        texts = []
        for name, value in fields.items():
            kind = type(value)
            if kind is str:
                texts.append(value)
            elif kind is int or kind is float:
                if not -_MAX_INT < value < _MAX_INT:
                    return False
            elif value is not None and kind is not bool:
                return False
            if type(name) is not str or not _is_open_name(name):
                return False
        text = "\n".join(texts)
        if not text.isascii() or _SHAPE_MARKER.search(text.lower()):
            return False
        line = "\n".join((*fields, text))
        names = "\n".join(fields).lower() if self._extra_names else ""
        return not any(form in line for form in (*_SECRETS.forms, *self._known_forms)) and not any(
            word in names for word in self._extra_names
        )

    def _mask_nested(self, value: Any, ancestors: tuple[int, ...]) -> Any:
        match value:
            case None | bool():
                return value
            case int() | float():
                return value if abs(value) < _MAX_INT and math.isfinite(value) else self.mask_text(_to_text(value))
            case str():
                return self.mask_text(value)
            case Mapping() | list() | tuple() | set() | frozenset():
                if id(value) in ancestors or len(ancestors) >= _MAX_DEPTH:
                    return "…"
                ancestors = (*ancestors, id(value))
                if isinstance(value, Mapping):
                    return self._mask_mapping(value, ancestors)
                return [self._mask_nested(part, ancestors) for part in islice(value, _MAX_PARTS)]
            case _:
                return self.mask_text(_to_text(value))

    def _mask_mapping(self, fields: Mapping[Any, Any], ancestors: tuple[int, ...]) -> dict[str, Any]:
        masked = {}
        for key, value in islice(fields.items(), _MAX_PARTS):
            name = key if isinstance(key, str) else _to_text(key)
            shown = MASK if self._is_secret(name, value) else self._mask_nested(value, ancestors)
            masked[_mask_name_shapes(self.mask_known(name))] = shown
        return masked

    def _is_secret(self, name: str, value: Any) -> bool:
        if value is None or isinstance(value, bool):  # its presence is not secret
            return False
        return _is_secret_name(name) or any(word in name.lower() for word in self._extra_names)

    def mask_secret_fields(self, value: Any, depth: int = 0) -> Any:
        """Mask the values under secret names and the passwords of addresses in JSON data.

        A reference to a secret is not one.
        """
        if isinstance(value, str):
            return mask_address_passwords(value)
        if depth == _MAX_JSON_DEPTH or _is_reference(value):
            return value
        if isinstance(value, list):
            return [self.mask_secret_fields(item, depth + 1) for item in value]
        if not isinstance(value, Mapping):
            return value
        return {
            name: MASK
            if self._is_secret(name, item) and not _is_reference(item)
            else self.mask_secret_fields(item, depth + 1)
            for name, item in value.items()
        }


def mask_secret_fields(value: Any) -> Any:
    """Mask secrets in args, progress or results that are shown to callers.

    Those are the values under secret names, and the passwords in URLs and connection strings under any name.
    """
    return _process_masker().mask_secret_fields(value)


def mask_address_passwords(text: str) -> str:
    """Mask only the password in each URL or connection string of a text."""
    if not _CONNECTION_STRING.search(text):
        return text
    for shape, replacement in (_URL_PASSWORD, _PARAMETER_PASSWORD):
        text = shape.sub(replacement, text)
    return text


def unmask(edited: Any, original: Any) -> Any:
    """Put the original values back where an edited text holds the mask of a secret."""
    if edited == MASK and original is not None:
        return original
    if isinstance(original, str) and isinstance(edited, str) and edited == mask_address_passwords(original):
        return original
    if isinstance(edited, dict) and isinstance(original, dict):
        return {name: unmask(value, original.get(name)) for name, value in edited.items()}
    if isinstance(edited, list) and isinstance(original, list):
        return _unmask_items(edited, original)
    return edited


def _unmask_items(edited: list[Any], original: list[Any]) -> list[Any]:
    """Items may have been added, removed or moved: each is that with the same shown value, else that of its place."""
    by_shown: dict[str, list[Any]] = {}
    shown = [repr(mask_secret_fields(item)) for item in original]
    for text, item in zip(shown, original, strict=True):
        by_shown.setdefault(text, []).append(item)
    items = []
    for at, value in enumerate(edited):
        text = repr(value)
        similar = by_shown.get(text, [])
        if (at < len(shown) and shown[at] == text) or (len(edited) == len(original) and not similar):
            items.append(unmask(value, original[at]))
        elif all(item == similar[0] for item in similar):
            items.append(unmask(value, similar[0] if similar else None))
        else:  # several have other secrets and look the same
            items.append(value)
    return items


def mask(value: Any) -> Any:
    """Return the value as plain JSON data without its secrets, also those that `set_up` was given."""
    return _process_masker().mask_value(value)


def _is_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() in ({"$secret"}, {"$result"})


def _process_masker() -> Masker:
    # Python's registry of loggers exists once in a process already.
    for handler in logging.getLogger().handlers:
        masker = getattr(handler.formatter, "masker", None)
        if isinstance(masker, Masker):
            return masker
    return Masker()


def _mask_shapes(text: str) -> str:
    # The marker is for ASCII: outside of it further letters match an s or a k.
    if text.isascii() and not _SHAPE_MARKER.search(text.lower()):
        return text
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return text.encode("utf-8", "backslashreplace").decode()  # lone surrogates cannot be written to a file


# The same few names come with every line. Values are not cached: which of them are secret may change at any time.
_mask_name_shapes = lru_cache(maxsize=1024)(_mask_shapes)


def secret_forms(secret: str) -> set[str]:
    """Return a secret as it is, line by line, and as in JSON, URLs, tracebacks and base64."""
    lines = (line.strip() for line in secret.splitlines())
    forms: set[str] = set()
    for text in (secret, *(line for line in lines if len(line) >= _MIN_SECRET_LINE_LENGTH)):
        in_json, in_json_utf8 = json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]
        in_base64 = base64.b64encode(text.encode()).decode().rstrip("=")
        forms |= {text, in_json, in_json_utf8, quote(text, safe=""), quote_plus(text), repr(text)[1:-1], in_base64}
    return {form for form in forms if len(form) >= _MIN_SECRET_LENGTH}


@lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
    return _SECRET_NAME.search(words) is not None


@lru_cache(maxsize=1024)
def _is_open_name(name: str) -> bool:
    return not _is_secret_name(name) and _mask_shapes(name) == name


def _to_text(value: Any) -> str:
    try:
        match value:
            case date() | time():
                return value.isoformat()
            case BaseException():
                return f"{type(value).__name__}: {value}"
            case _:
                return str(value)
    except Exception:  # of a foreign __str__
        return f"<{type(value).__name__} that cannot be shown>"
