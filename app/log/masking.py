"""What must not be seen in a log: hidden by the name of its field, by its shape in a text, and by its value."""

from __future__ import annotations

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
# A shorter secret is no secret, and hiding it would hide half of every line.
_SHORTEST_SECRET = 4
_DEEPEST = 12
_INT_LIMIT = 2**63  # JSON readers, and Python's own int-to-text limit, end somewhere beyond

_SECRET_NAME = re.compile(
    r"passw|passphrase|(?:^|_)pwd|(?:^|_)pass$|secret|(?:^|_)token$|api_?key|access_?key|private_?key"
    r"|authori[sz]ation$|(?:^|_)auth$|credential|cookie|(?:^|_)dsn$"
)
_VALUE = r"""(?:[bru]{0,2}"(?:\\.|[^"\\])*"|[bru]{0,2}'(?:\\.|[^'\\])*'|(?:\\.|(?!&\w+=)\S)+)"""
_OUR_KEYS = (re.compile(r"\b(dlk_[0-9a-f]{12})_[0-9a-f]{8,}"), rf"\1_{MASK}")
_SHAPES = (
    _OUR_KEYS,
    # user:password@ of a URL, up to the last @ as passwords may hold a raw one; host:port/ is let through
    (re.compile(r"(://[^\s:/@]{0,256}):(?!\d{1,5}(?:[/?#,\s]|$))\S{0,512}@"), rf"\1:{MASK}@"),
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
# Of the shapes each has one of these in it, in any case of letters; most texts have none, and are spared the search.
_MOST_PARTS = 1_000  # of one value in a line; a mapping may have no end
_MARK = re.compile("://|cookie|authori|bearer|passw|passphrase|secret|pwd|token|key|dlk_")


# What a driver, a URL or a command line brings into an error. Narrower than the shapes of log lines: an error is told
# to whoever has to mend it, and "unexpected token: x" is no secret.
_IN_ERRORS = (
    (re.compile(r"(://[^\s:/@]{0,256}):(?!\d{1,5}(?:[/?#,\s]|$))\S{0,512}@"), rf"\1:{MASK}@"),
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
_MOST_HIDDEN = 2_000  # of those that nobody holds
_DEEPEST_JSON = 200


class _Hidden:
    """Values that are hidden from every log of this process from some moment on. Like logging's own registry it is as
    wide as the process, since lines are said by threads and libraries that know nothing of each other.

    What a run was given stays hidden for as long as anything of that run is left, a thread that has run away included.
    Of what nobody holds any more the latest are kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over: deque[list[str]] = deque()  # of holders that are gone: garbage is collected wherever it pleases
        self._held: Counter[str] = Counter()  # by how many runs; under the lock, as the next
        self._others: dict[str, None] = {}  # the latest last
        self.forms: tuple[str, ...] = ()  # the longest first; replaced whole

    def add(self, forms: Iterable[str], holder: object | None) -> None:
        new = [form for form in dict.fromkeys(forms) if len(form) >= _SHORTEST_SECRET]
        if not new:
            return
        with self._lock:
            if holder is None:
                self._keep(new)
            else:
                self._held.update(new)
                weakref.finalize(holder, self._over.append, new).atexit = False
            while self._over:
                self._let_go(self._over.popleft())
            if (known := self._held.keys() | self._others.keys()) != set(self.forms):
                self.forms = tuple(sorted(known, key=len, reverse=True))

    def _let_go(self, forms: list[str]) -> None:
        self._held.subtract(forms)
        self._held = +self._held  # without those that nobody holds
        self._keep(form for form in forms if form not in self._held)

    def _keep(self, forms: Iterable[str]) -> None:
        for form in forms:
            self._others.pop(form, None)
            self._others[form] = None
        for oldest in list(self._others)[:-_MOST_HIDDEN]:
            del self._others[oldest]


_HIDDEN = _Hidden()


def hide(forms: Iterable[str], holder: object | None = None) -> None:
    """Let no line of any log of this process show these from now on: for as long as `holder` is there, and for some
    time after."""
    _HIDDEN.add(forms, holder)


def scrub(text: str) -> str:
    """An error or a traceback without passwords, tokens and keys."""
    text = _of_the_process().known(text)
    for shape, replacement in (*_IN_ERRORS, _OUR_KEYS):
        text = shape.sub(replacement, text)
    return text


class Masker:
    """Hides secrets: by name and shape always, by value those it was told of."""

    def __init__(self, secrets: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self._more = tuple(names)  # words that make a name a secret's, beside those that everybody knows
        known = {form for secret in secrets if len(secret) >= _SHORTEST_SECRET for form in _forms(secret)}
        # The longest first: one secret may be a part of another.
        self._known = sorted(known, key=len, reverse=True)

    def text(self, text: str) -> str:
        return _shapeless(self.known(text))

    def known(self, text: str) -> str:
        """Without the values it was told of, and those that the process has hidden since."""
        for secret in _HIDDEN.forms:
            text = text.replace(secret, MASK)
        for secret in self._known:
            text = text.replace(secret, MASK)
        return text

    def value(self, value: Any) -> Any:
        """The value as plain JSON data without its secrets. Never raises, whatever it is given."""
        return self._plain(value, ())

    def fields(self, fields: Mapping[Any, Any]) -> dict[str, Any]:
        return self._mapping(fields, ())

    def lets_through(self, fields: Mapping[str, Any]) -> bool:
        """Whether `fields` would give these back as they are, all of them plain ASCII: asked once for a whole line,
        that is a quarter of looking at each. False: they may have to be changed."""
        texts = []
        for value in fields.values():
            kind = type(value)
            if kind is str:
                texts.append(value)
            elif kind is int or kind is float:
                if not -_INT_LIMIT < value < _INT_LIMIT:
                    return False
            elif value is not None and kind is not bool:
                return False
        names, told = _ordinary(tuple(fields)), "\n".join(texts)
        if names is None or not told.isascii() or "\x7f" in told or _is_marked(told):
            return False
        if self._more and any(self._is_secret(name, value) for name, value in fields.items()):
            return False
        return not any(form in told or form in names for known in (_HIDDEN.forms, self._known) for form in known)

    def _plain(self, value: Any, within: tuple[int, ...]) -> Any:
        if type(value) is str:  # as nearly all are
            return self.text(value)
        match value:
            case None | bool():
                return value
            case int() | float():
                return value if abs(value) < _INT_LIMIT and math.isfinite(value) else self.text(_told(value))
            case str():
                return self.text(value)
            case Mapping() | list() | tuple() | set() | frozenset():
                if id(value) in within or len(within) >= _DEEPEST:
                    return "…"
                within = (*within, id(value))
                return (
                    self._mapping(value, within)
                    if isinstance(value, Mapping)
                    else [self._plain(part, within) for part in islice(value, _MOST_PARTS)]
                )
            case _:
                return self.text(_told(value))

    def _mapping(self, fields: Mapping[Any, Any], within: tuple[int, ...]) -> dict[str, Any]:
        told = {}
        for key, value in islice(fields.items(), _MOST_PARTS):
            name = key if isinstance(key, str) else _told(key)
            it = MASK if self._is_secret(name, value) else self._plain(value, within)
            told[_shapeless_name(self.known(name))] = it
        return told

    def _is_secret(self, name: str, value: Any) -> bool:
        if value is None or isinstance(value, bool):  # whether there is one at all may be told
            return False
        return _names_a_secret(name) or (bool(self._more) and any(word in name.lower() for word in self._more))

    def concealed(self, value: Any, depth: int = 0) -> Any:
        """JSON data with the values of secret names hidden, and nothing else; a reference to a secret is none."""
        if depth < _DEEPEST_JSON and isinstance(value, Mapping):
            if value.keys() == {"$secret"}:
                return value
            return {
                key: MASK
                if self._is_secret(key, it) and not (isinstance(it, Mapping) and it.keys() == {"$secret"})
                else self.concealed(it, depth + 1)
                for key, it in value.items()
            }
        if depth < _DEEPEST_JSON and isinstance(value, list):
            return [self.concealed(it, depth + 1) for it in value]
        return value


def conceal(value: Any) -> Any:
    """Args, progress or results for somebody's eyes: the same, but for what stands under the name of a secret."""
    return _of_the_process().concealed(value)


def mask(value: Any) -> Any:
    """The value as plain JSON data without its secrets, those named to `set_up` among them."""
    return _of_the_process().value(value)


def _of_the_process() -> Masker:
    # Python's logging registry is the one thing that is as wide as the process already.
    for handler in logging.getLogger().handlers:
        masker = getattr(handler.formatter, "masker", None)
        if isinstance(masker, Masker):
            return masker
    return Masker()


def _is_marked(text: str) -> bool:
    """Whether one of the shapes may be in an ASCII text; outside ASCII further letters pass for an s or a k."""
    return _MARK.search(text.lower()) is not None


def _shapeless(text: str) -> str:
    if text.isascii():
        return _without_shapes(text) if _is_marked(text) else text
    # Lone surrogates cannot be written to a file.
    return _without_shapes(text).encode("utf-8", "backslashreplace").decode()


# The same few names come again with every line. What a secret's value is may change at any time, and is not kept.
_shapeless_name = lru_cache(maxsize=1024)(_shapeless)


def _without_shapes(text: str) -> str:
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return text


def _forms(secret: str) -> Iterable[str]:
    """A secret as it is, as a URL spells it, and as a traceback quotes it."""
    return {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}


@lru_cache(maxsize=1024)
def _names_a_secret(name: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
    return _SECRET_NAME.search(words) is not None


@lru_cache(maxsize=1024)
def _ordinary(names: tuple[Any, ...]) -> str | None:
    """Fields' names that are told as they are, as is what stands under them, all in one text. None: some are not."""
    if len(names) > _MOST_PARTS or not all(type(name) is str and name.isascii() for name in names):
        return None
    same = all(not _names_a_secret(name) and _shapeless(name) == name for name in names)
    return "\n".join(names) if same else None


def _told(value: Any) -> str:
    try:
        match value:
            case date() | time():
                return value.isoformat()
            case BaseException():
                return f"{type(value).__name__}: {value}"
            case _:
                return str(value)
    except Exception:  # anybody's __str__ may be run here, and a log line is no reason to fail
        return f"<{type(value).__name__} that cannot be shown>"
