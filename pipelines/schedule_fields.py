"""The fields of a schedule, each declared once. Loads the standard library alone.

A field has a kind, which is its type with its limits. What a kind means is defined once a layer: for `@schedule` in
`schedules.py`, for requests and stored definitions in `schedule_definition.py`, for forms in
`app/features/schedules/form.py`. From the declarations here follow the options of `@schedule`, the request models and
with them the options of the commands, the form, what a job takes from its schedule, and the table of docs/schedules.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, TypedDict, get_args

from dataloader.pipelines.retry import Policy

INT4_MAX = 2_147_483_647
MAX_EXCLUDED, MAX_DATASETS, MAX_DATASET_BYTES = 1_000, 20, 500
_DAY_SEC = 86_400

Times = Literal["cron", "interval", "dataset"]
Gap = Literal["after", "skip"]
Fold = Literal["first", "second", "both"]
CatchUp = Literal["last", "all", "skip"]
Overlap = Literal["queue", "skip", "cancel", "allow"]
Need = Literal["all", "any"]


class Kind(StrEnum):
    """The type of a field's value, and its limits."""

    TASK = "task"
    CHOICE = "choice"
    EXPRESSION = "expression"
    ZONE = "zone"
    NAME = "name"  # of a queue
    TEMPLATE = "template"  # a text with placeholders
    NUMBER = "number"
    SECONDS = "seconds"
    MOMENT = "moment"
    DAYS = "days"
    DATASETS = "datasets"
    ARGS = "args"
    RETRY = "retry"
    LIMITS = "limits"
    PARTITIONS = "partitions"


@dataclass(frozen=True, kw_only=True)
class ScheduleField:
    kind: Kind
    text: str  # what it is for
    default: Any = None
    minimum: int = 1
    maximum: int = INT4_MAX
    choices: Mapping[str, str] = field(default_factory=dict)  # each value, and what the form calls it
    label: str = ""  # of its input in the form; empty: the form has none
    hint: str = ""  # next to it; {zone} is the zone of the pages
    is_main: bool = False  # the form shows it at once
    of_job: bool = False  # its jobs have it as it is
    name: str = ""
    option: str = ""  # of `@schedule`; empty: it has none

    @property
    def description(self) -> str:
        return f"{self.text}."


def _field(kind: Kind, text: str, label: str = "", hint: str = "", **more: Any) -> ScheduleField:
    return ScheduleField(kind=kind, text=text, label=label, hint=hint, **more)


def _choice(text: str, label: str, choices: Mapping[str, str], **more: Any) -> ScheduleField:
    """The first of the choices is the default."""
    return ScheduleField(kind=Kind.CHOICE, text=text, label=label, choices=choices, default=next(iter(choices)), **more)


# fmt: off
_RULE = {
    "task": _field(Kind.TASK, "The task of its jobs"),
    "kind": _choice(
        "cron: at times of a clock; interval: by elapsed time; dataset: when datasets are updated", "Kind",
        {"cron": "times of a clock", "interval": "each so many seconds", "dataset": "updates of datasets"},
        is_main=True),
    "expression": _field(
        Kind.EXPRESSION, "Of cron five fields, such as `0 6 * * *`, or @daily; of an interval a number of seconds",
        "Rule", "cron, such as 0 6 * * 1-5, or @daily; seconds of an interval", default="", is_main=True),
    "after": _field(
        Kind.DATASETS, "The datasets whose updates make jobs", "Datasets",
        "one a line; of the kind updates of datasets", default=(), is_main=True),
}
# What code does not declare.
_OF_PEOPLE = {
    "anchor": _field(
        Kind.MOMENT, "An interval counts from here; null: from 1970", "Interval counts from", "{zone}"),
    "lease_ttl_sec": _field(
        Kind.SECONDS, "How long the lease of a job lasts without a heartbeat; null: the service's", "Lease",
        "seconds; empty: the service's"),
    "fair_key": _field(
        Kind.TEMPLATE, "The tenant that its jobs count as in a fair queue; may have placeholders", "Tenant",
        "in a fair queue"),
    "partitions": _field(Kind.PARTITIONS, "The slices of the task, as it declares them"),
}


class ScheduleOptions(TypedDict, total=False):
    """Options of `@schedule`; docs/schedules.md describes each."""

    name: str | None
    off: bool
    zone: Annotated[str | None, _field(
        Kind.ZONE, "The IANA time zone of its times and days; null: the service's", "Time zone", "empty: {zone}",
        is_main=True)]
    overlap: Annotated[Overlap, _choice(
        "While an earlier job is queued or running: wait behind it, skip this one, cancel it, or run both",
        "While an earlier job has not ended",
        {"queue": "wait for it", "skip": "make no job", "cancel": "cancel it", "allow": "run both"}, is_main=True)]
    catch_up: Annotated[CatchUp, _choice(
        "Of times that no process fired within grace_sec: the latest, all of them, or none", "Missed times",
        {"last": "make up for the latest", "all": "make up for all", "skip": "skip"}, is_main=True)]
    args: Annotated[Mapping[str, Any] | None, _field(
        Kind.ARGS, "The args of its jobs; texts may have placeholders, as {interval_start:%Y-%m-%d}", "Args",
        "as a JSON object; texts may have placeholders", default={}, is_main=True)]
    queue: Annotated[str | None, _field(
        Kind.NAME, "The queue of its jobs; null: the task's", "Queue", "empty: the task's")]
    lock_key: Annotated[str | None, _field(
        Kind.TEMPLATE, "Jobs with one key run one after the other; null: the task's, or else one of the schedule",
        "Lock key", "empty: the task's, or one of the schedule")]
    priority: Annotated[int | None, _field(
        Kind.NUMBER, "Smaller runs first", "Priority", "smaller runs first", default=100, minimum=0, of_job=True)]
    max_attempts: Annotated[int | None, _field(
        Kind.NUMBER, "The maximum number of attempts of each job", "Attempts", default=5, of_job=True)]
    time_limit: Annotated[int | timedelta | None, _field(
        Kind.SECONDS, "The time limit of an attempt; null: the task's", "Time limit", "seconds; empty: the task's",
        name="time_limit_sec", of_job=True)]
    need: Annotated[Need, _choice(
        "all of these datasets, or one, since its last job", "Of the datasets",
        {"all": "all must be updated", "any": "one is enough"})]
    starts: Annotated[datetime | str | None, _field(
        Kind.MOMENT, "No job for earlier times", "Starts", "{zone}", name="starts_at")]
    ends: Annotated[datetime | str | None, _field(
        Kind.MOMENT, "No job for later times", "Ends", "{zone}", name="ends_at")]
    jitter: Annotated[int | timedelta, _field(
        Kind.SECONDS, "Jobs start up to so many seconds later, always the same for one time", "Spread",
        "seconds that jobs may start later", default=0, minimum=0, maximum=_DAY_SEC, name="jitter_sec")]
    gap: Annotated[Gap, _choice(
        "A time that a clock change leaves out: after it, or not", "A time that the clock leaves out",
        {"after": "fires after the gap", "skip": "does not fire"})]
    fold: Annotated[Fold, _choice(
        "A time that a clock change repeats", "A time that comes twice",
        {"first": "fires the first time", "second": "fires the second time", "both": "fires both times"})]
    grace: Annotated[int | timedelta, _field(
        Kind.SECONDS, "A time that is fired more than so many seconds late counts as missed", "Late after",
        "seconds; then a time counts as missed", default=60, maximum=31 * _DAY_SEC, name="grace_sec")]
    catch_up_max: Annotated[int, _field(
        Kind.NUMBER, "Of missed times at most so many, the latest ones", "Missed times at most", default=100,
        maximum=10_000)]
    catch_up_window: Annotated[int | timedelta, _field(
        Kind.SECONDS, "No missed times that are older, in seconds", "None older than", "seconds", default=7 * _DAY_SEC,
        maximum=366 * _DAY_SEC, name="catch_up_window_sec")]
    excluded: Annotated[Iterable[date | str], _field(
        Kind.DAYS, "Days without a job", "Days without a job", "one a line, such as 2026-12-31", default=())]
    limits: Annotated[Mapping[str, int] | None, _field(
        Kind.LIMITS, "What a job counts in limits while it runs: names and weights; null: the task's", "Limits",
        "names and weights as a JSON object; empty: the task's")]
    retry: Annotated[Policy | None, _field(
        Kind.RETRY, "The delay between attempts; null: the task's", "Retry",
        "a policy as a JSON object; empty: the task's", of_job=True)]
# fmt: on


OPTIONS: Mapping[str, ScheduleField] = {
    option: replace(found, name=found.name or option, option=option)
    for option, annotation in ScheduleOptions.__annotations__.items()
    for found in get_args(annotation)
    if isinstance(found, ScheduleField)
}
SCHEDULE_FIELDS: Mapping[str, ScheduleField] = {
    declared.name: declared
    for declared in (
        *(replace(found, name=name) for name, found in _RULE.items()),
        *OPTIONS.values(),
        *(replace(found, name=name) for name, found in _OF_PEOPLE.items()),
    )
}
