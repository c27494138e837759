"""Error responses: problem+json (RFC 9457) with a stable code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any

from flask import Response
from werkzeug.exceptions import (
    BadRequest,
    HTTPException,
    InternalServerError,
    MethodNotAllowed,
    NotFound,
    RequestEntityTooLarge,
    UnsupportedMediaType,
)

from dataloader.app import errors
from dataloader.app.http.json_io import MAX_ERRORS, FieldError, InvalidJson, dump_body

MEDIA_TYPE = "application/problem+json"
_MAX_LISTED_ERRORS = 3
_READ_FAILED = "The database is unavailable, so nothing was read; try again after `Retry-After` seconds."


class ProblemCode(Enum):
    """All codes, each with its HTTP status, title and description."""

    INVALID_JSON = (
        400,
        "The body is not valid JSON",
        "The body is empty, not UTF-8, or not JSON; `detail` says where.",
    )
    INVALID_REQUEST = (
        400,
        "The request is invalid",
        "`errors` lists the invalid fields and what each of them accepts.",
    )
    KEY_REQUIRED = (
        401,
        "An API key is required",
        "Send `Authorization: Bearer` with a key; `dataloader keys create` creates one. While no key exists, the "
        "service accepts only requests from its own machine.",
    )
    KEY_INVALID = (401, "The API key is not valid", "The key does not exist, has expired, or was revoked.")
    SCOPE_MISSING = (403, "The API key lacks a scope", "The key has none of the scopes that the operation requires.")
    OUTSIDE_KEY_LIMITS = (
        403,
        "The API key may not trigger this",
        "The key is limited to certain tasks or queues, and this one is not among them.",
    )
    CROSS_SITE = (
        403,
        "The request comes from another site",
        "A page of another site sent the request, or the session's CSRF token in `X-CSRF-Token` is missing or wrong.",
    )
    HOST_REFUSED = (
        403,
        "The host name is not accepted",
        "While no key exists, `Host` must be a name of the service's own machine, such as localhost or 127.0.0.1.",
    )
    NOT_FOUND = (404, "The path does not exist", "No route has this path; see /docs.")
    JOB_NOT_FOUND = (404, "The job does not exist", "No job has this id, or the id is not a UUID.")
    WEBHOOK_NOT_FOUND = (404, "The webhook does not exist", "No webhook has this id.")
    DELIVERY_NOT_FOUND = (404, "The delivery does not exist", "No delivery has this id; old ones are deleted.")
    RULE_NOT_FOUND = (404, "The alert rule does not exist", "No alert rule has this id.")
    ALERT_NOT_FOUND = (404, "The alert does not fire", "No firing alert has this id; it may be resolved.")
    RULE_EXISTS = (
        409,
        "The alert rule exists already",
        "Another rule has this name. Change that rule, or choose another name.",
    )
    BULK_NOT_FOUND = (404, "The bulk operation does not exist", "No bulk operation has this id; old ones are deleted.")
    GRAPH_NOT_FOUND = (404, "The graph does not exist", "No graph has this id; old ones are deleted with their jobs.")
    DATASET_NOT_FOUND = (404, "No dataset has this name", "No job has produced or consumed it.")
    BREAKER_NOT_FOUND = (404, "The task has no breaker", "The task declares none, and was not paused.")
    LIMIT_NOT_FOUND = (404, "The limit does not exist", "No limit has this name, and no job uses it.")
    SCHEDULE_NOT_FOUND = (404, "The schedule does not exist", "No schedule has this name.")
    SCHEDULE_EXISTS = (409, "The schedule exists already", "Change that one, or choose another name.")
    TIME_HAS_FIRED = (
        409,
        "The schedule has fired for this time",
        "`GET …/firings` has the job; with `again` another one is made.",
    )
    NOT_ORPHANED = (409, "The schedule is not orphaned", "Live workers have it in their code, or people made it.")
    LIMIT_IN_USE = (409, "The limit is in use", "It is the concurrency of a backfill that has not ended.")
    BACKFILL_NOT_FOUND = (404, "The backfill does not exist", "No backfill has this id.")
    BACKFILL_ENDED = (409, "The backfill has ended", "`retry` loads again what did not succeed.")
    NAME_NOT_FOUND = (404, "No queue or task has this name", "`detail` has known names, and a similar one.")
    KEY_NOT_FOUND = (404, "The API key does not exist", "No key has this id, and no valid one the name.")
    WORKER_NOT_FOUND = (
        404,
        "The worker does not exist",
        "No worker process has this id; ended processes are deleted after a while.",
    )
    METHOD_NOT_ALLOWED = (405, "The method is not allowed", "The header `Allow` lists the allowed methods.")
    IDEMPOTENCY_CONFLICT = (
        409,
        "The idempotency key belongs to another request",
        "The job with this key has another queue, task or args; `job_id` is its id.",
    )
    NOT_RETRYABLE = (409, "The job cannot be retried", "Only a failed, canceled or lost job can be retried.")
    NOT_EDITABLE = (409, "The job cannot be changed", "Only a queued job can be changed; any job can be cloned.")
    NOT_DELETABLE = (
        409,
        "The job cannot be deleted",
        "Only a finished job of no open graph can be deleted; cancel the job or its graph first.",
    )
    QUEUE_DRAINING = (409, "The queue accepts no new jobs", "The queue is draining; `detail` has the operator's note.")
    WOULD_NOT_RUN = (
        409,
        "No live worker would run the job",
        "The request has `strict`; `warnings` has the reasons. No job was created.",
    )
    BULK_MISMATCH = (
        409,
        "Far more jobs match than expected",
        "Nothing was changed; `matching_count` is the actual number.",
    )
    CHANGED = (412, "The resource has changed", "Get it again, and send its new `ETag` as `If-Match`.")
    BATCH_REFUSED = (
        409,
        "The batch was rejected as a whole",
        "The request is `all_or_none` and has rejected items; no job was created, and `items` has the reasons.",
    )
    BODY_TOO_LARGE = (
        413,
        "The body is too large",
        "The limit is 1 MB; for a batch or a graph it is 4 MB.",
    )
    UNSUPPORTED_MEDIA_TYPE = (
        415,
        "The body is not sent as JSON",
        "Send `Content-Type: application/json`, in UTF-8 and not compressed.",
    )
    TOO_MANY_LOGIN_ATTEMPTS = (
        429,
        "Too many attempts with invalid keys",
        "Try again after `Retry-After` seconds; requests with a valid key are still accepted.",
    )
    HTTP_ERROR = (400, "The request cannot be served", "Any other error of HTTP itself, with its own status.")
    INTERNAL = (
        500,
        "An unexpected error occurred",
        "A bug in the service; its log has the error with this `request_id`.",
    )
    DATABASE_UNAVAILABLE = (
        503,
        "The database is unavailable",
        "The outcome is unknown; try again after `Retry-After` seconds, with the same idempotency key.",
    )
    SCHEMA_MISMATCH = (
        503,
        "The database schema has another version",
        "An operator must run `dataloader migrate`, or upgrade dataloader.",
    )
    TOO_MANY_WAITING = (
        503,
        "Too many requests are waiting",
        "Try again after `Retry-After` seconds, or without `wait`.",
    )
    OVERLOADED = (
        503,
        "The service is overloaded",
        "Try again after `Retry-After` seconds; the request was not processed.",
    )
    NOT_READY = (503, "The service is not ready", "The other fields state which part is not ready.")

    def __init__(self, status: int, title: str, description: str) -> None:
        self.status = status
        self.title = title
        self.description = description

    @property
    def text(self) -> str:
        return self.name.lower()


DATABASE_PROBLEMS = (ProblemCode.DATABASE_UNAVAILABLE, ProblemCode.SCHEMA_MISMATCH)


class InvalidRequest(Exception):
    """The request's fields are not what the operation takes."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)[:MAX_ERRORS]
        message = "; ".join(f"{error.field}: {error.message}" for error in self.errors[:_MAX_LISTED_ERRORS])
        more = len(errors) - _MAX_LISTED_ERRORS
        super().__init__(f"{message}; and {more} more" if more > 0 else message)


class RequestRejected(Exception):
    """A request that is answered with a problem: its code, detail, headers and additional fields."""

    def __init__(
        self,
        code: ProblemCode,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code, self.headers, self.fields = code, headers or {}, fields or {}


class UnreadableBody(BadRequest):
    """The framing of a request's body turned out to be wrong while the app read it."""

    description = "The framing of the body's chunks or trailers violates RFC 9112."


# Looked up along the class's bases: a new subclass has the code of its parent.
BY_EXCEPTION: Mapping[type[BaseException], ProblemCode] = {
    InvalidJson: ProblemCode.INVALID_JSON,
    InvalidRequest: ProblemCode.INVALID_REQUEST,
    errors.InvalidJob: ProblemCode.INVALID_REQUEST,
    errors.JobNotFound: ProblemCode.JOB_NOT_FOUND,
    errors.IdempotencyConflict: ProblemCode.IDEMPOTENCY_CONFLICT,
    errors.NotRetryable: ProblemCode.NOT_RETRYABLE,
    errors.NotEditable: ProblemCode.NOT_EDITABLE,
    errors.NotDeletable: ProblemCode.NOT_DELETABLE,
    errors.JobChanged: ProblemCode.CHANGED,
    errors.WebhookNotFound: ProblemCode.WEBHOOK_NOT_FOUND,
    errors.DeliveryNotFound: ProblemCode.DELIVERY_NOT_FOUND,
    errors.RuleNotFound: ProblemCode.RULE_NOT_FOUND,
    errors.AlertNotFound: ProblemCode.ALERT_NOT_FOUND,
    errors.RuleExists: ProblemCode.RULE_EXISTS,
    errors.QueueDraining: ProblemCode.QUEUE_DRAINING,
    errors.GraphNotFound: ProblemCode.GRAPH_NOT_FOUND,
    errors.DatasetNotFound: ProblemCode.DATASET_NOT_FOUND,
    errors.BreakerNotFound: ProblemCode.BREAKER_NOT_FOUND,
    errors.LimitNotFound: ProblemCode.LIMIT_NOT_FOUND,
    errors.ScheduleNotFound: ProblemCode.SCHEDULE_NOT_FOUND,
    errors.ScheduleExists: ProblemCode.SCHEDULE_EXISTS,
    errors.ScheduleChanged: ProblemCode.CHANGED,
    errors.TimeHasFired: ProblemCode.TIME_HAS_FIRED,
    errors.BackfillNotFound: ProblemCode.BACKFILL_NOT_FOUND,
    errors.BackfillEnded: ProblemCode.BACKFILL_ENDED,
    errors.LimitInUse: ProblemCode.LIMIT_IN_USE,
    errors.NameNotFound: ProblemCode.NAME_NOT_FOUND,
    errors.WorkerNotFound: ProblemCode.WORKER_NOT_FOUND,
    errors.HostNotFound: ProblemCode.WORKER_NOT_FOUND,
    errors.ApiKeyNotFound: ProblemCode.KEY_NOT_FOUND,
    errors.BulkNotFound: ProblemCode.BULK_NOT_FOUND,
    errors.BulkMismatch: ProblemCode.BULK_MISMATCH,
    errors.DatabaseUnavailable: ProblemCode.DATABASE_UNAVAILABLE,
    errors.SchemaError: ProblemCode.SCHEMA_MISMATCH,
    BadRequest: ProblemCode.INVALID_REQUEST,
    NotFound: ProblemCode.NOT_FOUND,
    MethodNotAllowed: ProblemCode.METHOD_NOT_ALLOWED,
    RequestEntityTooLarge: ProblemCode.BODY_TOO_LARGE,
    UnsupportedMediaType: ProblemCode.UNSUPPORTED_MEDIA_TYPE,
    InternalServerError: ProblemCode.INTERNAL,  # what Flask makes of an error in the steps around a request
    HTTPException: ProblemCode.HTTP_ERROR,
    BaseException: ProblemCode.INTERNAL,
}


@dataclass(frozen=True)
class ItemProblem:
    """Why a part of a request was rejected."""

    code: str
    title: str
    status: int
    detail: str
    errors: list[FieldError]


@dataclass(frozen=True)
class Problem(ItemProblem):
    """The fields of every problem; some codes add others."""

    type: str
    request_id: str


# Of these, the library's description is more specific.
_LIBRARY_DETAIL = (ProblemCode.HTTP_ERROR, ProblemCode.INVALID_REQUEST)


def problem_code(error: BaseException) -> ProblemCode:
    if isinstance(error, RequestRejected):
        return error.code
    return next(BY_EXCEPTION[kind] for kind in type(error).__mro__ if kind in BY_EXCEPTION)


def problem_response(error: Exception, request_id: str, *, is_read: bool = False) -> Response:
    """The response that describes an error to the caller. `is_read`: the request changes nothing."""
    code = problem_code(error)
    status = (error.code or code.status) if isinstance(error, HTTPException) else code.status
    problem: dict[str, Any] = {
        "type": f"/docs#{code.text}",
        "title": code.title,
        "status": status,
        "detail": _READ_FAILED if is_read and code is ProblemCode.DATABASE_UNAVAILABLE else _detail(error, code),
        "code": code.text,
        "request_id": request_id,
        "errors": error.errors if isinstance(error, InvalidRequest) else (),
    }
    headers: Mapping[str, str] = {}
    match error:
        case RequestRejected():
            headers = error.headers
            problem.update(error.fields)
        case errors.InvalidJob() if error.field:
            message = str(error).removeprefix("PostgreSQL refused a value: ").removeprefix(error.field).lstrip(": ")
            problem["errors"] = [FieldError(error.field, message)]
        case errors.IdempotencyConflict() if error.job_id is not None:
            problem |= {"instance": f"/api/v1/jobs/{error.job_id}", "job_id": str(error.job_id)}
        case errors.BulkMismatch():
            problem["matching_count"] = error.actual
        case errors.DatabaseUnavailable():
            headers = {"Retry-After": str(error.retry_after_sec)}
        case errors.SchemaError():
            headers = {"Retry-After": "5"}
        case MethodNotAllowed() if error.valid_methods:
            headers = {"Allow": ", ".join(sorted(error.valid_methods))}
    return Response(dump_body(problem), status, headers, content_type=MEDIA_TYPE)


def _detail(error: Exception, code: ProblemCode) -> str:
    """The message for the caller: never a driver's message about the server."""
    if code.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return code.description
    if isinstance(error, HTTPException):
        return (error.description or code.description) if code in _LIBRARY_DETAIL else code.description
    return str(error) or code.description
