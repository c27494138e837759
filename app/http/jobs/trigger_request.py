"""The request that triggers a job, with the defaults of its task, and its response."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dataloader._job_fields import REQUEST_FIELDS, REQUIRED_FIELDS, JobField, Kind
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.options import WebOptions
from dataloader.app.http.schemas import (
    INT4_MAX,
    BodyModel,
    IndexedText,
    JobWebhook,
    Name,
    PositiveInt,
    Priority,
    RetryPolicy,
    Tags,
    Text,
    Timestamp,
    signable_webhook,
)
from dataloader.app.queue.job import NewJob, Status
from dataloader.pipelines.contract import Args, Pipelines, Task
from dataloader.pipelines.job_args import ArgError, ArgumentError, format_path, path_of_arg, result_errors
from dataloader.pipelines.limits import check_limits
from dataloader.pipelines.schedule_definition import slice_live_key, slice_of_args


@dataclass(frozen=True)
class _DefaultFailed:
    """Placeholder for a default of the task that could not be made from the args."""

    reason: str
    errors: list[ArgError]


def apply_task_defaults(pipelines: Pipelines, zone: str, *, has_live_keys: bool = True) -> Callable[[Any], Any]:
    """Return a function that fills in the task's defaults before a request is validated.

    Also the live key, of a slice or of the args that make its jobs unique; `zone` is that of slices that name none.
    """

    def with_defaults(request: Any) -> Any:
        name = request.get("task") if isinstance(request, dict) else None
        task = pipelines.get(name) if isinstance(name, str) else None
        if task is None:
            return request
        known: dict[str, Any] = {}
        if "queue" not in request and task.options.queue is not None:
            known["queue"] = task.options.queue
        if "lock_key" not in request and task.options.lock_key is not None:
            known["lock_key"] = _from_args(task, task.fill_lock_key, request.get("args", {}))
        if request.get("limits") is None and task.options.limits:
            known["limits"] = _from_args(task, task.fill_limits, request.get("args", {}))
        if has_live_keys and task.options.partitions is not None:
            known |= _slice_fields(task, request, zone)
        if has_live_keys and task.options.unique_by and _is_free_of(request, _NOT_OF_UNIQUE):
            args = request.get("args", {})
            known["live_key"] = task.unique_live_key(args if isinstance(args, dict) else {})
        if (
            task.options.start_within is not None
            and request.get("expires_at") is request.get("start_within_sec") is None
        ):
            known["start_within_sec"] = task.options.start_within
        return {**request, **known} if known else request

    return with_defaults


_NOT_OF_UNIQUE = ("live_key", "debounce", "throttle")
_NOT_OF_SLICES = ("live_key", "debounce", "throttle", "after", "logical_at", "interval_start", "interval_end")


def _is_free_of(request: dict[str, Any], names: tuple[str, ...]) -> bool:
    return all(request.get(name) is None for name in names)


def _slice_fields(task: Task, request: dict[str, Any], zone: str) -> dict[str, Any]:
    """Return the fields by which the job counts as the load of a slice, if its args are those of one."""
    args = request.get("args", {})
    if not isinstance(args, dict) or not _is_free_of(request, _NOT_OF_SLICES):
        return {}
    times = slice_of_args(task, args, zone=zone)
    if times is None or times.partition is None or request.get("partition_key") not in (None, "", times.partition):
        return {}
    fields: dict[str, Any] = {
        "partition_key": times.partition,
        "live_key": slice_live_key(task.name, times.partition),
        "logical_at": times.logical_at.isoformat(),
    }
    if times.interval is not None:
        fields |= {"interval_start": times.interval.start.isoformat(), "interval_end": times.interval.end.isoformat()}
    return fields


def _from_args(task: Task, fill: Callable[[Args], Any], args: Any) -> Any:
    args = args if isinstance(args, dict) else {}
    try:
        return fill(args)
    except ArgumentError as error:
        return _DefaultFailed(str(error), task.check_args(args) or [(format_path([error.name]), error.message)])
    except ValueError as error:
        return _DefaultFailed(str(error), [])


def resolve_default(value: Any) -> Any:
    """Return the value, or raise if it is a default that could not be made from the args."""
    if isinstance(value, _DefaultFailed):
        errors = [FieldError(path_of_arg(path), message) for path, message in value.errors]
        raise PydanticCustomError(
            "task_default", "cannot be made from the args: {reason}", {"reason": value.reason, "errors": errors}
        )
    return value


def validate_args(task: Task | None, args: Args, *, parents: Collection[str] | None = ()) -> list[FieldError]:
    """Return the field errors of the args; of a task that this process does not know, only those of references to
    results. `parents`: the keys of the jobs that the job waits for; None: not known."""
    errors = [] if task is None else task.check_args(args)
    if parents is not None:
        errors = errors + result_errors(args, parents)
    return [FieldError(path_of_arg(path), message) for path, message in errors]


def parse_limits(raw: dict[str, int]) -> dict[str, int]:
    try:
        check_limits(raw)
    except ValueError as error:
        raise PydanticCustomError("limits", "{reason}", {"reason": str(error)}) from None
    return raw


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
            raise PydanticCustomError("debounce", "is less than wait_sec", {"field": "max_wait_sec"})
        return self


class Throttle(BodyModel):
    """Of the requests with one key at most one in each time window makes a job."""

    key: RuleKey
    per_sec: Annotated[float, Field(ge=1, le=2_678_400, description="The length of a window, by the database's clock.")]


class JobRequest(BodyModel):
    """What a request for a job checks and does, whatever fields it has."""

    if TYPE_CHECKING:  # of the fields that are declared in dataloader/_job_fields.py, those that code here reads
        queue: str
        task: str
        args: dict[str, Any]
        producer: str | None
        after: list[ParentReference] | None
        debounce: Debounce | None
        throttle: Throttle | None
        webhook: JobWebhook | None

    @model_validator(mode="after")
    def _check_combinations(self) -> JobRequest:
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
                            "combination", "cannot be combined with {other}", {"field": name, "other": other}
                        )
        return self

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
        made: Any = {**self.__dict__, **rules, "webhook": hook, "traceparent": traceparent, "after": parents}
        return NewJob(**made)


_TYPES: Mapping[Kind, Any] = {
    Kind.QUEUE: Name,
    Kind.LOCK_KEY: Annotated[Name, BeforeValidator(resolve_default)],
    Kind.KEY: Name,
    Kind.TEXT: Text,
    Kind.PART: IndexedText,
    Kind.TENANT: Annotated[Text, AfterValidator(parse_rule_key)],
    Kind.TAGS: Tags,
    Kind.PRIORITY: Priority,
    Kind.COUNT: PositiveInt,
    Kind.SECONDS: PositiveInt,
    Kind.LEASE: PositiveInt,
    Kind.TIME: Timestamp,
    Kind.ARGS: dict[str, Any],
    Kind.RETRY: RetryPolicy,
    Kind.LIMITS: LimitWeights,
    Kind.PARENTS: Annotated[list[ParentReference], Field(min_length=1, max_length=MAX_PARENTS)],
    Kind.DEBOUNCE: Debounce,
    Kind.THROTTLE: Throttle,
    Kind.WEBHOOK: JobWebhook,
}


def _field_of_request(field: JobField, types: Mapping[Kind, Any]) -> tuple[Any, Any]:
    """The type of a field and its default, as `create_model` takes them."""
    if field.kind is Kind.NEED:
        return Annotated[Literal["all", "any"], Field(description=field.description)] | None, None
    about: dict[str, Any] = {"description": field.description, "examples": [*field.examples] or None}
    of_kind = types[field.kind]
    if field.name in REQUIRED_FIELDS:
        return of_kind, Field(**about)
    if field.kind is Kind.ARGS:
        return of_kind, Field({}, **about)
    is_optional = field.default is None and field.kind is not Kind.TIME  # whose type allows null
    return of_kind | None if is_optional else of_kind, Field(field.default, **about)


def trigger_request_model(options: WebOptions, pipelines: Pipelines, *, has_live_keys: bool = True) -> type[JobRequest]:
    """Return the model with the limits and defaults of the settings and of the task; without `has_live_keys` no job has
    one, also not as the load of a slice."""
    return _make_model(
        pipelines,
        zone=options.timezone,
        has_live_keys=has_live_keys,
        min_lease_sec=options.min_lease_ttl_sec,
        default_lease_sec=options.default_lease_ttl_sec,
        allowed_hosts=options.webhook_allowed_hosts,
        has_secret=options.has_webhook_secret,
    )


@lru_cache(maxsize=4)  # several routes of an app take this model
def _make_model(
    pipelines: Pipelines,
    *,
    zone: str,
    has_live_keys: bool,
    min_lease_sec: int,
    default_lease_sec: int,
    allowed_hosts: tuple[str, ...],
    has_secret: bool,
) -> type[JobRequest]:
    def check_lease(lease_sec: int) -> int:
        if lease_sec < min_lease_sec:
            raise PydanticCustomError("lease", "{message}", {"message": short_lease_message(lease_sec, min_lease_sec)})
        return lease_sec

    class Described(JobRequest):
        """A request for a job."""

        model_config = ConfigDict(json_schema_extra=_require_without_task_default(pipelines))

    types = {
        **_TYPES,
        Kind.LEASE: Annotated[
            int, Field(le=INT4_MAX, json_schema_extra={"minimum": min_lease_sec}), AfterValidator(check_lease)
        ],
        Kind.WEBHOOK: Annotated[JobWebhook, AfterValidator(signable_webhook(allowed_hosts, has_secret=has_secret))],
    }
    fill: Any = model_validator(mode="before")(apply_task_defaults(pipelines, zone, has_live_keys=has_live_keys))
    lease = replace(REQUEST_FIELDS["lease_ttl_sec"], default=default_lease_sec)
    fields: dict[str, Any] = {
        name: _field_of_request(field, types) for name, field in {**REQUEST_FIELDS, lease.name: lease}.items()
    }
    return create_model("TriggerRequest", __base__=Described, __validators__={"fill": fill}, **fields)


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
