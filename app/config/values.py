"""Parsers of settings that are more than a number.

Each function raises ValueError that says what is accepted; the caller adds what was found.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from app.config import dsn

MAX_CONCURRENCY = 1000
MAX_NAME_LENGTH = 200
_DAY_SEC = 86_400
_SIZE_UNITS = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}
_DURATION_UNITS = {"minute": 60, "hour": 3600, "day": _DAY_SEC, "week": 7 * _DAY_SEC}
_DURATION_NAMES = {"hourly": 3600, "midnight": _DAY_SEC, "daily": _DAY_SEC, "weekly": 7 * _DAY_SEC}
_MIN_FILE_BYTES = 1024
FINAL_STATUSES = ("succeeded", "failed", "canceled", "lost")
_MAX_DAYS = 36_500
_RETENTION_EXAMPLE = 'such as {"heartbeat.check": 1, "load.cbr.rates": {"succeeded": 3, "failed": 90}}'
_SECRET_NAME = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_TASK_LISTS_EXAMPLE = 'such as {"crm": ["load.crm", "report.*"], "*": []}'
_WORKERS_REMEDY = 'such a list would do: [{"queue": "etl.default", "concurrency": 2}]'


@dataclass(frozen=True)
class QueueWorkers:
    """How many threads of this process work on a queue."""

    queue: str
    concurrency: int


@dataclass(frozen=True)
class Rotation:
    """When a log file is rotated: at a size, or with each new period. Neither: never."""

    text: str
    max_bytes: int | None = None
    every_sec: int | None = None


def parse_json(text: str, expected: type[dict[str, Any]] | type[list[Any]], remedy: str) -> Any:
    """Parse a JSON object or list. Raises ValueError with the remedy."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"it is not JSON; {remedy}") from None
    if not isinstance(value, expected):
        raise ValueError(f"it is not {'an object' if expected is dict else 'a list'}; {remedy}")
    return value


def parse_time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("an IANA time zone such as Europe/Moscow or UTC would do") from None
    return name


def parse_identifier(name: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name) or name.startswith("pg_"):
        raise ValueError(
            "a plain lower-case identifier would do: letters, digits and _, "
            "not starting with a digit or pg_, at most 63 characters"
        )
    return name


def parse_file_name(name: str) -> str:
    if PurePath(name).name != name or name in (".", "..") or not name.isprintable():
        raise ValueError("a file name without a folder would do")
    return name


def parse_rotation(value: str | Rotation) -> Rotation:
    """`10 MB`, `6 hours`, `1 day`, `hourly`, `daily`, `midnight`, `weekly` or `never`."""
    if isinstance(value, Rotation):
        return value
    text = " ".join(value.lower().split())
    if text == "never":
        return Rotation(text)
    if text in _DURATION_NAMES:
        return Rotation(text, every_sec=_DURATION_NAMES[text])
    if match := re.fullmatch(r"([0-9]{1,9}) ?([a-z]+)", text):
        number, unit = int(match[1]), match[2]
        if unit in _SIZE_UNITS and number * _SIZE_UNITS[unit] >= _MIN_FILE_BYTES:
            return Rotation(f"{number} {unit.upper()}", max_bytes=number * _SIZE_UNITS[unit])
        if number and unit.removesuffix("s") in _DURATION_UNITS:
            return Rotation(text, every_sec=number * _DURATION_UNITS[unit.removesuffix("s")])
    raise ValueError(
        "a size of at least 1 KB such as '10 MB', a period such as '6 hours' or '1 day', "
        "'midnight', 'weekly' or 'never' would do"
    )


def parse_packages(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """`pipelines, company.loads` as names of packages, each once."""
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else list(value)
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ValueError("names of Python packages, separated by commas, would do: pipelines,company.loads")
    return tuple(dict.fromkeys(names))


def parse_networks(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """`10.0.0.0/8, 192.0.2.7` as networks."""
    try:
        return tuple(str(ipaddress.ip_network(network, strict=False)) for network in _split_list(value))
    except ValueError:
        raise ValueError("addresses and networks such as 10.0.0.0/8, separated by commas, would do") from None


def parse_allowed_hosts(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """`10.0.0.0/8, hooks.internal` as networks and names of hosts."""
    hosts = [host.lower() for host in _split_list(value)]
    for host in hosts:
        try:
            ipaddress.ip_network(host, strict=False)
        except ValueError:
            if not re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", host):
                raise ValueError(
                    "names of hosts and networks such as hooks.internal,10.0.0.0/8, separated by commas, would do"
                ) from None
    return tuple(dict.fromkeys(hosts))


def parse_words(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """`iban, card_number` as lower-case words."""
    words = [word.lower() for word in _split_list(value)]
    if not all(re.fullmatch(r"[a-z0-9_]{2,50}", word) for word in words):
        raise ValueError("words of letters, digits and _, separated by commas, would do: iban,card_number")
    return tuple(dict.fromkeys(words))


def _split_list(value: str | tuple[str, ...]) -> Sequence[str]:
    """Split a text at commas into its non-empty parts; `[]`, as an empty list is shown, has none."""
    parts = value if isinstance(value, tuple) else () if value.strip() == "[]" else value.split(",")
    return [part.strip() for part in parts if part.strip()]


def parse_queue_workers(value: str | tuple[QueueWorkers, ...]) -> tuple[QueueWorkers, ...]:
    """The queues of WORKERS_JSON. An empty list: this process runs no jobs."""
    if isinstance(value, tuple):
        return value
    entries = parse_json(value, list, _WORKERS_REMEDY)
    errors = [f"entry {number}: {error}" for number, entry in enumerate(entries, 1) for error in _entry_errors(entry)]
    if not errors:
        queues = [entry["queue"] for entry in entries]
        errors = [f"queue {queue!r} is named twice" for queue in dict.fromkeys(queues) if queues.count(queue) > 1]
    if errors:
        raise ValueError("; ".join([*errors, _WORKERS_REMEDY]))
    return tuple(QueueWorkers(**entry) for entry in entries)


def _entry_errors(entry: Any) -> list[str]:
    if not isinstance(entry, dict):
        return ["is not an object"]
    errors = [f"{key!r} is neither queue nor concurrency" for key in entry if key not in ("queue", "concurrency")]
    queue, concurrency = entry.get("queue"), entry.get("concurrency")
    if not (isinstance(queue, str) and queue.strip() and queue.isprintable() and len(queue) <= MAX_NAME_LENGTH):
        errors.append(f"queue must be a printable text of 1 to {MAX_NAME_LENGTH} characters")
    if type(concurrency) is not int or not 1 <= concurrency <= MAX_CONCURRENCY:
        errors.append(f"concurrency must be a whole number from 1 to {MAX_CONCURRENCY}")
    return errors


def parse_endpoints(value: str | Mapping[str, str]) -> dict[str, str]:
    """The addresses of DL_ENDPOINTS by name. Credentials have no place in them: an address may be shown."""
    endpoints = _parse_text_map(value, "URL", '{"llm": "https://models.example"}')
    errors = [error for name, url in endpoints.items() if (error := _url_error(name, url))]
    if errors:
        raise ValueError("; ".join(errors))
    return endpoints


def _url_error(name: str, url: str) -> str:
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


def parse_targets(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """The databases of DL_TARGETS by name."""
    if isinstance(value, Mapping):
        return dict(value)
    targets = _parse_text_map(value, "connection string", '{"default": "postgresql://user:password@host/database"}')
    errors = []
    for name, connection in targets.items():
        try:
            dsn.parse_dsn(connection)
        except ValueError as error:
            errors.append(f"{name!r}: {error}")
    if errors:
        raise ValueError("; ".join(errors))
    return targets


def parse_tokens(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """The bearer tokens of DL_TOKENS by endpoint."""
    if isinstance(value, Mapping):
        return dict(value)
    tokens = _parse_text_map(value, "token", '{"llm": "token"}')
    # Otherwise the request would fail with a message that contains the token.
    if unfit := [name for name, token in tokens.items() if not re.fullmatch(r"[\x21-\x7e]+", token)]:
        raise ValueError(f"the token of {', '.join(map(repr, unfit))} must be of printable ASCII without blanks")
    return tokens


def _parse_text_map(value: str | Mapping[str, str], description: str, example: str) -> dict[str, str]:
    if isinstance(value, Mapping):
        return dict(value)
    texts: dict[str, Any] = parse_json(value, dict, f"such an object would do: {example}")
    invalid = [
        name for name, text in texts.items() if not name.strip() or not isinstance(text, str) or not text.strip()
    ]
    if invalid:
        raise ValueError(f"{', '.join(map(repr, invalid))}: a name and a {description} would do, such as {example}")
    return texts


def parse_task_retention(raw: Any) -> Mapping[str, Mapping[str, float]]:
    """Parse task → status → days. One number is for all statuses; a status without one keeps its general period."""
    if isinstance(raw, str):
        raw = parse_json(raw, dict, f"a JSON object would do, {_RETENTION_EXAMPLE}")
    return {task: _parse_periods(task, periods) for task, periods in raw.items()}


def _parse_periods(task: str, raw: Any) -> Mapping[str, float]:
    periods = raw if isinstance(raw, Mapping) else dict.fromkeys(FINAL_STATUSES, raw)
    unknown = sorted(set(periods) - set(FINAL_STATUSES))
    if unknown:
        raise ValueError(
            f"{task!r} names {', '.join(unknown)}; the statuses a job ends in are {', '.join(FINAL_STATUSES)}"
        )
    for days in periods.values():
        is_number = isinstance(days, int | float) and not isinstance(days, bool) and math.isfinite(days)
        if not is_number or not 0 < days <= _MAX_DAYS:
            raise ValueError(f"{task!r} has {days!r}; a number of days from 0.01 to {_MAX_DAYS} would do")
    return {status: float(days) for status, days in periods.items()}


def parse_secret_tasks(raw: Any) -> Mapping[str, tuple[str, ...]]:
    """Parse secret → tasks, or patterns of tasks. "*" means all other secrets."""
    if isinstance(raw, str):
        raw = parse_json(raw, dict, f"a JSON object would do, {_TASK_LISTS_EXAMPLE}")
    for name, tasks in raw.items():
        if not _SECRET_NAME.fullmatch(name):
            raise ValueError(f'{name!r} is no secret\'s name: letters, digits, _, - and ., or "*" for those not named')
        if not isinstance(tasks, list | tuple) or not all(isinstance(task, str) and task.strip() for task in tasks):
            raise ValueError(f"{name!r} has {tasks!r}; a list of tasks would do, {_TASK_LISTS_EXAMPLE}")
    return {name: tuple(tasks) for name, tasks in raw.items()}
