"""The types of settings that are more than a number: how they are read from the environment and written for it.

A ValueError says what is wrong with a value; the setting itself says what it accepts.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    StringConstraints,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from dataloader.app.config import dsn
from dataloader.app.config.smtp import parse_smtp_url
from dataloader.pipelines.zone_clock import find_zone

MAX_CONCURRENCY = 1000
MAX_GRACE_SEC = 86_400
FINAL_STATUSES = ("succeeded", "failed", "canceled", "lost")
DEFAULT_JOB_RETENTION = {"succeeded": 14.0, "failed": 30.0, "canceled": 14.0, "lost": 30.0}  # days
_DAY_SEC = 86_400
_SIZE_UNITS = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}
_DURATION_UNITS = {"minute": 60, "hour": 3600, "day": _DAY_SEC, "week": 7 * _DAY_SEC}
_DURATION_NAMES = {"hourly": 3600, "midnight": _DAY_SEC, "daily": _DAY_SEC, "weekly": 7 * _DAY_SEC}
_MIN_FILE_BYTES = 1024


def parse_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None


def _parse_list(value: Any) -> Any:
    """Return the parts of a text that separates them by commas, each once, without empty ones; or of a JSON list."""
    if isinstance(value, str):
        value = parse_json(value) if value.strip().startswith("[") else value.split(",")
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = tuple(dict.fromkeys(part.strip() for part in value if part.strip()))
    return value


def matching(pattern: str, problem: str = "") -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(problem)
        return text

    return AfterValidator(check)


def _check_time_zone(name: str) -> str:
    find_zone(name)
    return name


def _check_file_name(name: str) -> str:
    if PurePath(name).name != name or name in (".", "..") or not name.isprintable():
        raise ValueError
    return name


def _check_network(network: str) -> str:
    return str(ipaddress.ip_network(network, strict=False))


def _check_host_or_network(host: str) -> str:
    if re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", host) is None:
        ipaddress.ip_network(host, strict=False)
    return host


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("it is not a URL") from None
    if parts.username is not None:
        raise ValueError("it carries credentials; a token belongs into DL_TOKENS, or is a reference to a secret")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it starts neither with http:// nor with https://")
    return url


def _check_public_url(url: str) -> str:
    if urlsplit(url).query or urlsplit(url).fragment:
        raise ValueError("it has a query or a fragment; the addresses of pages are appended to it")
    return _check_url(url).rstrip("/")


def _check_smtp(secret: SecretStr) -> SecretStr:
    parse_smtp_url(secret.get_secret_value())
    return secret


def _check_dsn(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise ValueError("it is empty")
    dsn.parse_dsn(secret.get_secret_value())
    return secret


def _keep_blanks(text: Any, validate: ValidatorFunctionWrapHandler) -> SecretStr:
    """Blanks at the ends of a password are part of it."""
    secret: SecretStr = validate(text)
    return SecretStr(text) if isinstance(text, str) else secret


Password = Annotated[SecretStr, WrapValidator(_keep_blanks)]


def _check_token(secret: SecretStr) -> SecretStr:
    # Otherwise the request would fail with a message that contains the token.
    if not re.fullmatch(r"[\x21-\x7e]+", secret.get_secret_value()):
        raise ValueError("a token must be of printable ASCII without blanks")
    return secret


@dataclass(frozen=True)
class Rotation:
    """When a log file is rotated: at a size, or with each new period. Neither: never."""

    text: str
    max_bytes: int | None = None
    every_sec: int | None = None


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
    raise ValueError


def _spread_periods(raw: Any) -> Any:
    """One number of days is for all statuses; a status without one keeps its general period."""
    return {task: _spread(periods) for task, periods in raw.items()} if isinstance(raw, Mapping) else raw


def _spread(periods: Any) -> Any:
    return dict.fromkeys(FINAL_STATUSES, periods) if isinstance(periods, int | float) else periods


def _complete_periods(periods: Mapping[str, float]) -> Mapping[str, float]:
    return {**DEFAULT_JOB_RETENTION, **periods}


Text = Annotated[str, matching(r"(?=.*\S)[^\x00-\x1f\x7f]{1,200}", "expected 1 to 200 printable characters")]


MIN_POLL_SEC, MAX_POLL_SEC = 0.05, 3600.0
_PollSec = Annotated[float, Field(strict=True, ge=MIN_POLL_SEC, le=MAX_POLL_SEC, allow_inf_nan=False)]
_MAX_POLL_TABLE = 100
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class FixedPoll:
    """Poll a queue at an interval while no job is found."""

    __pydantic_config__ = _STRICT

    kind: Literal["fixed"]
    sec: _PollSec


@dataclass(frozen=True)
class LinearPoll:
    """Wait `step_sec` longer after each poll that finds nothing, up to `max_sec`."""

    __pydantic_config__ = _STRICT

    kind: Literal["linear"]
    step_sec: _PollSec
    max_sec: _PollSec


@dataclass(frozen=True)
class ExponentialPoll:
    """Wait twice as long after each poll that finds nothing, up to `max_sec`; `jitter` is the share that is random."""

    __pydantic_config__ = _STRICT

    kind: Literal["exponential"]
    min_sec: _PollSec
    max_sec: _PollSec
    jitter: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = 0.0


@dataclass(frozen=True)
class TablePoll:
    """Wait as long as the table says after each poll that finds nothing; its last entry is repeated."""

    __pydantic_config__ = _STRICT

    kind: Literal["table"]
    sec: Annotated[tuple[_PollSec, ...], Field(min_length=1, max_length=_MAX_POLL_TABLE)]


def _check_poll(poll: QueuePoll) -> QueuePoll:
    shortest = {LinearPoll: "step_sec", ExponentialPoll: "min_sec"}.get(type(poll))
    if shortest is not None and getattr(poll, shortest) > poll.max_sec:  # type: ignore[union-attr]  # these have it
        raise ValueError(f"max_sec is less than {shortest}")
    return poll


QueuePoll = FixedPoll | LinearPoll | ExponentialPoll | TablePoll
_POLL_KINDS = ("fixed", "linear", "exponential", "table")


def _poll_kind(raw: Any) -> str | None:
    kind = raw.get("kind") if isinstance(raw, Mapping) else getattr(raw, "kind", None)
    return kind if kind in _POLL_KINDS else None


_Poll = Annotated[
    Annotated[FixedPoll, Tag("fixed")]
    | Annotated[LinearPoll, Tag("linear")]
    | Annotated[ExponentialPoll, Tag("exponential")]
    | Annotated[TablePoll, Tag("table")],
    Discriminator(
        _poll_kind,
        custom_error_type="poll_kind",
        custom_error_message=f"expected an object whose kind is one of {', '.join(_POLL_KINDS)}",
    ),
    AfterValidator(_check_poll),
]


def _check_labels(labels: dict[str, Any]) -> dict[str, Any]:
    for name, value in labels.items():
        if not re.fullmatch(r"[a-z][a-z0-9_.-]{0,62}", name):
            raise ValueError(f"a label has 1 to 63 of a-z, 0-9, _ . and -, and begins with a letter: not {name[:64]!r}")
        is_text = isinstance(value, str) and re.fullmatch(r"(?!true$|false$)[A-Za-z0-9_.:/-]{1,63}", value)
        if not isinstance(value, bool) and not is_text:
            raise ValueError(f"label {name!r} is true, false or a text of 1 to 63 letters, digits and _.:/-")
    return labels


Labels = Annotated[dict[str, Any], Field(max_length=20), AfterValidator(_check_labels)]


@dataclass(frozen=True)
class QueueWorkers:
    """How many threads of this process work on a queue, how often they look for jobs without a notification, and for
    how long its jobs may continue after a stop signal."""

    __pydantic_config__ = ConfigDict(extra="forbid", str_strip_whitespace=True)

    queue: Text
    concurrency: Annotated[int, Field(strict=True, ge=1, le=MAX_CONCURRENCY)]
    poll: _Poll | None = None
    shutdown_grace_sec: Annotated[float, Field(ge=0, le=MAX_GRACE_SEC)] | None = None  # None: as all others
    labels: Labels | None = None  # of the process, together with those of the other queues

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def _check_queues(workers: tuple[QueueWorkers, ...]) -> tuple[QueueWorkers, ...]:
    queues = [entry.queue for entry in workers]
    if repeated := [queue for queue in dict.fromkeys(queues) if queues.count(queue) > 1]:
        raise ValueError(f"queue {', '.join(map(repr, repeated))} is named twice")
    labels: dict[str, bool | str] = {}
    for name, value in ((name, value) for entry in workers for name, value in (entry.labels or {}).items()):
        if labels.setdefault(name, value) != value:
            raise ValueError(f"label {name!r} has two values: labels belong to the process, not to one of its queues")
    return workers


def _check_executors(executors: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """A secret in the clear would be shown with the settings."""
    for name, values in executors.items():
        if name == "process":
            raise ValueError("the engine 'process' exists already, and has no settings")
        for key, value in values.items():
            is_secret = re.search(r"(token|password|secret|api_?key)(?!\w*_file$)", key, re.IGNORECASE)
            if is_secret and not isinstance(value, Mapping):
                raise ValueError(f'{name}.{key} is a reference such as {{"$secret": "name"}}')
            if key.endswith("_file") and not (isinstance(value, str) and value.startswith("/")):
                raise ValueError(f"{name}.{key} is the absolute path of a file")
            if isinstance(value, str) and "@" in urlsplit(value).netloc:
                raise ValueError(f"{name}.{key} carries credentials; an engine has them as a secret of its own")
    return executors


def _check_service(service: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    if isinstance(service, str):
        return _check_url(service)
    if (
        service.keys() != {"url", "key"}
        or not isinstance(service["url"], str)
        or not _is_secret_reference(service["key"])
    ):
        raise ValueError('it is neither a URL nor {"url": "…", "key": {"$secret": "name"}}')
    _check_url(service["url"])
    return service


def _parse_service(value: Any) -> Any:
    return parse_json(value) if isinstance(value, str) and value.startswith("{") else value


def _is_secret_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"$secret"} and isinstance(value["$secret"], str)


def _refuse_host_listener(mode: str) -> str:
    if mode == "host":
        raise ValueError("host was removed: use process with more threads in fewer processes, or off")
    return mode


def _check_prices(prices: Mapping[str, float | str]) -> Mapping[str, float | str]:
    for name, value in prices.items():
        if isinstance(value, str) != (name == "currency"):
            raise ValueError(f"{name} is {'a text' if name == 'currency' else 'a number'}")
    return prices


_Json, _List = BeforeValidator(parse_json), BeforeValidator(_parse_list)
_STATUS_LIST = ", ".join(FINAL_STATUSES)
_PACKAGE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
Zone = Annotated[str, AfterValidator(_check_time_zone)]
Identifier = Annotated[str, matching(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")]
FileName = Annotated[str, AfterValidator(_check_file_name)]
Packages = Annotated[tuple[Annotated[str, matching(_PACKAGE)], ...], _List]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_check_network)], ...], _List]
AllowedHostList = Annotated[
    tuple[Annotated[str, StringConstraints(to_lower=True), AfterValidator(_check_host_or_network)], ...], _List
]
WordList = Annotated[tuple[Annotated[str, StringConstraints(to_lower=True), matching(r"[a-z0-9_]{2,50}")], ...], _List]
ListenMode = Annotated[Literal["process", "off"], BeforeValidator(_refuse_host_listener)]
LogRotation = Annotated[Rotation, BeforeValidator(parse_rotation)]
Workers = Annotated[tuple[QueueWorkers, ...], _Json, AfterValidator(_check_queues)]
Endpoints = Annotated[Mapping[Text, Annotated[str, AfterValidator(_check_url)]], _Json]
RemoteService = Annotated[str | Mapping[str, Any], BeforeValidator(_parse_service), AfterValidator(_check_service)]
PublicUrl = Annotated[str, AfterValidator(_check_public_url)]
SmtpUrl = Annotated[SecretStr, AfterValidator(_check_smtp)]
Dsn = Annotated[SecretStr, AfterValidator(_check_dsn)]
Targets = Annotated[Mapping[Text, Dsn], _Json]
Token = Annotated[SecretStr, AfterValidator(_check_token)]
Tokens = Annotated[Mapping[Text, Token], _Json]
Executors = Annotated[
    Mapping[Annotated[str, matching(r"[a-z][a-z0-9_-]{0,49}")], Mapping[str, Any]],
    _Json,
    AfterValidator(_check_executors),
]
Price = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]
Days = Annotated[float, Field(strict=True, gt=0, le=36_500, allow_inf_nan=False)]
_StatusPeriods = Mapping[Annotated[str, matching("|".join(FINAL_STATUSES), f"expected one of {_STATUS_LIST}")], Days]
JobRetention = Annotated[_StatusPeriods, AfterValidator(_complete_periods), BeforeValidator(_spread), _Json]
TaskRetention = Annotated[
    Mapping[str, _StatusPeriods],
    BeforeValidator(_spread_periods),
    _Json,
]
SecretName = Annotated[str, matching(r"\*|[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", "it is no secret's name")]
SecretTasks = Annotated[Mapping[SecretName, tuple[Text, ...]], _Json]
Prices = Annotated[
    Mapping[Literal["cpu_hour", "memory_gb_hour", "run_hour", "currency"], Price | Text],
    _Json,
    AfterValidator(_check_prices),
]


def format_value(value: Any) -> str:
    """Format a setting as it is written in the environment, without its secrets."""
    match value:
        case SecretStr():
            secret = value.get_secret_value()
            text = dsn.mask_dsn(secret) if "=" in secret or "://" in secret else dsn.MASK
        case bool():
            text = str(value).lower()
        case float():
            text = f"{value:.10g}"
        case Rotation():
            text = value.text
        case tuple() if all(isinstance(part, QueueWorkers) for part in value):
            text = json.dumps([part.to_dict() for part in value], ensure_ascii=False, separators=(",", ":"))
        case tuple():
            text = ",".join(value)
        case Mapping():
            text = json.dumps({name: _format_part(part) for name, part in value.items()}, ensure_ascii=False)
        case _:
            text = "" if value is None else str(value)
    return text


def _format_part(value: Any) -> Any:
    if isinstance(value, Mapping):  # a task's environment may hold secrets
        return {**value, "env": dict.fromkeys(value["env"], dsn.MASK)} if "env" in value else value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return list(value) if isinstance(value, tuple) else format_value(value)
