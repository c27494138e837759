"""The fields of a job that is to be made, each declared once. Loads the standard library alone.

A field has a kind, which is its type with its limits. What a kind means is defined once a layer: for requests in
`app/http/jobs/trigger_request.py`, and for SQL in `app/db/job_field_lists.py`. From the declarations here follow
the request models, the parameters of `dl_enqueue`, the lists of the INSERTs, the checks of a batch, the options of
`dataloader trigger` and of `enqueue`, what a clone copies, and the table of docs/http-api.md.

To add a field: declare it here, add its column to the table `dl_jobs` with a migration, and run `make generated`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Required, TypedDict, get_origin
from uuid import UUID


class Kind(StrEnum):
    """The type of a field's value, and its limits."""

    QUEUE = "queue"  # the name of a queue or task
    LOCK_KEY = "lock_key"
    KEY = "key"  # unique among jobs
    TEXT = "text"
    PART = "part"  # the part of the work that the job loads: a text, empty by default
    TENANT = "tenant"  # of a fair queue
    TAGS = "tags"
    PRIORITY = "priority"
    COUNT = "count"
    SECONDS = "seconds"
    LEASE = "lease"
    TIME = "time"
    ARGS = "args"
    RETRY = "retry"
    LIMITS = "limits"
    PARENTS = "parents"
    NEED = "need"
    DEBOUNCE = "debounce"
    THROTTLE = "throttle"
    WEBHOOK = "webhook"
    ID = "id"

    @property
    def sql_type(self) -> str:
        return _SQL_TYPES.get(self, "text")


_SQL_TYPES = (
    dict.fromkeys((Kind.PRIORITY, Kind.COUNT, Kind.SECONDS, Kind.LEASE), "int")
    | dict.fromkeys((Kind.ARGS, Kind.RETRY, Kind.LIMITS, Kind.PARENTS, Kind.DEBOUNCE, Kind.THROTTLE), "jsonb")
    | {Kind.WEBHOOK: "jsonb", Kind.TIME: "timestamptz", Kind.TAGS: "text[]", Kind.ID: "uuid"}
)


@dataclass(frozen=True, kw_only=True)
class JobField:
    """A field of a new job. Without a text it is set by the service alone."""

    kind: Kind
    text: str = ""  # what it is for, in a line: the beginning of `description`
    unset: str = ""  # what holds if it is not given
    note: str = ""  # further, for requests as JSON
    default: Any = None
    examples: tuple[Any, ...] = ()
    is_copied: bool = False  # by a clone
    has_column: bool = True  # else it becomes rows of other tables, or other columns
    name: str = ""  # that of its annotation

    @property
    def description(self) -> str:
        return f"{self.text}; null: {self.unset}." if self.unset else f"{self.text}.{self.note}"


def _field(kind: Kind, text: str = "", unset: str = "", **more: Any) -> JobField:
    return JobField(kind=kind, text=text, unset=unset, **more)


# fmt: off
class JobIdentity(TypedDict, total=False):
    queue: Required[Annotated[str, _field(
        Kind.QUEUE, "The queue whose workers run the job", note=" Required, unless the task has a default.",
        examples=("etl.default",), is_copied=True)]]
    task: Required[Annotated[str, _field(
        Kind.QUEUE, "The pipeline's registered name", examples=("noop",), is_copied=True)]]
    lock_key: Required[Annotated[str, _field(
        Kind.LOCK_KEY, "Jobs with one key never run at the same time", note=" Required, unless the task has a default.",
        examples=("noop",), is_copied=True)]]
    args: Annotated[Mapping[str, Any], _field(
        Kind.ARGS, "The arguments of the pipeline", examples=({"sleep1": 1, "sleep2": 1, "sleep3": 1},),
        is_copied=True)]


class JobOptions(TypedDict, total=False):
    """Options of a new job; docs/http-api.md describes each."""

    idempotency_key: Annotated[str | None, _field(
        Kind.KEY, "Unique: a second trigger with it creates no second job while the first exists")]
    partition_key: Annotated[str | None, _field(
        Kind.PART, "The part of the work, such as a day; independent parts run in parallel", default="",
        is_copied=True)]
    priority: Annotated[int | None, _field(
        Kind.PRIORITY, "Smaller runs first", default=100, is_copied=True)]
    available_at: Annotated[datetime | None, _field(
        Kind.TIME, "The earliest start (RFC 3339 with a zone)", "at once")]
    max_attempts: Annotated[int | None, _field(
        Kind.COUNT, "The maximum number of attempts", default=5, is_copied=True)]
    lease_ttl_sec: Annotated[int | None, _field(
        Kind.LEASE, "How long the lease lasts without a heartbeat; at least two heartbeat intervals", default=60,
        is_copied=True)]
    producer: Annotated[str | None, _field(
        Kind.TEXT, "The service that triggered the job", is_copied=True)]
    consumer_group: Annotated[str | None, _field(
        Kind.TEXT, "The consumer of the result", is_copied=True)]
    live_key: Annotated[str | None, _field(
        Kind.KEY, "Unique among queued and running jobs: while one has it, a trigger returns that job")]
    time_limit_sec: Annotated[int | None, _field(
        Kind.SECONDS, "The time limit of an attempt", "the task's", is_copied=True)]
    retry: Annotated[Mapping[str, Any] | None, _field(
        Kind.RETRY, "The delay between attempts", "the task's",
        examples=({"kind": "table", "seconds": [60, 300, 1800]},), is_copied=True)]
    limits: Annotated[Mapping[str, int] | None, _field(
        Kind.LIMITS, "What the job counts in limits while it runs: names and weights", "the task's",
        examples=({"warehouse": 2},), is_copied=True)]
    after: Annotated[Sequence[Mapping[str, str]] | None, _field(
        Kind.PARENTS, "The jobs that this one waits for; all in one graph", has_column=False)]
    need: Annotated[str | None, _field(
        Kind.NEED, "all parents, or the first that ends as asked", has_column=False)]
    fair_key: Annotated[str | None, _field(
        Kind.TENANT, "The tenant that the job counts as in a fair queue", "by the queue's rule", is_copied=True)]
    debounce: Annotated[Mapping[str, Any] | None, _field(
        Kind.DEBOUNCE, "While a job with this key is queued, the request moves its time and changes its args instead"
        " of making another one. Not with idempotency_key, live_key, available_at, after or throttle",
        has_column=False)]
    throttle: Annotated[Mapping[str, Any] | None, _field(
        Kind.THROTTLE, "At most one job of this key in each window; further requests return that one. Not with"
        " live_key", has_column=False)]
    expires_at: Annotated[datetime | None, _field(
        Kind.TIME, "Canceled if it has not started by then (RFC 3339 with a zone)", "never")]
    start_within_sec: Annotated[int | None, _field(
        Kind.SECONDS, "Canceled if it has not started so long after its time", "the task's", has_column=False)]
    logical_at: Annotated[datetime | None, _field(
        Kind.TIME, "The time that the job is for (RFC 3339 with a zone)")]
    interval_start: Annotated[datetime | None, _field(
        Kind.TIME, "The data that it is to load begins here; with interval_end")]
    interval_end: Annotated[datetime | None, _field(
        Kind.TIME, "The data that it is to load ends before this time")]
    tags: Annotated[Sequence[str] | None, _field(
        Kind.TAGS, "Words by which the job is found, such as a team", examples=(["finance"],), is_copied=True)]


class RequestOptions(JobOptions, total=False):
    webhook: Annotated[Mapping[str, Any] | None, _field(
        Kind.WEBHOOK, "A webhook of this job, in addition to those of all jobs", is_copied=True)]


class TriggerOptions(RequestOptions, total=False):
    """Options of a job that is triggered over HTTP. The task may have a default queue and lock key."""

    queue: str | None
    lock_key: str | None


class NewJobFields(JobIdentity, RequestOptions, total=False):
    """All fields of a new job, with those that the service sets."""

    parent_id: Annotated[UUID | None, _field(Kind.ID)]  # the job that makes it
    traceparent: Annotated[str | None, _field(Kind.TEXT)]  # W3C trace context of the request
    schedule_id: Annotated[UUID | None, _field(Kind.ID)]  # the schedule that makes it
    backfill_id: Annotated[UUID | None, _field(Kind.ID)]  # the backfill that makes it
# fmt: on


def _declared(name: str, annotation: Any) -> JobField:
    annotated = annotation.__args__[0] if get_origin(annotation) is Required else annotation
    field: JobField = annotated.__metadata__[0]
    return replace(field, name=name)


JOB_FIELDS: Mapping[str, JobField] = {
    name: _declared(name, annotation) for name, annotation in NewJobFields.__annotations__.items()
}
REQUEST_FIELDS: Mapping[str, JobField] = {name: field for name, field in JOB_FIELDS.items() if field.text}
REQUIRED_FIELDS = JobIdentity.__required_keys__
DEFAULTS: Mapping[str, Any] = {name: field.default for name, field in JOB_FIELDS.items()}
