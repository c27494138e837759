"""`@schedule`: when jobs of a task are made, declared with its code. Nothing happens when a module is imported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, TypeVar, Unpack

from dataloader.pipelines.limits import check_limits
from dataloader.pipelines.retry import policy_from_json, policy_to_json
from dataloader.pipelines.schedule_fields import (
    INT4_MAX,
    MAX_DATASET_BYTES,
    MAX_DATASETS,
    MAX_EXCLUDED,
    OPTIONS,
    Kind,
    ScheduleField,
    ScheduleOptions,
    Times,
)
from dataloader.pipelines.task import Task

_MAX_NAME_BYTES = 200
_ATTRIBUTE = "__dataloader_schedules__"
F = TypeVar("F", bound="Callable[..., Any] | Task")


@dataclass(frozen=True)
class ScheduleDeclaration:
    """A schedule as the code declares it: its name, None for the task's, and the fields that are not at their default.
    `off` among them: it is paused when it is first declared."""

    name: str | None
    fields: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Without the name."""
        return {name: _to_json(value) for name, value in self.fields.items()}


def schedule(
    cron: str | None = None,
    *,
    every: float | timedelta | None = None,
    after: Iterable[str] | None = None,
    **options: Unpack[ScheduleOptions],
) -> Callable[[F], F]:
    """Declare when jobs of the decorated task are made: at times of a clock (`cron`), by elapsed time (`every`, in
    seconds) or when datasets are updated (`after`).

    It may be above or below `@register`, and is also called with what `registry.command` returns. With several on one
    task all but one need a `name`; without one it is the task's. With `off` it is paused until a person resumes it.
    Texts in `args` may have placeholders, such as `{interval_start:%Y-%m-%d}`. Raises ValueError or TypeError.
    """
    fields = _parse_times(cron, every, after)
    values: dict[str, Any] = {**options}
    name, is_off = values.pop("name", None), values.pop("off", False)
    if name is not None:
        _check_text("name", name)
        check_schedule_name(name)
    if not isinstance(is_off, bool):
        raise TypeError(f"off is True or False, not {is_off!r}")
    for option, value in values.items():
        if option not in OPTIONS:
            raise TypeError(f"{option!r} is no option of a schedule; it has {', '.join(OPTIONS)}")
        field = OPTIONS[option]
        if value is not None or field.kind is Kind.CHOICE:
            parsed = _PARSERS[field.kind](field, value)
            fields |= {field.name: parsed} if parsed != field.default else {}
    _check_whole(fields)
    declaration = ScheduleDeclaration(name, fields | ({"off": True} if is_off else {}))

    def decorate(target: F) -> F:
        _attach(target.call if isinstance(target, Task) else target, declaration)
        return target

    return decorate


def _check_whole(fields: Mapping[str, Any]) -> None:
    """Check what several fields mean together."""
    from dataloader.pipelines.schedule_templates import check_template  # noqa: PLC0415 - only where there is a schedule
    from dataloader.pipelines.schedule_times import Timing, timing_fields  # noqa: PLC0415 - likewise

    check_template({"args": fields.get("args", {}), "lock_key": fields.get("lock_key")})
    if fields["kind"] == "dataset":
        if "excluded" in fields:
            raise ValueError("excluded days are of kinds with times; updates make jobs on any day")
        fields = {**fields, "kind": "interval", "expression": "60"}
    Timing(**timing_fields(fields))


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


def _parse_times(cron: object, every: object, after: object) -> dict[str, Any]:
    if sum(value is not None for value in (cron, every, after)) != 1:
        raise TypeError('a schedule has one of cron, every and after, as in @schedule("0 6 * * *")')
    kind: Times = "cron"
    if after is not None:
        kind = "dataset"
        return {"kind": kind, "after": _parse_datasets(after)}
    if every is not None:
        kind = "interval"
        return {"kind": kind, "expression": str(_seconds("every", every))}
    if not isinstance(cron, str):
        raise TypeError(f'cron is a text, as in @schedule("0 6 * * *"), not {cron!r}')
    return {"kind": kind, "expression": cron}


def _seconds(name: str, value: object, minimum: int = 1, maximum: int = INT4_MAX) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} is a number of seconds or a timedelta, not {value!r}")
    if seconds != seconds // 1 or not minimum <= seconds <= maximum:  # NaN too
        raise ValueError(f"{name} is a whole number of seconds from {minimum:,} to {maximum:,}, not {value!r}")
    return int(seconds)


def _parse_seconds(field: ScheduleField, value: object) -> int:
    return _seconds(field.option, value, field.minimum, field.maximum)


def _parse_choice(field: ScheduleField, value: object) -> object:
    if value not in field.choices:
        raise ValueError(f"{field.option} is one of {', '.join(field.choices)}, not {value!r}")
    return value


def _parse_number(field: ScheduleField, value: object) -> int:
    if type(value) is not int or not field.minimum <= value <= field.maximum:
        raise ValueError(f"{field.option} is a whole number from {field.minimum:,} to {field.maximum:,}, not {value!r}")
    return value


def _parse_moment(field: ScheduleField, value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        example = "2030-01-31T06:00:00+03:00"
        raise ValueError(f"{field.option} is a time with its UTC offset, such as {example}, not {value!r}")
    return moment


def _parse_days(field: ScheduleField, values: Iterable[date | str]) -> tuple[date, ...]:
    if isinstance(values, str):
        raise TypeError(f"{field.option} is a list of days, such as [{values!r}]")
    days: list[date] = []
    for value in values:
        try:
            day = date.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            day = None
        if not isinstance(day, date) or isinstance(day, datetime):
            raise ValueError(f"{field.option} has days such as 2030-01-31, not {value!r}")
        days.append(day)
    if len(days) > MAX_EXCLUDED:
        raise ValueError(f"{field.option} has at most {MAX_EXCLUDED:,} days, not {len(days):,}")
    return tuple(sorted(set(days)))


def _parse_args(field: ScheduleField, args: object) -> dict[str, Any]:
    """A copy, which later changes do not reach."""
    if not isinstance(args, Mapping):
        raise TypeError(f"{field.option} is an object such as {{'day': '{{interval_start:%Y-%m-%d}}'}}, not {args!r}")
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(args), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{field.option} are no JSON: {error}") from None
    return copy


def _parse_limits(field: ScheduleField, limits: Mapping[str, int]) -> dict[str, int]:
    _check(field, check_limits, limits)
    return {**limits}


def _parse_retry(field: ScheduleField, policy: Any) -> dict[str, Any]:
    values = policy_to_json(policy)
    _check(field, policy_from_json, values)
    return values


def _check(field: ScheduleField, check: Callable[[Any], object], value: object) -> None:
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f"{field.option}: {error}") from None


def _parse_text(field: ScheduleField, value: object) -> object:
    _check_text(field.option, value)
    return value


_PARSERS: Mapping[Kind, Callable[[ScheduleField, Any], Any]] = {
    Kind.CHOICE: _parse_choice,
    Kind.NUMBER: _parse_number,
    Kind.SECONDS: _parse_seconds,
    Kind.MOMENT: _parse_moment,
    Kind.DAYS: _parse_days,
    Kind.ARGS: _parse_args,
    Kind.LIMITS: _parse_limits,
    Kind.RETRY: _parse_retry,
    **dict.fromkeys((Kind.ZONE, Kind.NAME, Kind.TEMPLATE), _parse_text),
}


def check_schedule_name(name: str) -> None:
    """Raises ValueError unless a schedule can have this name, which is part of addresses."""
    if not name.strip() or len(name.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES or "/" in name:
        raise ValueError(f"a schedule's name is a text of 1 to {_MAX_NAME_BYTES} bytes without a slash, not {name!r}")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{name} is a text that is neither empty nor has control characters, not {value!r}")


def _parse_datasets(values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"after is a list of datasets, such as [{values!r}]")
    names = tuple(values)
    if not 1 <= len(names) <= MAX_DATASETS or len(set(names)) < len(names):
        raise ValueError(f"after names from 1 to {MAX_DATASETS} datasets, each once")
    for name in names:
        _check_text("a dataset in after", name)
        if len(name.encode("utf-8", "surrogatepass")) > MAX_DATASET_BYTES:
            raise ValueError(f"a dataset in after has at most {MAX_DATASET_BYTES} bytes; one begins {name[:40]!r}")
    return names


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value
