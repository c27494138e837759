"""Errors of the client.

A `ClientError` is a `ServiceUnavailable` (no response until the retry timeout), a `ServiceFault` (a response that no
working dataloader gives), or a `Refused` (a problem+json response), such as `NotFound`, `Conflict` or `NotAllowed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class ClientError(Exception):
    """A request to the service failed."""


class ServiceUnavailable(ClientError):
    """The service cannot be reached, or cannot answer now."""

    def __init__(self, detail: str, *, sent: bool, retry_after_sec: float | None = None) -> None:
        super().__init__(detail)
        self.sent = sent  # False: the service received nothing, so any request may be repeated
        self.retry_after_sec = retry_after_sec


class ServiceFault(ClientError):
    """The service failed, or another program answers at its address."""


@dataclass(frozen=True)
class FieldError:
    """An invalid field of a request."""

    field: str
    message: str


class Refused(ClientError):
    """The service rejected the request. `problem` is the whole response."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code") or f"http_{status}")
        self.detail = str(problem.get("detail") or problem.get("title") or f"the service answered {status}")
        errors = problem.get("errors")
        self.errors = tuple(
            FieldError(str(error.get("field", "")), str(error.get("message") or ""))
            for error in (errors if isinstance(errors, list) else ())
            if isinstance(error, dict)
        )
        super().__init__(self.detail)


class NotFound(Refused):
    """No such job, webhook, rule or worker."""


class Conflict(Refused):
    """The request contradicts the present state."""


class NotAllowed(Refused):
    """The request needs an API key, or one with another scope."""
