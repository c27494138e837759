"""What a request to a service may end with, other than an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import DataloaderError


class ClientError(DataloaderError):
    """A request to the service did not end as it was meant to."""


class ServiceUnavailable(ClientError):
    """The service could not be reached, or said that it cannot answer now."""

    def __init__(self, detail: str, *, sent: bool, retry_after_sec: float | None = None) -> None:
        super().__init__(detail)
        self.sent = sent  # False: the request never left, so sending it again cannot double anything
        self.retry_after_sec = retry_after_sec


class ServiceFault(ClientError):
    """The service failed, or something else answers at this address."""


@dataclass(frozen=True)
class FieldError:
    """One thing wrong with a request."""

    field: str
    message: str


class Refused(ClientError):
    """The service answered, and the answer was no."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code") or f"http_{status}")
        self.detail = str(problem.get("detail") or problem.get("title") or f"the service answered {status}")
        self.errors = tuple(_field_errors(problem.get("errors")))
        super().__init__(self.detail)


class NotFound(Refused):
    pass


class Conflict(Refused):
    pass


class NotAllowed(Refused):
    """It takes a key, or another key."""


def _field_errors(errors: Any) -> Iterator[FieldError]:
    for error in errors if isinstance(errors, list) else []:
        if isinstance(error, dict):
            yield FieldError(str(error.get("field", "")), str(error.get("message") or ""))
