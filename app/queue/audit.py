"""Who did what, when, from where, to what, and what it changed: the table dl_audit.

Say for whom you act, and the database writes it down, in the transaction of what is done:

    with acting(Act(action="job_patch", actor="etl-team", via="key", address="10.0.0.7", request_id=…)):
        queue.change(…)

While that lasts in this thread, every statement that a `Pool` (or a handed-in connection) sends carries it, and the
triggers on dl_jobs, dl_api_keys and whatever else is given one write a line for each row that was changed, with the
columns that differ, before and after. Nothing is written for what changed nothing, and of args and results only the
names. Claims, heartbeats and ends are nobody's act, and pay for one look at a setting.

The web room does so around each request that may change something (`app.web.operations`): a route need not care. To
have the rows of another table audited give it a trigger in schema.sql, as dl_api_keys has. For what changes no row,
such as a login, there is `Audit.record`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from app.queue.values import clean_json, clean_text

if TYPE_CHECKING:
    from app.queue.jobqueue import Source

_encoded = json.JSONEncoder(ensure_ascii=False).encode
_LONGEST = 500
_LARGEST = 16_000

# Each thread begins without one, like the bound fields of app.log.
_ACT: ContextVar[str | None] = ContextVar("who acts", default=None)


@dataclass(frozen=True, kw_only=True)
class Act:
    """What somebody does."""

    action: str
    actor: str  # the name of his key; of a command, the account
    via: str  # key | session | loopback | none | command
    key_id: str | None = None
    address: str | None = None
    request_id: str | None = None

    def values(self) -> dict[str, str | None]:
        return {name: value and clean_text(value, _LONGEST) for name, value in vars(self).items()}

    def told(self) -> str:
        """As it is sent along."""
        return _encoded(self.values())


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of the audit."""

    id: int
    at: datetime
    action: str
    actor: str
    key_id: str | None
    via: str
    address: str | None
    request_id: str | None
    subject: str  # job, key, queue, session …
    subject_id: str | None
    before: Any
    after: Any
    db_user: str


@contextmanager
def acting(act: Act) -> Iterator[None]:
    """Whatever this thread changes within is done for him."""
    token = _ACT.set(act.told())
    try:
        yield
    finally:
        _ACT.reset(token)


def whose() -> str | None:
    """For whom this thread acts, as it is sent along."""
    return _ACT.get()


@contextmanager
def acting_for_each(acts: Mapping[UUID, str | None]) -> Iterator[None]:
    """The jobs that this thread puts into the queue within are each somebody's own: `whose` by the job's id."""
    told = ",".join(f'"{job_id}":{act}' for job_id, act in acts.items() if act is not None)
    token = _ACT.set(f'{{"each":{{{told}}}}}' if told else None)
    try:
        yield
    finally:
        _ACT.reset(token)


def accompanied(text: str, parameters: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any] | None]:
    """A message, with for whom it is sent: a setting of its transaction alone. One without parameters is our own."""
    act = _ACT.get()
    if act is None or parameters is None:
        return text, parameters
    return f"SET LOCAL dl.act = %(dl_act)s;\n{text}", {**parameters, "dl_act": act}


class Audit:
    """The audit in one schema of one database."""

    def __init__(self, source: Source) -> None:
        self._ask = source.ask

    def record(
        self, act: Act, subject: str, subject_id: str | None = None, *, before: Any = None, after: Any = None
    ) -> None:
        """Write down what changes no row of ours."""
        told = {
            name: None if it is None else clean_json(it, _LARGEST)
            for name, it in (("before", before), ("after", after))
        }
        self._ask("record_act", {**act.values(), **told, "subject": subject, "subject_id": subject_id})

    def entries(  # noqa: PLR0913 - each is a way to narrow it
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        key_id: str | None = None,
        subject: str | None = None,
        subject_id: str | None = None,
        request_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: int | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        """Lines that fit, the newest first; `before`: only those older than that line, `after`: only newer ones."""
        asked = {
            "action": action, "actor": actor, "key_id": key_id, "subject": subject, "subject_id": subject_id,
            "request_id": request_id, "since": since, "until": until, "before": before, "after": after, "limit": limit,
        }  # fmt: skip
        return [_entry(row) for row in self._ask("audit", asked)]

    def top(self) -> int:
        """The number of the newest line; 0: there is none."""
        return int(self._ask("audit_top")[0][0])

    def prune(self, *, keep_sec: float, most: int) -> int:
        """Delete the oldest lines that are older than that, though none of the last day; returns how many."""
        return int(self._ask("prune_audit", {"keep_sec": keep_sec, "most": most})[0][0])


def _entry(row: tuple[Any, ...]) -> Entry:
    names = tuple(Entry.__dataclass_fields__)
    values = dict(zip(names, row, strict=True))
    for name in ("before", "after"):
        values[name] = None if values[name] is None else json.loads(values[name])
    return Entry(**values)
