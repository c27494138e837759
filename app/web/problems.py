"""What the API says when it cannot do what it was asked: problem+json (RFC 9457) with a stable code."""

from __future__ import annotations

import math
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

from app.errors import (
    BulkMismatch,
    BulkNotFound,
    DatabaseUnavailable,
    DeliveryNotFound,
    IdempotencyConflict,
    InvalidJob,
    JobChanged,
    JobNotFound,
    NotDeletable,
    NotEditable,
    NotRetryable,
    QueueDraining,
    RuleExists,
    RuleNotFound,
    SchemaError,
    WebhookNotFound,
    WorkerNotFound,
)
from app.web.answers import json_text
from app.web.strictjson import MOST_FAULTS, FieldFault, NotJson

MEDIA_TYPE = "application/problem+json"
_TOLD_AT_ONCE = 3
_READ_FAILED = "The database does not answer, so nothing was read; ask again after `Retry-After` seconds."
_CHALLENGE = 'Bearer realm="dataloader"'


class Code(Enum):
    """Every code there is: its HTTP status, its title, and what it means to a caller."""

    INVALID_JSON = (400, "The body is no JSON", "The body is empty, not UTF-8, or not JSON; `detail` says where.")
    INVALID_REQUEST = (400, "The request is invalid", "`errors` names each field and what would do.")
    KEY_REQUIRED = (
        401,
        "An API key is needed",
        "Send `Authorization: Bearer` with a key; `dataloader keys create` makes one. Without any key the service "
        "answers on its own machine alone.",
    )
    KEY_INVALID = (401, "The API key is not valid", "It was never made, has run out, or was revoked.")
    SCOPE_MISSING = (403, "The API key may not do this", "It has none of the scopes that the operation needs.")
    OUTSIDE_KEY_LIMITS = (
        403,
        "The API key may not trigger this",
        "It is limited to certain tasks or queues, and this is none of them.",
    )
    CROSS_SITE = (
        403,
        "The request comes from another site",
        "A page of another site has sent it, or it lacks the token of its session in `X-CSRF-Token`.",
    )
    HOST_REFUSED = (
        403,
        "The service is not known by this name",
        "Without any key it answers to names of its own machine alone, such as localhost and 127.0.0.1.",
    )
    NOT_FOUND = (404, "There is nothing at this address", "No route has this address; see /docs.")
    JOB_NOT_FOUND = (404, "There is no such job", "No job has this id, or the id is not a UUID.")
    WEBHOOK_NOT_FOUND = (404, "There is no such webhook", "No webhook has this id.")
    DELIVERY_NOT_FOUND = (
        404,
        "There is no such delivery",
        "Nothing was told under this id; old ones are deleted.",
    )
    RULE_NOT_FOUND = (404, "There is no such alert rule", "No alert rule has this id.")
    RULE_EXISTS = (409, "The name of the alert rule is taken", "Change the rule that has it, or choose another name.")
    BULK_NOT_FOUND = (404, "There is no such bulk operation", "No bulk operation has this id; old ones are deleted.")
    WORKER_NOT_FOUND = (404, "There is no such worker", "No worker process has this id; one that ended is forgotten.")
    METHOD_NOT_ALLOWED = (405, "The method is not allowed here", "The header `Allow` lists those that are.")
    IDEMPOTENCY_CONFLICT = (
        409,
        "The idempotency key belongs to another request",
        "A job with this key has another queue, task or args; `job_id` names it.",
    )
    NOT_RETRYABLE = (409, "The job cannot be retried", "Only a failed, canceled or lost job can be retried.")
    NOT_EDITABLE = (409, "The job cannot be changed", "Only a job that waits can be changed; any can be cloned.")
    NOT_DELETABLE = (409, "The job cannot be deleted", "Only a job that is over can be deleted; cancel it first.")
    QUEUE_DRAINING = (409, "The queue takes no new jobs", "It is being drained; `detail` has the note that was left.")
    WOULD_NOT_RUN = (
        409,
        "No live worker would run the job",
        "The request asked for `strict`; `warnings` has the reasons, and no job was made.",
    )
    BULK_MISMATCH = (
        409,
        "Another number of jobs fits than was expected",
        "Nothing was done; `found` tells how many it is.",
    )
    CHANGED = (412, "It has changed since it was looked at", "Look at it again, and send its new `ETag` as `If-Match`.")
    BATCH_REFUSED = (
        409,
        "The batch was refused as a whole",
        "All or none was asked for, and something is wrong; nothing was done, and `items` tells what.",
    )
    BODY_TOO_LARGE = (
        413,
        "The body is too large",
        "`DL_MAX_BODY_BYTES` is the limit, and `DL_MAX_BATCH_BYTES` that of a batch.",
    )
    UNSUPPORTED_MEDIA_TYPE = (
        415,
        "The body is not sent as JSON",
        "Send `Content-Type: application/json`, in UTF-8 and not compressed.",
    )
    TOO_MANY_TRIES = (
        429,
        "Too many tries with keys that are not valid",
        "Try again after `Retry-After` seconds; a valid key is let in all the same.",
    )
    HTTP_ERROR = (400, "The request cannot be served", "Any other refusal of HTTP itself, with its own status.")
    INTERNAL = (500, "Something went wrong here", "A bug of ours; the log has the story under `request_id`.")
    DATABASE_UNAVAILABLE = (
        503,
        "The database does not answer",
        "Nothing is known about the outcome; try again after `Retry-After` seconds, with the same idempotency key.",
    )
    SCHEMA_MISMATCH = (
        503,
        "The database's tables are not what this version needs",
        "An operator has to run `dataloader migrate`, or to upgrade dataloader.",
    )
    TOO_MANY_WAITING = (
        503,
        "Too many requests wait for something to happen",
        "Ask again after `Retry-After` seconds, or without `wait`.",
    )
    OVERLOADED = (
        503,
        "More requests have come than can be answered",
        "Ask again after `Retry-After` seconds; nothing was done.",
    )
    NOT_READY = (503, "The service is not ready", "The other members say which part is missing.")

    def __init__(self, status: int, title: str, meaning: str) -> None:
        self.status = status
        self.title = title
        self.meaning = meaning

    @property
    def text(self) -> str:
        return self.name.lower()


class InvalidRequest(Exception):
    """The request's fields are not what the operation takes."""

    def __init__(self, faults: Sequence[FieldFault]) -> None:
        self.faults = tuple(faults)[:MOST_FAULTS]
        told = "; ".join(f"{fault.field}: {fault.message}" for fault in self.faults[:_TOLD_AT_ONCE])
        more = len(faults) - _TOLD_AT_ONCE
        super().__init__(f"{told}; and {more} more" if more > 0 else told)


class AccessRefused(Exception):
    """Somebody is not let in, or not to this."""


class KeyRequired(AccessRefused):
    """Nobody said who he is."""


class KeyInvalid(AccessRefused):
    """What was shown is no valid key."""


class ScopeMissing(AccessRefused):
    def __init__(self, needed: Sequence[str]) -> None:
        super().__init__(f"this takes a key with the scope {' or '.join(needed)}")
        self.needed = tuple(needed)


class OutsideKeyLimits(AccessRefused):
    """A key may trigger certain tasks or queues only."""


class CrossSite(AccessRefused):
    """A page of another site has sent it."""


class HostRefused(AccessRefused):
    """The service is not called so."""


class TooManyTries(AccessRefused):
    def __init__(self, retry_after_sec: float) -> None:
        super().__init__("too many tries")
        self.retry_after_sec = max(1, math.ceil(retry_after_sec))


class TooManyWaiting(Exception):
    """All places of those who wait for something to happen are taken."""


class BatchRefused(Exception):
    """All or none was asked for, and something was wrong; the report has the outcomes."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__(
            f"{report['invalid']} requests are invalid and {report['conflict']} are in conflict; nothing was done"
        )
        self.report = report


class UnreadableBody(BadRequest):
    """The framing of a request's body turned out to be wrong while the app read it."""

    description = "The body's chunks or trailers are not framed as RFC 9112 has it."


class WouldNotRun(Exception):
    """A strict trigger of a job that no live worker would run."""

    def __init__(self, warnings: Sequence[str]) -> None:
        super().__init__("; ".join(warnings))
        self.report = {"warnings": [*warnings]}


class NotReady(Exception):
    """Some part of the service is missing; the report says which."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__("not ready: " + ", ".join(part for part, state in report.items() if _is_down(state)))
        self.report = report


# Looked up along the error's ancestors, so that a new kind of a known error is answered like its parent.
TABLE: Mapping[type[BaseException], Code] = {
    NotJson: Code.INVALID_JSON,
    InvalidRequest: Code.INVALID_REQUEST,
    InvalidJob: Code.INVALID_REQUEST,
    BadRequest: Code.INVALID_REQUEST,
    KeyRequired: Code.KEY_REQUIRED,
    KeyInvalid: Code.KEY_INVALID,
    ScopeMissing: Code.SCOPE_MISSING,
    OutsideKeyLimits: Code.OUTSIDE_KEY_LIMITS,
    CrossSite: Code.CROSS_SITE,
    HostRefused: Code.HOST_REFUSED,
    TooManyTries: Code.TOO_MANY_TRIES,
    NotFound: Code.NOT_FOUND,
    JobNotFound: Code.JOB_NOT_FOUND,
    MethodNotAllowed: Code.METHOD_NOT_ALLOWED,
    IdempotencyConflict: Code.IDEMPOTENCY_CONFLICT,
    NotRetryable: Code.NOT_RETRYABLE,
    WebhookNotFound: Code.WEBHOOK_NOT_FOUND,
    DeliveryNotFound: Code.DELIVERY_NOT_FOUND,
    RuleNotFound: Code.RULE_NOT_FOUND,
    RuleExists: Code.RULE_EXISTS,
    NotEditable: Code.NOT_EDITABLE,
    NotDeletable: Code.NOT_DELETABLE,
    JobChanged: Code.CHANGED,
    QueueDraining: Code.QUEUE_DRAINING,
    WorkerNotFound: Code.WORKER_NOT_FOUND,
    BulkNotFound: Code.BULK_NOT_FOUND,
    BulkMismatch: Code.BULK_MISMATCH,
    BatchRefused: Code.BATCH_REFUSED,
    RequestEntityTooLarge: Code.BODY_TOO_LARGE,
    UnsupportedMediaType: Code.UNSUPPORTED_MEDIA_TYPE,
    HTTPException: Code.HTTP_ERROR,
    InternalServerError: Code.INTERNAL,  # what Flask makes of an error in the steps around a request
    DatabaseUnavailable: Code.DATABASE_UNAVAILABLE,
    SchemaError: Code.SCHEMA_MISMATCH,
    TooManyWaiting: Code.TOO_MANY_WAITING,
    NotReady: Code.NOT_READY,
    WouldNotRun: Code.WOULD_NOT_RUN,
    BaseException: Code.INTERNAL,
}


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one field, and what would do."""

    field: str
    message: str


@dataclass(frozen=True)
class Problem:
    """The members that every problem has; some codes add their own."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[FieldError]


_FREE = (Code.HTTP_ERROR, Code.INVALID_REQUEST)  # here the library's own words say more than ours


def code_of(error: BaseException) -> Code:
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def answer(error: Exception, request_id: str, *, is_read: bool = False) -> Response:
    """The response that describes an error to the caller. `is_read`: the request changes nothing."""
    code = code_of(error)
    status = (error.code or code.status) if isinstance(error, HTTPException) else code.status
    problem: dict[str, Any] = {
        "type": f"/docs#{code.text}",
        "title": code.title,
        "status": status,
        "detail": _READ_FAILED if is_read and code is Code.DATABASE_UNAVAILABLE else _detail(error, code),
        "code": code.text,
        "request_id": request_id,
        "errors": [{"field": f.field, "message": f.message} for f in _field_faults(error)],
        **_members(error),
    }
    return Response(json_text(problem), status, _headers(error), content_type=MEDIA_TYPE)


def _detail(error: Exception, code: Code) -> str:
    """What may be told: our own words about the request, never what a driver said about the server."""
    if code.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return code.meaning
    if isinstance(error, HTTPException):
        return (error.description or code.meaning) if code in _FREE else code.meaning
    return str(error) or code.meaning


def _field_faults(error: Exception) -> Sequence[FieldFault]:
    return error.faults if isinstance(error, InvalidRequest) else ()


def _members(error: Exception) -> Mapping[str, Any]:
    if isinstance(error, IdempotencyConflict):
        return {"instance": f"/api/v1/jobs/{error.job_id}", "job_id": str(error.job_id)}
    if isinstance(error, BulkMismatch):
        return {"found": error.found}
    if isinstance(error, NotReady | BatchRefused | WouldNotRun):
        return error.report
    return {}


def _headers(error: Exception) -> dict[str, str]:
    if isinstance(error, DatabaseUnavailable | TooManyTries):
        return {"Retry-After": str(error.retry_after_sec)}
    if isinstance(error, AccessRefused):
        return _challenge(error)
    if isinstance(error, TooManyWaiting):
        return {"Retry-After": "1"}
    if isinstance(error, SchemaError | NotReady):
        return {"Retry-After": "5"}
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        return {"Allow": ", ".join(sorted(error.valid_methods))}
    return {}


def _challenge(error: AccessRefused) -> dict[str, str]:
    match error:
        case KeyRequired():
            return {"WWW-Authenticate": _CHALLENGE}
        case KeyInvalid():
            return {"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'}
        case ScopeMissing():
            needed = " ".join(error.needed)
            return {"WWW-Authenticate": f'{_CHALLENGE}, error="insufficient_scope", scope="{needed}"'}
        case _:
            return {}


def _is_down(state: Any) -> bool:
    return isinstance(state, Mapping) and state.get("ready") is False
