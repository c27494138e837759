"""`@schedule`: when jobs of a task are made, declared with its code. Nothing happens when a module is imported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timedelta
from typing import Any, Literal, TypeVar, get_args

from dataloader.pipelines.limits import check_limits
from dataloader.pipelines.retry import Policy, policy_from_json, policy_to_json
from dataloader.pipelines.task import Task

Kind = Literal["cron", "interval", "dataset"]
Gap = Literal["after", "skip"]
Fold = Literal["first", "second", "both"]
CatchUp = Literal["last", "all", "skip"]
Overlap = Literal["queue", "skip", "cancel", "allow"]
Need = Literal["all", "any"]

_CHOICES = {"gap": Gap, "fold": Fold, "catch_up": CatchUp, "overlap": Overlap, "need": Need}
_INT4_MAX = 2_147_483_647
_DAY_SEC = 86_400
_RANGES = {
    "jitter_sec": (0, _DAY_SEC),
    "catch_up_max": (1, 10_000),
    "catch_up_window_sec": (1, 366 * _DAY_SEC),
    "grace_sec": (1, 31 * _DAY_SEC),
    "priority": (0, _INT4_MAX),
    "max_attempts": (1, _INT4_MAX),
    "time_limit_sec": (1, _INT4_MAX),
}
_MAX_NAME_BYTES, _MAX_DATASETS, _MAX_DATASET_BYTES, _MAX_EXCLUDED = 200, 20, 500, 1_000
_ATTRIBUTE = "__dataloader_schedules__"
F = TypeVar("F", bound="Callable[..., Any] | Task")


@dataclass(frozen=True, kw_only=True)
class ScheduleDeclaration:
    """A schedule as the code declares it. Raises ValueError or TypeError."""

    name: str | None = None  # None: the task's
    kind: Kind
    expression: str = ""  # five cron fields, or a number of seconds
    zone: str | None = None  # None: TIMEZONE
    gap: Gap = "after"
    fold: Fold = "first"
    jitter_sec: int = 0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    excluded: tuple[date, ...] = ()
    after: tuple[str, ...] = ()
    need: Need = "all"
    args: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    lock_key: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    time_limit_sec: int | None = None
    retry: Mapping[str, Any] | None = None
    limits: Mapping[str, int] | None = None
    catch_up: CatchUp = "last"
    catch_up_max: int = 100
    catch_up_window_sec: int = 7 * _DAY_SEC
    overlap: Overlap = "queue"
    grace_sec: int = 60
    off: bool = False  # paused when it is first declared

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} is one of {', '.join(get_args(choices))}, not {getattr(self, name)!r}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not low <= value <= high):
                raise ValueError(f"{name} is a whole number from {low:,} to {high:,}, not {value!r}")
        if not isinstance(self.off, bool):
            raise TypeError(f"off is True or False, not {self.off!r}")
        for name in ("name", "zone", "queue", "lock_key"):
            _check_text(name, getattr(self, name))
        if self.name is not None:
            check_schedule_name(self.name)
        if len(self.excluded) > _MAX_EXCLUDED:
            raise ValueError(f"excluded has at most {_MAX_EXCLUDED:,} days, not {len(self.excluded):,}")
        self._check_template()
        if self.kind == "dataset":
            _check_datasets(self.after)
            if self.excluded:
                raise ValueError("excluded days are of kinds with times; updates make jobs on any day")
        self._check_timing()

    def _check_template(self) -> None:
        if self.limits is not None:
            try:
                check_limits(self.limits)
            except ValueError as error:
                raise ValueError(f"limits: {error}") from None
        if self.retry is not None:
            try:
                policy_from_json(self.retry)
            except ValueError as error:
                raise ValueError(f"retry: {error}") from None
        from dataloader.pipelines.schedule_templates import check_template  # noqa: PLC0415 - only where there is a schedule

        check_template({"args": self.args, "lock_key": self.lock_key})

    def _check_timing(self) -> None:
        from dataloader.pipelines.schedule_times import Timing  # noqa: PLC0415 - likewise

        Timing(
            kind="cron" if self.kind == "cron" else "interval",
            expression="60" if self.kind == "dataset" else self.expression,
            zone="UTC" if self.zone is None else self.zone,
            gap=self.gap,
            fold=self.fold,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
            excluded=frozenset(self.excluded),
        )

    def to_json(self) -> dict[str, Any]:
        """The fields that are not at their default, without the name."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        defaults = {f.name: f.default for f in fields(self)} | {"args": {}}
        return {name: _to_json(value) for name, value in values.items() if value != defaults[name]}


def schedule(  # noqa: PLR0913 - the options of the contract
    cron: str | None = None,
    *,
    every: float | timedelta | None = None,
    after: Iterable[str] | None = None,
    need: Need = "all",
    name: str | None = None,
    zone: str | None = None,
    gap: Gap = "after",
    fold: Fold = "first",
    jitter: int = 0,
    starts: datetime | str | None = None,
    ends: datetime | str | None = None,
    excluded: Iterable[date | str] = (),
    args: Mapping[str, Any] | None = None,
    queue: str | None = None,
    lock_key: str | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    time_limit: int | None = None,
    retry: Policy | None = None,
    limits: Mapping[str, int] | None = None,
    catch_up: CatchUp = "last",
    catch_up_max: int = 100,
    catch_up_window: int | timedelta = 7 * _DAY_SEC,
    overlap: Overlap = "queue",
    grace: int | timedelta = 60,
    off: bool = False,
) -> Callable[[F], F]:
    """Declare when jobs of the decorated task are made: at times of a clock (`cron`), by elapsed time (`every`, in
    seconds) or when datasets are updated (`after`).

    It may be above or below `@register`, and is also called with what `registry.command` returns. With several on one
    task all but one need a `name`; without one it is the task's. With `off` it is paused until a person resumes it.
    Texts in `args` may have placeholders, such as `{interval_start:%Y-%m-%d}`.
    """
    kind, expression = _parse_times(cron, every, after)
    declaration = ScheduleDeclaration(
        name=name,
        kind=kind,
        expression=expression,
        zone=zone,
        gap=gap,
        fold=fold,
        jitter_sec=jitter,
        starts_at=_parse_moment("starts", starts),
        ends_at=_parse_moment("ends", ends),
        excluded=_parse_days(excluded),
        after=_parse_datasets(after),
        need=need,
        args=_parse_args(args),
        queue=queue,
        lock_key=lock_key,
        priority=priority,
        max_attempts=max_attempts,
        time_limit_sec=time_limit,
        retry=None if retry is None else policy_to_json(retry),
        limits=None if limits is None else {**limits},
        catch_up=catch_up,
        catch_up_max=catch_up_max,
        catch_up_window_sec=_parse_seconds("catch_up_window", catch_up_window),
        overlap=overlap,
        grace_sec=_parse_seconds("grace", grace),
        off=off,
    )

    def decorate(target: F) -> F:
        _attach(target.call if isinstance(target, Task) else target, declaration)
        return target

    return decorate


def schedules_of(call: Callable[..., Any]) -> tuple[ScheduleDeclaration, ...]:
    """The schedules that are declared on a callable, in the order of the source."""
    # Not by getattr: a subclass has not the schedules of its base class.
    declared: tuple[ScheduleDeclaration, ...] = getattr(call, "__dict__", {}).get(_ATTRIBUTE, ())
    return declared


def _attach(call: Callable[..., Any], declaration: ScheduleDeclaration) -> None:
    declared = schedules_of(call)
    if any(other.name == declaration.name for other in declared):
        if declaration.name is None:
            raise ValueError(f"{call!r} has several schedules: all but one need a name")
        raise ValueError(f"{call!r} has two schedules with the name {declaration.name!r}")
    try:
        setattr(call, _ATTRIBUTE, (declaration, *declared))
    except (AttributeError, TypeError):
        raise TypeError(f"{call!r} can hold no schedule; decorate a function that calls it") from None


def _parse_times(cron: object, every: object, after: object) -> tuple[Kind, str]:
    if sum(value is not None for value in (cron, every, after)) != 1:
        raise TypeError('a schedule has one of cron, every and after, as in @schedule("0 6 * * *")')
    if after is not None:
        return "dataset", ""
    if every is not None:
        return "interval", str(_parse_seconds("every", every))
    if not isinstance(cron, str):
        raise TypeError(f'cron is a text, as in @schedule("0 6 * * *"), not {cron!r}')
    return "cron", cron


def _parse_seconds(name: str, value: object) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} is a number of seconds or a timedelta, not {value!r}")
    if seconds != seconds // 1 or seconds < 1:  # NaN too
        raise ValueError(f"{name} is a whole number of seconds from 1, not {value!r}")
    return int(seconds)


def _parse_moment(name: str, value: object) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError(f"{name} is a time with its UTC offset, such as 2030-01-31T06:00:00+03:00, not {value!r}")
    return moment


def _parse_days(values: Iterable[date | str]) -> tuple[date, ...]:
    if isinstance(values, str):
        raise TypeError(f"excluded is a list of days, such as [{values!r}]")
    days: list[date] = []
    for value in values:
        try:
            day = date.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            day = None
        if not isinstance(day, date) or isinstance(day, datetime):
            raise ValueError(f"excluded has days such as 2030-01-31, not {value!r}")
        days.append(day)
    return tuple(sorted(set(days)))


def _parse_datasets(values: Iterable[str] | None) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError(f"after is a list of datasets, such as [{values!r}]")
    return () if values is None else tuple(values)


def _parse_args(args: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy, which later changes do not reach."""
    if args is not None and not isinstance(args, Mapping):
        raise TypeError(f"args is an object such as {{'day': '{{interval_start:%Y-%m-%d}}'}}, not {args!r}")
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(args or {}), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"args are no JSON: {error}") from None
    return copy


def check_schedule_name(name: str) -> None:
    """Raises ValueError unless a schedule can have this name, which is part of addresses."""
    if not name.strip() or len(name.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES or "/" in name:
        raise ValueError(f"a schedule's name is a text of 1 to {_MAX_NAME_BYTES} bytes without a slash, not {name!r}")


def _check_text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip() or not value.isprintable()):
        raise ValueError(f"{name} is a text that is neither empty nor has control characters, not {value!r}")


def _check_datasets(names: tuple[str, ...]) -> None:
    if not 1 <= len(names) <= _MAX_DATASETS or len(set(names)) < len(names):
        raise ValueError(f"after names from 1 to {_MAX_DATASETS} datasets, each once")
    for name in names:
        _check_text("a dataset in after", name)
        if len(name.encode("utf-8", "surrogatepass")) > _MAX_DATASET_BYTES:
            raise ValueError(f"a dataset in after has at most {_MAX_DATASET_BYTES} bytes; one begins {name[:40]!r}")


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value
