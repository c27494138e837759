"""Types shared by requests and responses, which also describe them in the OpenAPI document."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import Annotated, Any, Literal, TypeVar
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
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.admin.webhooks import FINAL_EVENTS, JOB_EVENTS, SUBSCRIBABLE_EVENTS, WebhookEvent
from app.log import mask_secret_fields
from app.net import MAX_URL_LENGTH, AllowedHosts, ForbiddenAddress, parse_url
from app.queue.job import Job, JobEvent, NewJob, Status
from app.web.json_io import FieldError, join_path
from app.web.options import WebOptions
from pipelines.contract import Args, Pipelines, Task, read_policy
from pipelines.job_args import RESULT_KEY, ArgError, BadReference, find_references, parent_of
from pipelines.limits import check_limits

INT4_MAX = 2_147_483_647
MAX_KEY_BYTES = 2_000  # an index entry of PostgreSQL holds about 2,700
MAX_PAGE_SIZE = 1_000
MAX_TEXT_LENGTH = 1_000
RETRY_POLICY_KINDS = ["fixed", "linear", "exponential", "table"]

_RFC3339_PATTERN = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
# A year of margin at both ends: shown in any zone, the time still has a year that Python can hold.
_MIN_DATETIME, _MAX_DATETIME = datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)


def parse_datetime(raw: Any) -> Any:
    """Parse RFC 3339 with a zone into UTC: PostgreSQL allows fewer offsets than the RFC does."""
    if raw is None:
        return None
    if not isinstance(raw, str) or not _RFC3339_PATTERN.fullmatch(raw):
        raise PydanticCustomError("moment", "is no RFC 3339 time with a zone, such as 2030-01-31T08:00:00+03:00")
    try:
        moment = datetime.fromisoformat(raw.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise PydanticCustomError("moment", "is a day that the calendar does not have") from None
    if not _MIN_DATETIME <= moment <= _MAX_DATETIME:
        raise PydanticCustomError("moment", "is out of range: the years 0002 to 9998 can be kept")
    return moment


def parse_name(raw: str) -> str:
    if not raw.strip():
        raise PydanticCustomError("name", "is empty; a text is needed")
    if unicodedata.category(raw[0]) == "Cc" or unicodedata.category(raw[-1]) == "Cc":
        raise PydanticCustomError("name", "begins or ends with a control character, such as a line break")
    return parse_key(raw)


def parse_key(raw: str) -> str:
    size = len(raw.encode("utf-8", "surrogatepass"))
    if size > MAX_KEY_BYTES:
        raise PydanticCustomError(
            "name",
            "takes {size} bytes in UTF-8; at most {max} fit into an index",
            {"size": size, "max": MAX_KEY_BYTES},
        )
    return raw


def parse_retry(raw: dict[str, Any]) -> dict[str, Any]:
    try:
        read_policy(raw)
    except ValueError as error:
        raise PydanticCustomError("policy", "{why}", {"why": str(error)}) from None
    return raw


def parse_limits(raw: dict[str, int]) -> dict[str, int]:
    try:
        check_limits(raw)
    except ValueError as error:
        raise PydanticCustomError("limits", "{reason}", {"reason": str(error)}) from None
    return raw


Change = TypeVar("Change", bound=BaseModel)

Timestamp = Annotated[
    datetime | None,
    BeforeValidator(parse_datetime),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}),
]
# A text that is not blank and has no NUL.
NAME_PATTERN = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"


class QueryModel(BaseModel):
    """The fields of a query string or form."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BodyModel(BaseModel):
    """The fields of a JSON body."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def require_one_field(*, excluded: frozenset[str] = frozenset(), null_is_change: bool) -> Any:
    """Return a JSON Schema extension: at least one field is required. `null_is_change`: null counts as a change."""

    def add_requirement(schema: dict[str, Any]) -> None:
        fields = [field for field in schema["properties"] if field not in excluded]
        schema["anyOf"] = [
            {"required": [field]} | ({} if null_is_change else {"properties": {field: {"not": {"type": "null"}}}})
            for field in fields
        ]

    return add_requirement


def require_change(model: Change) -> Change:
    """Validator of requests in which null means "leave as it is": at least one field has a value."""
    if all(value is None for value in vars(model).values()):
        raise PydanticCustomError("change", "there is no change; send at least one field")
    return model


@dataclass(frozen=True)
class _DefaultFailed:
    """Placeholder for a default of the task that could not be made from the args."""

    reason: str


def apply_task_defaults(pipelines: Pipelines) -> Callable[[Any], Any]:
    """Return a function that fills in the task's defaults before a request is validated."""

    def with_defaults(request: Any) -> Any:
        name = request.get("task") if isinstance(request, dict) else None
        task = pipelines.get(name) if isinstance(name, str) else None
        if task is None:
            return request
        known: dict[str, Any] = {}
        if "queue" not in request and task.options.queue is not None:
            known["queue"] = task.options.queue
        if "lock_key" not in request and task.options.lock_key is not None:
            known["lock_key"] = _from_args(task.fill_lock_key, request.get("args", {}))
        if request.get("limits") is None and task.options.limits:
            known["limits"] = _from_args(task.fill_limits, request.get("args", {}))
        if (
            task.options.start_within is not None
            and request.get("expires_at") is request.get("start_within_sec") is None
        ):
            known["start_within_sec"] = task.options.start_within
        return {**request, **known} if known else request

    return with_defaults


def _from_args(fill: Callable[[Args], Any], args: Any) -> Any:
    try:
        return fill(args if isinstance(args, dict) else {})
    except ValueError as error:
        return _DefaultFailed(str(error))


def resolve_default(value: Any) -> Any:
    """Return the value, or raise if it is a default that could not be made from the args."""
    if isinstance(value, _DefaultFailed):
        raise PydanticCustomError("task_default", "cannot be made from the args: {reason}", {"reason": value.reason})
    return value


def validate_args(task: Task | None, args: Args, *, parents: Collection[str] | None = ()) -> list[FieldError]:
    """Return the field errors of the args; of a task that this process does not know, only those of references to
    results. `parents`: the keys of the jobs that the job waits for; None: not known."""
    errors = [] if task is None else task.check_args(args)
    if parents is not None:
        errors = errors + _result_errors(args, parents)
    return [FieldError(_args_path(path), message) for path, message in errors]


def _result_errors(args: Args, parents: Collection[str]) -> list[ArgError]:
    with suppress(BadReference):  # an error of a known task's args already
        return [
            (path, "refers to the result of a job that this one does not wait for; name its parents in `after`")
            for path, reference in find_references(args)
            if reference.key == RESULT_KEY and parent_of(reference.name, parents) is None
        ]
    return []


def _args_path(path: str) -> str:
    if not path:
        return "args"
    return f"args{path}" if path.startswith("[") else f"args.{path}"


def event_schema(events: Iterable[WebhookEvent]) -> dict[str, object]:
    """The JSON Schema of a list of events."""
    return {"items": {"enum": [event.value for event in events]}, "minItems": 1}


def _validate_among(names: list[str], allowed: tuple[WebhookEvent, ...]) -> list[str]:
    strange = [event for event in names if event not in allowed]
    if strange or not names:
        found = repr(strange[0][:64]) if strange else "an empty list"
        raise PydanticCustomError(
            "event", "{found} names none of {known}", {"found": found, "known": ", ".join(allowed)}
        )
    return list(dict.fromkeys(names))


def validate_events(names: list[str] | None) -> list[str] | None:
    return None if names is None else _validate_among(names, SUBSCRIBABLE_EVENTS)


def validate_url(url: str | None, allowed: AllowedHosts) -> str | None:
    """Reject a URL that is not allowed, as far as this is known without resolving its host."""
    if url is not None:
        try:
            parse_url(url, allowed)
        except ForbiddenAddress as error:
            raise PydanticCustomError("url", "{why}", {"why": str(error)}) from None
    return url


class JobWebhook(BodyModel):
    """A webhook of one job."""

    url: Annotated[str, Field(max_length=MAX_URL_LENGTH, json_schema_extra={"format": "uri"})] = Field(
        description="The URL to POST to.", examples=["https://hooks.example.com/dataloader"]
    )
    events: Annotated[list[str], Field(json_schema_extra=event_schema(JOB_EVENTS))] = Field(
        [*FINAL_EVENTS], description="The events to deliver; by default all final statuses."
    )

    @field_validator("events")
    @classmethod
    def _validate_events(cls, names: list[str]) -> list[str]:
        return _validate_among(names, JOB_EVENTS)


def signable_webhook(options: WebOptions) -> Callable[[JobWebhook], JobWebhook]:
    """Return a validator: this service must be able to send to the URL, and to sign."""
    allowed = AllowedHosts.parse(options.webhook_allowed_hosts)

    def check(webhook: JobWebhook) -> JobWebhook:
        if not options.has_webhook_secret:
            raise PydanticCustomError(
                "webhook", "jobs' own webhooks are signed with DL_WEBHOOK_SECRET, which is not set here"
            )
        validate_url(webhook.url, allowed)
        return webhook

    return check


PositiveInt = Annotated[int, Field(ge=1, le=INT4_MAX)]
Priority = Annotated[int, Field(ge=0, le=INT4_MAX)]
Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]
IndexedText = Annotated[str, Field(max_length=MAX_TEXT_LENGTH), AfterValidator(parse_key)]
Name = Annotated[
    str,
    Field(min_length=1, max_length=MAX_TEXT_LENGTH, json_schema_extra={"pattern": NAME_PATTERN}),
    AfterValidator(parse_name),
]
RetryPolicy = Annotated[
    dict[str, Any],
    AfterValidator(parse_retry),
    WithJsonSchema({"type": "object", "required": ["kind"], "properties": {"kind": {"enum": RETRY_POLICY_KINDS}}}),
]


LimitWeights = Annotated[
    dict[str, int],
    BeforeValidator(resolve_default),
    AfterValidator(parse_limits),
    WithJsonSchema({
        "type": "object",
        "maxProperties": 4,
        "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
    }),
]  # fmt: skip


MAX_PARENTS = 1_000
ParentEnd = Annotated[
    Literal["succeeded", "ended", "failed"], Field(description="The end it waits for; lost counts as failed.")
]


class ParentReference(BodyModel):
    """A job that another one waits for."""

    job_id: Annotated[UUID, Field(strict=False, description="The parent.")]
    on: ParentEnd = "succeeded"


MAX_RULE_KEY_BYTES = 500


def parse_rule_key(raw: str) -> str:
    if len(raw.encode("utf-8", "surrogatepass")) > MAX_RULE_KEY_BYTES:
        raise PydanticCustomError("name", "has over {max} bytes in UTF-8", {"max": MAX_RULE_KEY_BYTES})
    return raw


RuleKey = Annotated[Name, AfterValidator(parse_rule_key)]


class Debounce(BodyModel):
    """Requests with one key make one queued job, which starts once no more come."""

    key: RuleKey
    wait_sec: Annotated[float, Field(ge=0.001, le=2_678_400, description="How long after the last request it starts.")]
    max_wait_sec: Annotated[float, Field(ge=0.001, le=26_784_000)] | None = Field(
        None, description="How long after the first request it starts at the latest; null: ten times wait_sec."
    )
    args: Literal["last", "first", "list"] = Field(
        "last",
        description="Whose args the job has: those of the last request, of the first, or of all up to 1,000, as "
        '{"items": [args, ...]}.',
    )

    @model_validator(mode="after")
    def _check_max_wait(self) -> Debounce:
        if self.max_wait_sec is not None and self.max_wait_sec < self.wait_sec:
            raise PydanticCustomError("debounce", "max_wait_sec is less than wait_sec")
        return self


class Throttle(BodyModel):
    """Of the requests with one key at most one in each time window makes a job."""

    key: RuleKey
    per_sec: Annotated[float, Field(ge=1, le=2_678_400, description="The length of a window, by the database's clock.")]


class TriggerRequest(BodyModel):
    """A request for a job. `trigger_request_model` adds what depends on the settings and on the task."""

    queue: Name = Field(
        description="The queue whose workers run the job. Required, unless the task has a default.",
        examples=["etl.default"],
    )
    task: Name = Field(description="The pipeline's registered name.", examples=["noop"])
    lock_key: Annotated[Name, BeforeValidator(resolve_default)] = Field(
        description="Jobs with one key never run at the same time. Required, unless the task has a default.",
        examples=["noop"],
    )
    args: dict[str, Any] = Field(
        {}, description="The arguments of the pipeline.", examples=[{"sleep1": 1, "sleep2": 1, "sleep3": 1}]
    )
    idempotency_key: Name | None = Field(
        None, description="Unique: a second trigger with it creates no second job while the first exists."
    )
    partition_key: IndexedText = Field(
        "", description="The part of the work, such as a day; independent parts run in parallel."
    )
    priority: Priority = Field(100, description="Smaller runs first.")
    available_at: Timestamp = Field(None, description="The earliest start (RFC 3339 with a zone); null: at once.")
    max_attempts: PositiveInt = Field(5, description="The maximum number of attempts.")
    lease_ttl_sec: int
    producer: Text | None = Field(None, description="The service that triggered the job.")
    consumer_group: Text | None = Field(None, description="The consumer of the result.")
    live_key: Name | None = Field(
        None, description="Unique among queued and running jobs: while one has it, a trigger returns that job."
    )
    time_limit_sec: PositiveInt | None = Field(None, description="The time limit of an attempt; null: the task's.")
    retry: RetryPolicy | None = Field(
        None,
        description="The delay between attempts; null: the task's.",
        examples=[{"kind": "table", "seconds": [60, 300, 1800]}],
    )
    limits: LimitWeights | None = Field(
        None,
        description="What the job counts in limits while it runs: names and weights; null: the task's.",
        examples=[{"warehouse": 2}],
    )
    after: Annotated[list[ParentReference], Field(min_length=1, max_length=MAX_PARENTS)] | None = Field(
        None, description="The jobs that this one waits for; all in one graph."
    )
    need: (
        Annotated[Literal["all", "any"], Field(description="all parents, or the first that ends as asked.")] | None
    ) = None
    fair_key: Annotated[Text, AfterValidator(parse_rule_key)] | None = Field(
        None, description="The tenant that the job counts as in a fair queue; null: by the queue's rule."
    )
    debounce: Debounce | None = Field(
        None,
        description="While a job with this key is queued, the request moves its time and changes its args instead of "
        "making another one. Not with idempotency_key, live_key, available_at, after or throttle.",
    )
    throttle: Throttle | None = Field(
        None,
        description="At most one job of this key in each window; further requests return that one. Not with live_key.",
    )
    expires_at: Timestamp = Field(
        None, description="Canceled if it has not started by then (RFC 3339 with a zone); null: never."
    )
    start_within_sec: PositiveInt | None = Field(
        None, description="Canceled if it has not started so long after its time; null: the task's."
    )
    logical_at: Timestamp = Field(None, description="The time that the job is for (RFC 3339 with a zone).")
    interval_start: Timestamp = Field(None, description="The data that it is to load begins here; with interval_end.")
    interval_end: Timestamp = Field(None, description="The data that it is to load ends before this time.")
    webhook: JobWebhook | None

    @model_validator(mode="after")
    def _check_combinations(self) -> TriggerRequest:
        others = {
            "debounce": ("idempotency_key", "live_key", "available_at", "after", "throttle"),
            "throttle": ("live_key",),
            "expires_at": ("start_within_sec",),
        }
        for name, excluded in others.items():
            if getattr(self, name) is not None:
                for other in excluded:
                    if getattr(self, other) is not None:
                        raise PydanticCustomError(
                            "combination", "{name} cannot be combined with {other}", {"name": name, "other": other}
                        )
        return self

    def args_errors(self, task: Task | None) -> list[FieldError]:
        """The field errors of the args."""
        return validate_args(task, self.checked_args, parents=None if self.after else ())

    @property
    def checked_args(self) -> dict[str, Any]:
        """The args as the job will have them."""
        is_list = self.debounce is not None and self.debounce.args == "list"
        return {"items": [self.args]} if is_list else self.args

    def to_new_job(self, traceparent: str | None = None) -> NewJob:
        hook = None if self.webhook is None else self.webhook.model_dump()
        parents = [{"job_id": str(parent.job_id), "on": parent.on} for parent in self.after or ()] or None
        rules = {
            name: None if value is None else value.model_dump(exclude_none=True)
            for name, value in (("debounce", self.debounce), ("throttle", self.throttle))
        }
        return NewJob(**{**self.__dict__, **rules, "webhook": hook, "traceparent": traceparent, "after": parents})


def trigger_request_model(options: WebOptions, pipelines: Pipelines) -> type[TriggerRequest]:
    """Return the model with the limits and defaults of the settings and of the task."""
    min_lease_sec = options.min_lease_ttl_sec

    def check_lease(lease_sec: int) -> int:
        if lease_sec < min_lease_sec:
            raise PydanticCustomError("lease", "{message}", {"message": short_lease_message(lease_sec, min_lease_sec)})
        return lease_sec

    lease = Annotated[
        int, Field(le=INT4_MAX, json_schema_extra={"minimum": min_lease_sec}), AfterValidator(check_lease)
    ]

    class Described(TriggerRequest):
        model_config = ConfigDict(json_schema_extra=_require_without_task_default(pipelines))

    fill: Any = model_validator(mode="before")(apply_task_defaults(pipelines))
    return create_model(
        "TriggerRequest",
        __base__=Described,
        __validators__={"fill": fill},
        lease_ttl_sec=(
            lease,
            Field(
                options.default_lease_ttl_sec,
                description="How long the lease lasts without a heartbeat; at least two heartbeat intervals.",
            ),
        ),
        webhook=(
            Annotated[JobWebhook, AfterValidator(signable_webhook(options))] | None,
            Field(None, description="A webhook of this job, in addition to those of all jobs."),
        ),
    )


def _require_without_task_default(pipelines: Pipelines) -> Callable[[dict[str, Any]], None]:
    """Return a JSON Schema extension: `queue` and `lock_key` are required unless the task has a default."""

    def require(schema: dict[str, Any]) -> None:
        schema["required"] = ["task"]
        schema["allOf"] = []
        for required in ("queue", "lock_key"):
            tasks = sorted(task.name for task in pipelines if getattr(task.options, required) is not None)
            given: dict[str, Any] = {"required": [required]}
            known = {"properties": {"task": {"enum": tasks}}}
            schema["allOf"].append({"anyOf": [given, known]} if tasks else given)

    return require


def short_lease_message(lease_sec: int, min_sec: int) -> str:
    return f"a lease of {lease_sec} s is shorter than two heartbeats; the minimum is {min_sec} s"


_ERROR_MESSAGES = {"missing": "is required", "extra_forbidden": "is no field of this request; leave it out"}


def field_errors(error: ValidationError) -> tuple[FieldError, ...]:
    """Convert pydantic's errors, without the caller's values, which may be secrets."""
    errors = []
    for detail in error.errors(include_input=False, include_url=False, include_context=False):
        path = reduce(join_path, detail["loc"], "")
        errors.append(FieldError(path or "body", _ERROR_MESSAGES.get(detail["type"], detail["msg"])))
    return tuple(errors)


@dataclass(frozen=True)
class TriggerResponse:
    """The job that the request created or found.

    `warnings`: why it may never run; left out if there are none. `debounced`: the request changed a queued job.
    """

    job_id: UUID
    status: Status
    warnings: list[str] = field(default_factory=list)
    debounced: bool = False

    def to_dict(self) -> dict[str, Any]:
        payload: dict[str, Any] = {"job_id": self.job_id, "status": self.status}
        if self.debounced:
            payload["debounced"] = True
        return payload | {"warnings": self.warnings} if self.warnings else payload


@dataclass(frozen=True)
class JobState:
    """The state of a job."""

    job_id: UUID
    status: Status
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None
    error: str | None
    progress: dict[str, Any]

    @classmethod
    def from_job(cls, job: Job) -> JobState:
        return cls(
            job.id,
            job.status,
            job.attempt,
            job.started_at,
            job.finished_at,
            job.heartbeat_at,
            job.error,
            mask_secret_fields(job.progress),
        )


@dataclass(frozen=True)
class JobEvents:
    job_id: UUID
    events: list[JobEvent]


@dataclass(frozen=True)
class Deleted:
    deleted: bool = True
