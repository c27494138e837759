"""The actor of a thread's changes, as a setting of each of its transactions; the triggers that write dl_audit read it.

with acting_as(AuditContext(action="job_patch", actor="etl-team", via="key", address="10.0.0.7", request_id=…)):
    queue.change(…)
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
_CONTEXT: ContextVar[str | None] = ContextVar("audit context", default=None)  # a new thread has none


@dataclass(frozen=True, kw_only=True)
class AuditContext:
    action: str
    actor: str  # the name of the API key; of a command, the account
    via: str  # key | session | loopback | none | command
    key_id: str | None = None
    address: str | None = None
    request_id: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        return {name: value and sanitize_text(value, _MAX_VALUE_LENGTH) for name, value in vars(self).items()}


@contextmanager
def acting_as(context: AuditContext) -> Iterator[None]:
    """Attribute the changes of this thread to the actor."""
    token = _CONTEXT.set(_encode_json(context.to_dict()))
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def with_audit_setting(text: str, parameters: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any] | None]:
    """Put the setting in front of a message with parameters; those without change no rows."""
    context = _CONTEXT.get()
    if context is None or parameters is None:
        return text, parameters
    return f"SET LOCAL dl.audit_context = %(audit_context)s;\n{text}", {**parameters, "audit_context": context}
