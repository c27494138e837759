"""The person or program on whose behalf a thread changes rows; the triggers that write dl_audit read it.

    with acting(Act(action="job_patch", actor="etl-team", via="key", address="10.0.0.7", request_id=…)):
        queue.change(…)

Within the block every statement that this thread sends carries the act as a setting of its transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from app.db.encoding import sanitize_text

_encode_json = json.JSONEncoder(ensure_ascii=False).encode
_MAX_VALUE_LENGTH = 500

# A thread starts without one, like the bound fields of app.log.
_CONTEXT: ContextVar[str | None] = ContextVar("who acts", default=None)


@dataclass(frozen=True, kw_only=True)
class AuditContext:
    """What somebody does."""

    action: str
    actor: str  # the name of his key; of a command, the account
    via: str  # key | session | loopback | none | command
    key_id: str | None = None
    address: str | None = None
    request_id: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        return {name: value and sanitize_text(value, _MAX_VALUE_LENGTH) for name, value in vars(self).items()}

    def encode(self) -> str:
        """As it is sent along."""
        return _encode_json(self.to_dict())


@contextmanager
def acting_as(context: AuditContext) -> Iterator[None]:
    """Whatever this thread changes within is done for him."""
    token = _CONTEXT.set(context.encode())
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def with_audit_setting(text: str, parameters: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any] | None]:
    """A message, with for whom it is sent: a setting of its transaction alone. One without parameters is our own."""
    act = _CONTEXT.get()
    if act is None or parameters is None:
        return text, parameters
    return f"SET LOCAL dl.audit_context = %(audit_context)s;\n{text}", {**parameters, "audit_context": act}
