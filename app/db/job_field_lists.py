"""What SQL makes of the fields of a job: the lists that `make generated` puts into schema.sql.

A line `-- fields of a job: NAME` of a part stands for a list of one item a field, and `-- fields of a filter` for the
conditions of a filter of jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from dataloader._job_fields import JOB_FIELDS, REQUIRED_FIELDS, JobField, Kind
from dataloader._job_filter import FILTER_FIELDS

_PLACEHOLDER = re.compile(r"^( *)-- fields of a job: (\w+)(,?)$", re.MULTILINE)
_CONDITIONS = "-- fields of a filter"
_MAX_WIDTH = 119
_IS_BLANK = r"btrim($, E' \t\n\r\f\x0b') = ''"  # \v is the letter v before PostgreSQL 16
_NAME_PROBLEM = "must be a text that is not empty, of at most {} bytes in UTF-8"
_TEXT_CHECK = ("octet_length($) > 2000", "must be a text of at most 2000 bytes in UTF-8")
_COUNT_CHECK = ("$ < 1", "must be 1 or more")
_OBJECT_CHECK = ("jsonb_typeof($) NOT IN ('object', 'null')", "must be a JSON object")
# Of a kind: the condition that a wrong value meets, and what is wrong with it. $ is the value.
_CHECKS: Mapping[Kind, tuple[str, str]] = {
    Kind.QUEUE: (f"{_IS_BLANK} OR octet_length($) > 1000", _NAME_PROBLEM.format(1000)),
    Kind.LOCK_KEY: (f"{_IS_BLANK} OR octet_length($) > 2000", _NAME_PROBLEM.format(2000)),
    Kind.KEY: (f"{_IS_BLANK} OR octet_length($) > 2000", _NAME_PROBLEM.format(2000)),
    Kind.TEXT: _TEXT_CHECK,
    Kind.PART: _TEXT_CHECK,
    Kind.TENANT: ("octet_length($) > 500", "must be a text of at most 500 bytes in UTF-8"),
    Kind.TAGS: (
        "NOT dl_is_tag_list(nullif($, '{}'))",
        "must be an array of at most 20 texts, each of 1 to 100 bytes in UTF-8",
    ),
    Kind.PRIORITY: ("$ < 0", "must be 0 or more"),
    **dict.fromkeys((Kind.COUNT, Kind.SECONDS, Kind.LEASE), _COUNT_CHECK),
    # As numbers: a time is a constant of the function that depends on the settings of the account that creates it.
    Kind.TIME: (
        "extract(epoch FROM $) < -62135596800 OR extract(epoch FROM $) >= 253402214400",
        "must be a time between the years 1 and 9999",
    ),
    **dict.fromkeys((Kind.ARGS, Kind.RETRY, Kind.WEBHOOK), _OBJECT_CHECK),
}
# What the functions of schema.sql compute themselves, of several fields.
_COMPUTED = ("args", "available_at", "fair_key", "expires_at", "start_within_sec")
# Fields that may find an earlier job, or that need further rows: the INSERT of dl_create_plain_jobs is without them.
_NEED_LOOKUP = ("idempotency_key", "live_key", "after", "need", "debounce", "throttle", "start_within_sec")
# Fields that a usual request has. dl_request_problem looks at the others only where one is set.
_OFTEN_SET = (
    "queue", "task", "lock_key", "args", "idempotency_key", "partition_key", "priority", "max_attempts",
    "lease_ttl_sec", "producer",
)  # fmt: skip
_NOT_OF_SQL = ("webhook", "traceparent", "schedule_id", "backfill_id")  # dl_enqueue has no parameter for them
_PLAIN_FIELDS = [f for f in JOB_FIELDS.values() if f.has_column and f.name not in (*_COMPUTED, *_NEED_LOOKUP)]
_COLUMNS = [f for f in JOB_FIELDS.values() if f.has_column]


def fill_lists(text: str) -> str:
    """Put the lists in the place of the lines that name them."""

    def make_list(match: re.Match[str]) -> str:
        indent, name, comma = match.groups()
        if name in ("often_checks", "seldom_checks"):
            return "\n".join(f"{indent}{case}" for case in _checks(often=name == "often_checks"))
        return _wrap(_LISTS[name](), indent, comma)

    return _PLACEHOLDER.sub(make_list, text).replace(_CONDITIONS, f"{_conditions()};")


def _conditions() -> str:
    """What a job must meet to match a filter."""
    return "\n       AND ".join(field.sql for field in FILTER_FIELDS.values())


def enqueue_parameters() -> list[str]:
    names = [name for name in JOB_FIELDS if name not in (*_NOT_OF_SQL, "parent_id")]
    names.insert(names.index("retry") + 1, "parent_id")  # its position in release 0.2.0: callers may count on it
    return names


def _wrap(items: list[str], indent: str, comma: str) -> str:
    lines = [""]
    for item in items:
        if lines[-1] and len(indent) + len(lines[-1]) + len(item) > _MAX_WIDTH:
            lines.append("")
        lines[-1] += f"{item}, "
    return "\n".join(f"{indent}{line.rstrip()}" for line in lines).removesuffix(",") + comma


def _parameter(field: JobField) -> str:
    parameter = f"{field.name} {field.kind.sql_type}"
    if field.name in REQUIRED_FIELDS:
        return parameter
    default = "'{}'" if field.kind is Kind.ARGS else _literal(field.default)
    return f"{parameter} DEFAULT {default}"


def _literal(value: str | int | None) -> str:
    return "NULL" if value is None else str(value) if isinstance(value, int) else f"'{value}'"


def _argument(field: JobField) -> str:
    """Without defaults, which cost time to read."""
    value = field.name if field.default is None else f"nullif({field.name}, {_literal(field.default)})"
    return f"'{field.name}', {value}"


def _value(field: JobField) -> str:
    """The value of a request `r` in its column."""
    if field.default is not None:
        return f"coalesce(r.{field.name}, {_literal(field.default)})"
    empty = {"jsonb": "'null'", "text[]": "'{}'"}.get(field.kind.sql_type)
    return f"r.{field.name}" if empty is None else f"nullif(r.{field.name}, {empty})"


def _parsed(field: JobField) -> str:
    return f"v.{field.name}" if field.name in _COMPUTED else _value(field)


def _checks(*, often: bool) -> Iterator[str]:
    """The cases of dl_request_problem for what a field must be by itself."""
    for name, field in JOB_FIELDS.items():
        if (name in _OFTEN_SET) is not often:
            continue
        if name in REQUIRED_FIELDS:
            yield f"WHEN r.{name} IS NULL THEN ARRAY['{name}', 'is required']"
        if field.kind in _CHECKS:
            condition, problem = _CHECKS[field.kind]
            yield f"WHEN {condition.replace('$', f'r.{name}')} THEN ARRAY['{name}', '{problem}']"


_LISTS: Mapping[str, Callable[[], list[str]]] = {
    "names": lambda: [f"'{name}'" for name in JOB_FIELDS],
    "seldom_set": lambda: [f"r.{name}" for name in JOB_FIELDS if name not in _OFTEN_SET],
    "attributes": lambda: [f"{f.name} {f.kind.sql_type}" for f in JOB_FIELDS.values()],
    "parameters": lambda: [_parameter(JOB_FIELDS[name]) for name in enqueue_parameters()],
    "arguments": lambda: [
        _argument(JOB_FIELDS[name]) for name in enqueue_parameters() if name not in ("args", "retry", "limits")
    ],
    "parsed": lambda: [_parsed(f) for f in JOB_FIELDS.values()],
    "columns": lambda: [f.name for f in _COLUMNS],
    "requested": lambda: [f"a.{f.name}" for f in _COLUMNS],
    "copied": lambda: [f"'{f.name}', {f.name}" for f in JOB_FIELDS.values() if f.is_copied],
    "plain_columns": lambda: [f.name for f in _PLAIN_FIELDS],
    "plain_values": lambda: [_value(f) for f in _PLAIN_FIELDS],
    "lookups": lambda: [f"'{name}'" for name in _NEED_LOOKUP],
}
