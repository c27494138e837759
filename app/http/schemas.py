"""Types shared by requests and responses, which also describe them in the OpenAPI document."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from dataloader.app.errors import JobNotFound
from dataloader.app.http.json_io import FieldError, join_path
from dataloader.app.log import mask_secret_fields
from dataloader.app.net import MAX_URL_LENGTH, AllowedHosts, ForbiddenAddress, parse_url
from dataloader.app.queue.job import Job, Status
from dataloader.app.queue.job_records import JobEvent, JobStatus
from dataloader.app.queue.webhook_events import FINAL_EVENTS, JOB_EVENTS, SUBSCRIBABLE_EVENTS, WebhookEvent
from dataloader.pipelines.contract import read_policy

INT4_MAX = 2_147_483_647
MAX_KEY_BYTES = 2_000  # an index entry of PostgreSQL holds about 2,700
MAX_PAGE_SIZE = 1_000
MAX_TEXT_LENGTH = 1_000
_MAX_TAGS, _MAX_TAG_BYTES = 20, 100
RETRY_POLICY_KINDS = ["fixed", "linear", "exponential", "table"]

_UUID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
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


def parse_tag(raw: str) -> str:
    if "," in raw or len(raw.encode("utf-8", "surrogatepass")) > _MAX_TAG_BYTES:
        raise PydanticCustomError("tag", "has a comma or over {max} bytes in UTF-8", {"max": _MAX_TAG_BYTES})
    return raw


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

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class StrictQuery(QueryModel):
    strict: Annotated[
        bool, Field(description="Refuse a name that nothing is known of, instead of returning `warnings`.")
    ] = False


class BodyModel(BaseModel):
    """The fields of a JSON body."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


def require_one_field(*, excluded: frozenset[str] = frozenset(), null_is_change: bool) -> Any:
    """Return a JSON Schema extension: at least one field is required. `null_is_change`: null counts as a change."""

    def add_requirement(schema: dict[str, Any]) -> None:
        if null_is_change:
            schema["minProperties"] = 1 + len(excluded)
        else:
            schema["not"] = {"properties": {name: {"type": "null"} for name in schema["properties"]}}

    return add_requirement


def require_change(model: Change) -> Change:
    """Validator of requests in which null means "leave as it is": at least one field has a value."""
    if all(value is None for value in vars(model).values()):
        raise PydanticCustomError("change", "there is no change; send at least one field")
    return model


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


def signable_webhook(allowed_hosts: Sequence[str], *, has_secret: bool) -> Callable[[JobWebhook], JobWebhook]:
    """Return a validator: this service must be able to send to the URL, and to sign."""
    allowed = AllowedHosts.parse(allowed_hosts)

    def check(webhook: JobWebhook) -> JobWebhook:
        if not has_secret:
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
Tags = Annotated[list[Annotated[Name, AfterValidator(parse_tag)]], Field(max_length=_MAX_TAGS)]
RetryPolicy = Annotated[
    dict[str, Any],
    AfterValidator(parse_retry),
    WithJsonSchema({"type": "object", "required": ["kind"], "properties": {"kind": {"enum": RETRY_POLICY_KINDS}}}),
]


_ERROR_MESSAGES = {"missing": "is required", "extra_forbidden": "is no field of this request; leave it out"}


def field_errors(error: ValidationError) -> tuple[FieldError, ...]:
    """Convert pydantic's errors, without the caller's values, which may be secrets.

    A validator of a whole model names the field to change as `field` in the context of its error. One of a field that
    is made from others gives the `errors` of these.
    """
    errors: list[FieldError] = []
    for detail in error.errors(include_input=False, include_url=False):
        context = detail.get("ctx") or {}
        if causes := context.get("errors"):
            parent = reduce(join_path, detail["loc"][:-1], "")
            errors += [replace(cause, field=f"{parent}.{cause.field}" if parent else cause.field) for cause in causes]
            continue
        path = reduce(join_path, (*detail["loc"], *([context["field"]] if "field" in context else [])), "")
        errors.append(FieldError(path or "body", _ERROR_MESSAGES.get(detail["type"], detail["msg"])))
    return tuple(dict.fromkeys(errors))


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
    def from_job(cls, job: Job | JobStatus) -> JobState:
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


class InvalidJobId(JobNotFound):
    """The given id is not a UUID, so no job can have it."""

    def __init__(self, raw: str) -> None:
        Exception.__init__(self, f"{raw[:64]!r} is not the id of a job; ids are UUIDs, as the trigger returned them")


def parse_job_id(raw: str) -> UUID:
    if not _UUID_PATTERN.fullmatch(raw):
        raise InvalidJobId(raw)
    return UUID(raw)
