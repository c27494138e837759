"""What comes in and what goes out. The same types validate, answer, and describe themselves in the OpenAPI document."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from app.log import conceal
from app.queue.job import Event, Job, NewJob, Status
from app.web.options import WebOptions
from app.web.strictjson import FieldFault, path_to
from app.web.subscriptions import JobWebhook, sendable
from app.web.tasks import defaults_of, made
from pipelines.contract import Pipelines, read_policy

INT4_MAX = 2_147_483_647
# What stands in these under the name of a secret is not shown.
_MAY_HOLD_SECRETS = frozenset({"args", "progress", "result", "checkpoint"})
LONGEST_INDEXED = 2_000  # bytes: an index entry of PostgreSQL holds some 2,700
LONGEST_LIST = 1_000
POLICIES = ["fixed", "linear", "exponential", "table"]

_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
# A year of margin at both ends: shown in any zone, the time still has a year that Python can hold.
_EARLIEST, _LATEST = datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)


def read_moment(told: Any) -> Any:
    """RFC 3339 with a zone, as UTC: PostgreSQL knows fewer offsets than the RFC does."""
    if told is None:
        return None
    if not isinstance(told, str) or not _RFC3339.fullmatch(told):
        raise PydanticCustomError("moment", "is no RFC 3339 time with a zone, such as 2030-01-31T08:00:00+03:00")
    try:
        moment = datetime.fromisoformat(told.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise PydanticCustomError("moment", "is a day that the calendar does not have") from None
    if not _EARLIEST <= moment <= _LATEST:
        raise PydanticCustomError("moment", "is out of range: the years 0002 to 9998 can be kept")
    return moment


def read_name(told: str) -> str:
    if not told.strip():
        raise PydanticCustomError("name", "is empty; a text is needed")
    if unicodedata.category(told[0]) == "Cc" or unicodedata.category(told[-1]) == "Cc":
        raise PydanticCustomError("name", "begins or ends with a control character, such as a line break")
    return read_indexed(told)


def read_indexed(told: str) -> str:
    size = len(told.encode("utf-8", "surrogatepass"))
    if size > LONGEST_INDEXED:
        raise PydanticCustomError(
            "name",
            "takes {size} bytes in UTF-8; at most {most} fit into an index",
            {"size": size, "most": LONGEST_INDEXED},
        )
    return told


def read_retry(told: dict[str, Any]) -> dict[str, Any]:
    try:
        read_policy(told)
    except ValueError as error:
        raise PydanticCustomError("policy", "{why}", {"why": str(error)}) from None
    return told


# A text that is neither blank nor holds NUL.
NAME_PATTERN = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"


def need_one_of(*, but: frozenset[str] = frozenset(), null_counts: bool) -> Any:
    """For a model's JSON Schema: a request names one of its fields at least. `null_counts`: null is a change too."""

    def need(schema: dict[str, Any]) -> None:
        fields = [field for field in schema["properties"] if field not in but]
        schema["anyOf"] = [
            {"required": [field]} | ({} if null_counts else {"properties": {field: {"not": {"type": "null"}}}})
            for field in fields
        ]

    return need


class TriggerRequest(BaseModel):
    """A request for a job. The limits are set by `trigger_request`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    queue: str
    task: str
    lock_key: str
    args: dict[str, Any]
    idempotency_key: str | None
    partition_key: str
    priority: int
    available_at: datetime | None
    max_attempts: int
    lease_ttl_sec: int
    producer: str | None
    consumer_group: str | None
    live_key: str | None
    time_limit_sec: int | None
    retry: dict[str, Any] | None
    webhook: JobWebhook | None

    def new_job(self, traceparent: str | None = None) -> NewJob:
        hook = None if self.webhook is None else self.webhook.model_dump()
        return NewJob(**{**self.__dict__, "webhook": hook, "traceparent": traceparent})


def trigger_request(options: WebOptions, pipelines: Pipelines) -> type[TriggerRequest]:
    """The request with the limits and defaults of the settings, which its JSON Schema then shows, and those of the task
    it is for."""
    text = Annotated[str, Field(max_length=options.max_text_length)]
    name = Annotated[
        str,
        Field(min_length=1, max_length=options.max_text_length, json_schema_extra={"pattern": NAME_PATTERN}),
        AfterValidator(read_name),
    ]
    indexed = Annotated[str, Field(max_length=options.max_text_length), AfterValidator(read_indexed)]
    moment = Annotated[
        datetime | None,
        BeforeValidator(read_moment),
        WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}),
    ]
    shortest = options.shortest_lease_sec
    lease = Annotated[
        int, Field(le=INT4_MAX, json_schema_extra={"minimum": shortest}), AfterValidator(_at_least(shortest))
    ]
    fields: dict[str, Any] = {
        "queue": (
            name,
            Field(
                description="The queue whose workers run the job. Required, unless the task has a default.",
                examples=["etl.default"],
            ),
        ),
        "task": (name, Field(description="The pipeline's registered name.", examples=["noop"])),
        "lock_key": (
            Annotated[name, BeforeValidator(made)],
            Field(
                description="Jobs with one key never run at the same time. Required, unless the task has a default.",
                examples=["noop"],
            ),
        ),
        "args": (
            dict[str, Any],
            Field({}, description="What the pipeline is given.", examples=[{"sleep1": 1, "sleep2": 1, "sleep3": 1}]),
        ),
        "idempotency_key": (
            name | None,
            Field(None, description="Unique for ever: a second trigger with it makes no second job."),
        ),
        "partition_key": (
            indexed,
            Field("", description="Names the slice of work; independent slices run in parallel."),
        ),
        "priority": (
            Annotated[int, Field(ge=0, le=INT4_MAX)],
            Field(100, description="Smaller runs first."),
        ),
        "available_at": (
            moment,
            Field(None, description="Not before this time (RFC 3339 with a zone); null is at once."),
        ),
        "max_attempts": (
            Annotated[int, Field(ge=1, le=INT4_MAX)],
            Field(5, description="How many tries the job has."),
        ),
        "lease_ttl_sec": (
            lease,
            Field(
                options.default_lease_ttl_sec,
                description="How long its worker may be silent before the job is another's; two heartbeats or more.",
            ),
        ),
        "producer": (text | None, Field(None, description="Who asked for the job.")),
        "consumer_group": (text | None, Field(None, description="Whom the job is for.")),
        "live_key": (
            name | None,
            Field(None, description="Unique among waiting and running jobs: while one has it, that job is the answer."),
        ),
        "time_limit_sec": (
            Annotated[int, Field(ge=1, le=INT4_MAX)] | None,
            Field(None, description="How long a try may take; null: as the task says."),
        ),
        "retry": (
            Annotated[
                dict[str, Any],
                AfterValidator(read_retry),
                WithJsonSchema({"type": "object", "required": ["kind"], "properties": {"kind": {"enum": POLICIES}}}),
            ]
            | None,
            Field(
                None,
                description="How long to wait between tries; null: as the task says.",
                examples=[{"kind": "table", "seconds": [60, 300, 1800]}],
            ),
        ),
        "webhook": (
            Annotated[JobWebhook, AfterValidator(sendable(options))] | None,
            Field(None, description="Where to tell how this job ends, beside the webhooks that are told of all."),
        ),
    }
    fill: Any = model_validator(mode="before")(defaults_of(pipelines))

    class Described(TriggerRequest):
        model_config = ConfigDict(json_schema_extra=_required_of(pipelines))

    return create_model("TriggerRequest", __base__=Described, __validators__={"fill": fill}, **fields)


def _required_of(pipelines: Pipelines) -> Callable[[dict[str, Any]], None]:
    """For the JSON Schema of a trigger: `queue` and `lock_key` may be left out only where the task has a default."""

    def require(schema: dict[str, Any]) -> None:
        schema["required"] = ["task"]
        schema["allOf"] = []
        for required in ("queue", "lock_key"):
            tasks = sorted(task.name for task in pipelines if getattr(task.options, required) is not None)
            given: dict[str, Any] = {"required": [required]}
            known = {"properties": {"task": {"enum": tasks}}}
            schema["allOf"].append({"anyOf": [given, known]} if tasks else given)

    return require


def _at_least(shortest: int) -> Any:
    def long_enough(told: int) -> int:
        if told < shortest:
            raise PydanticCustomError(
                "lease",
                "a lease of {told} s is shorter than two heartbeats; {shortest} s or more would do",
                {"told": told, "shortest": shortest},
            )
        return told

    return long_enough


def faults_of(error: ValidationError) -> tuple[FieldFault, ...]:
    """Pydantic's report without the caller's values, which may be secrets."""
    details = error.errors(include_input=False, include_url=False, include_context=False)
    return tuple(FieldFault(_path(detail), _message(detail)) for detail in details)


def _path(detail: ErrorDetails) -> str:
    path = ""
    for step in detail["loc"]:
        path = path_to(path, step)
    return path or "body"


def _message(detail: ErrorDetails) -> str:
    told = {"missing": "is required", "extra_forbidden": "is no field of this request; leave it out"}
    return told.get(detail["type"], detail["msg"])


@dataclass(frozen=True)
class Triggered:
    """The job that the request made or found. `warnings`: why it may never run; left out if there is no reason."""

    job_id: UUID
    status: Status
    warnings: list[str] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = {"job_id": self.job_id, "status": self.status}
        return found | {"warnings": self.warnings} if self.warnings else found


@dataclass(frozen=True)
class JobState:
    """How a job does."""

    job_id: UUID
    status: Status
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None
    error: str | None
    progress: dict[str, Any]

    @classmethod
    def of(cls, job: Job) -> JobState:
        return cls(
            job.id,
            job.status,
            job.attempt,
            job.started_at,
            job.finished_at,
            job.heartbeat_at,
            job.error,
            conceal(job.progress),
        )


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """A job in a list."""

    job_id: UUID
    queue: str
    task: str
    status: Status
    lock_key: str
    partition_key: str
    idempotency_key: str | None
    priority: int
    attempt: int
    max_attempts: int
    cancel_requested: bool
    available_at: datetime
    created_at: datetime
    started_at: datetime | None
    heartbeat_at: datetime | None
    finished_at: datetime | None
    error: str | None
    progress: dict[str, Any]
    producer: str | None
    consumer_group: str | None

    @classmethod
    def of(cls, job: Job) -> JobLine:
        return cls(**_shown(job, _LINE_FIELDS))


@dataclass(frozen=True, kw_only=True)
class JobDetail(JobLine):
    """Everything about a job."""

    args: dict[str, Any]
    lease_ttl_sec: int
    lease_expires_at: datetime | None
    run_id: UUID | None
    worker: str | None
    result: Any
    traceback: str | None
    live_key: str | None
    time_limit_sec: int | None
    retry: dict[str, Any] | None
    parent_id: UUID | None
    crashes: int
    checkpoint: Any

    @classmethod
    def of(cls, job: Job) -> JobDetail:
        return cls(**_shown(job, _DETAIL_FIELDS))


_LINE_FIELDS = tuple(JobLine.__dataclass_fields__)
_DETAIL_FIELDS = tuple(JobDetail.__dataclass_fields__)


def _shown(job: Job, names: tuple[str, ...]) -> Mapping[str, Any]:
    row = job.__dict__
    return {
        name: job.id if name == "job_id" else conceal(row[name]) if name in _MAY_HOLD_SECRETS else row[name]
        for name in names
    }


@dataclass(frozen=True)
class JobEvent:
    """A line of a job's journal."""

    event_id: int
    ts: datetime
    kind: str
    payload: dict[str, Any]

    @classmethod
    def of(cls, event: Event) -> JobEvent:
        return cls(event.id, event.at, event.kind, conceal(event.payload))


@dataclass(frozen=True)
class JobEvents:
    job_id: UUID
    events: list[JobEvent]


@dataclass(frozen=True)
class Health:
    status: Literal["healthy"]


@dataclass(frozen=True)
class Info:
    service: Literal["dataloader"]
    version: str
    environment: str


@dataclass(frozen=True)
class Feedback:
    likes: int
    dislikes: int


@dataclass(frozen=True)
class Part:
    """One thing the service cannot do without."""

    ready: bool
    detail: str | None


@dataclass(frozen=True)
class DatabasePart(Part):
    round_trip_ms: float | None


@dataclass(frozen=True)
class SchemaPart(Part):
    found: int | None
    needed: int


@dataclass(frozen=True)
class Readiness:
    """What is there and what is missing. Null: this process has none, or it could not be asked."""

    ready: bool
    state: Literal["ready", "starting", "not_ready"]  # starting: the process has not been ready yet
    database: DatabasePart
    schema: SchemaPart | None
    pool: dict[str, Any] | None
    workers: dict[str, Any] | None
