"""Texts of the environment that mean more than a number, turned into values.

Each function raises ValueError with what would do; what was found is told by whoever asked.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from app.config import dsn

MAX_CONCURRENCY = 1000
MAX_NAME = 200
_DAY = 86_400
_SIZES = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}
_SPANS = {"minute": 60, "hour": 3600, "day": _DAY, "week": 7 * _DAY}
_SPAN_NAMES = {"hourly": 3600, "midnight": _DAY, "daily": _DAY, "weekly": 7 * _DAY}
_SMALLEST_FILE = 1024
_WORKERS_REMEDY = 'such a list would do: [{"queue": "etl.default", "concurrency": 2}]'


@dataclass(frozen=True)
class QueueWorkers:
    """How many threads of this process work on a queue."""

    queue: str
    concurrency: int


@dataclass(frozen=True)
class Rotation:
    """When a log file is put aside: at a size, or with each new period. Neither: never."""

    text: str
    max_bytes: int | None = None
    every_sec: int | None = None


def time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("an IANA time zone such as Europe/Moscow or UTC would do") from None
    return name


def identifier(name: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name) or name.startswith("pg_"):
        raise ValueError(
            "a plain lower-case identifier would do: letters, digits and _, "
            "not starting with a digit or pg_, at most 63 characters"
        )
    return name


def file_name(name: str) -> str:
    if PurePath(name).name != name or name in (".", "..") or not name.isprintable():
        raise ValueError("a file name without a folder would do")
    return name


def rotation(value: str | Rotation) -> Rotation:
    """`10 MB`, `6 hours`, `1 day`, `hourly`, `daily`, `midnight`, `weekly` or `never`."""
    if isinstance(value, Rotation):
        return value
    text = " ".join(value.lower().split())
    if text == "never":
        return Rotation(text)
    if text in _SPAN_NAMES:
        return Rotation(text, every_sec=_SPAN_NAMES[text])
    if match := re.fullmatch(r"([0-9]{1,9}) ?([a-z]+)", text):
        number, unit = int(match[1]), match[2]
        if unit in _SIZES and number * _SIZES[unit] >= _SMALLEST_FILE:
            return Rotation(f"{number} {unit.upper()}", max_bytes=number * _SIZES[unit])
        if number and unit.removesuffix("s") in _SPANS:
            return Rotation(text, every_sec=number * _SPANS[unit.removesuffix("s")])
    raise ValueError(
        "a size of at least 1 KB such as '10 MB', a period such as '6 hours' or '1 day', "
        "'midnight', 'weekly' or 'never' would do"
    )


def packages(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """`pipelines, company.loads` as names of packages, each once."""
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else list(value)
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ValueError("names of Python packages, separated by commas, would do: pipelines,company.loads")
    return tuple(dict.fromkeys(names))


def networks(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """`10.0.0.0/8, 192.0.2.7` as networks."""
    given = _listed(value)
    try:
        return tuple(str(ipaddress.ip_network(one.strip(), strict=False)) for one in given if one.strip())
    except ValueError:
        raise ValueError("addresses and networks such as 10.0.0.0/8, separated by commas, would do") from None


def welcome(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """`10.0.0.0/8, hooks.internal` as networks and names of hosts."""
    given = [one.strip().lower() for one in _listed(value) if one.strip()]
    for one in given:
        try:
            ipaddress.ip_network(one, strict=False)
        except ValueError:
            if not re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", one):
                raise ValueError(
                    "names of hosts and networks such as hooks.internal,10.0.0.0/8, separated by commas, would do"
                ) from None
    return tuple(dict.fromkeys(given))


def words(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """`iban, card_number` as lower-case words."""
    given = [word.strip().lower() for word in _listed(value)]
    if not all(re.fullmatch(r"[a-z0-9_]{2,50}", word) for word in given if word):
        raise ValueError("words of letters, digits and _, separated by commas, would do: iban,card_number")
    return tuple(dict.fromkeys(word for word in given if word))


def _listed(value: str | tuple[str, ...]) -> Sequence[str]:
    """Texts between commas; `[]`, as an empty list is shown, is none."""
    if isinstance(value, tuple):
        return value
    return () if value.strip() == "[]" else value.split(",")


def queue_workers(value: str | tuple[QueueWorkers, ...]) -> tuple[QueueWorkers, ...]:
    """The queues of WORKERS_JSON. An empty list: this process runs no jobs."""
    if isinstance(value, tuple):
        return value
    try:
        given = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(f"it is not JSON; {_WORKERS_REMEDY}") from None
    if not isinstance(given, list):
        raise ValueError(f"it is not a list; {_WORKERS_REMEDY}")
    faults = [f"entry {number}: {fault}" for number, entry in enumerate(given, 1) for fault in _entry_faults(entry)]
    if not faults:
        queues = [entry["queue"] for entry in given]
        faults = [f"queue {queue!r} is named twice" for queue in dict.fromkeys(queues) if queues.count(queue) > 1]
    if faults:
        raise ValueError("; ".join([*faults, _WORKERS_REMEDY]))
    return tuple(QueueWorkers(**entry) for entry in given)


def _entry_faults(entry: Any) -> list[str]:
    if not isinstance(entry, dict):
        return ["is not an object"]
    faults = [f"{key!r} is neither queue nor concurrency" for key in entry if key not in ("queue", "concurrency")]
    queue, concurrency = entry.get("queue"), entry.get("concurrency")
    if not (isinstance(queue, str) and queue.strip() and queue.isprintable() and len(queue) <= MAX_NAME):
        faults.append(f"queue must be a printable text of 1 to {MAX_NAME} characters")
    if type(concurrency) is not int or not 1 <= concurrency <= MAX_CONCURRENCY:
        faults.append(f"concurrency must be a whole number from 1 to {MAX_CONCURRENCY}")
    return faults


def endpoints(value: str | Mapping[str, str]) -> dict[str, str]:
    """The addresses of DL_ENDPOINTS by name. Credentials have no place in them: an address may be shown."""
    given = _named_texts(value, "URL", '{"llm": "https://models.example"}')
    faults = [fault for name, url in given.items() if (fault := _url_fault(name, url))]
    if faults:
        raise ValueError("; ".join(faults))
    return given


def _url_fault(name: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return f"{name!r} is not a URL"
    if parts.username is not None:
        return f"{name!r} carries credentials in its URL; a token belongs into DL_TOKENS"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{name!r} starts neither with http:// nor with https://"
    return ""


def targets(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """The databases of DL_TARGETS by name."""
    if isinstance(value, Mapping):
        return dict(value)
    given = _named_texts(value, "connection string", '{"default": "postgresql://user:password@host/database"}')
    faults = []
    for name, connection in given.items():
        try:
            dsn.parse(connection)
        except ValueError as error:
            faults.append(f"{name!r}: {error}")
    if faults:
        raise ValueError("; ".join(faults))
    return given


def tokens(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """The bearer tokens of DL_TOKENS by endpoint."""
    if isinstance(value, Mapping):
        return dict(value)
    given = _named_texts(value, "token", '{"llm": "token"}')
    # What a header cannot carry would otherwise be told by the request that fails, token and all.
    if unfit := [name for name, token in given.items() if not re.fullmatch(r"[\x21-\x7e]+", token)]:
        raise ValueError(f"the token of {', '.join(map(repr, unfit))} must be of printable ASCII without blanks")
    return given


def _named_texts(value: str | Mapping[str, str], what: str, example: str) -> dict[str, str]:
    if isinstance(value, Mapping):
        return dict(value)
    try:
        given = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(f"it is not JSON; such an object would do: {example}") from None
    if not isinstance(given, dict):
        raise ValueError(f"it is not an object; such an object would do: {example}")
    unfit = [name for name, text in given.items() if not name.strip() or not isinstance(text, str) or not text.strip()]
    if unfit:
        raise ValueError(f"{', '.join(map(repr, unfit))}: a name and a {what} would do, such as {example}")
    return given
