"""Undo of acts: after an act its page shows what has changed, and a form that writes the old values back.

The old values are those that the audit recorded with the request of the act. The acts name the classes that write them
(`Undo` of `app/acts/act.py`), by the functions that every act uses, so that the audit shows both, and only while the
values are still those that the act wrote: they are compared and written in one transaction, which locks them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

from flask import g, request
from pydantic import Field

from dataloader.app.acts.act import Call, Undo, act
from dataloader.app.acts.audit_log import AuditEntry, AuditLog
from dataloader.app.db.statements import Executor, open_transaction
from dataloader.app.http.auth.guard import ACTOR, current_actor
from dataloader.app.http.schemas import BodyModel
from dataloader.app.ui.base import ACT_COOKIE, UNAVAILABLE_ERRORS, InvalidForm, can_operate, safe_path

_NEWEST_READ = 1_000  # entries of the audit in which those of an act are looked for
_MAX_ENTRIES = 50  # of one act
_UNDO_ACTION = "undo_act"


class UndoRequest(BodyModel):
    """The act to undo."""

    act: Annotated[str, Field(min_length=1, max_length=1000)] = Field(description="The id of its request.")
    next: str = Field("/", description="The page to return to.")


@dataclass(frozen=True)
class PastAct:
    """What a request has changed."""

    request_id: str
    entries: list[AuditEntry]
    can_undo: bool

    @property
    def is_undo(self) -> bool:
        return self.entries[0].action == _UNDO_ACTION


class ActHistory:
    """Finds the acts of callers."""

    def __init__(self, executor: Executor, undos: Sequence[type[Undo]]) -> None:
        self._audit, self._undos = AuditLog(executor), undos

    def shown_act(self) -> PastAct | None:
        """The act from which the browser comes, once: its cookie goes with the answer."""
        request_id = request.cookies.get(ACT_COOKIE)
        if not request_id or ACTOR not in request.environ or not can_operate() or g.get("refused_form") is not None:
            return None
        g.is_act_shown = True
        try:
            return self.act(request_id)
        except UNAVAILABLE_ERRORS:  # the page says so itself
            return None

    def act(self, request_id: str) -> PastAct | None:
        """What the caller has changed by this request, if that is among the newest entries of the audit."""
        if not request_id.isprintable():  # no request has such an id, and the database takes no NUL
            return None
        newest_id, actor = self._audit.newest_id(), current_actor()
        found = self._audit.entries(request_id=request_id, after=newest_id - 2 * _NEWEST_READ, limit=_MAX_ENTRIES + 1)
        entries = [
            entry
            for entry in found
            if entry.actor == actor.name and entry.key_id == actor.key_id and self.shown_fields(entry)
        ]
        if not entries or entries[0].audit_id <= newest_id - _NEWEST_READ:
            return None
        # Of a larger or older one some entries are not read, and a part of an act is never undone.
        is_complete = len(found) <= _MAX_ENTRIES and found[-1].audit_id > newest_id - _NEWEST_READ
        can_undo = all(map(self.undo_of, entries)) and entries[0].action != _UNDO_ACTION
        return PastAct(request_id, entries, is_complete and can_undo)

    def shown_fields(self, entry: AuditEntry) -> set[str]:
        """Those that the message after an act shows; of what no act can undo, such as a new job, it shows nothing."""
        fields = {name for undo in self._undos if undo.subject == entry.subject for name in undo.fields}
        return {name for name in fields if not name.endswith("_by")}

    def undo_of(self, entry: AuditEntry) -> type[Undo] | None:
        """What can write back the values before the entry."""
        of_subject = (undo for undo in self._undos if undo.subject == entry.subject)
        name = str(entry.subject_id)
        return next((undo for undo in of_subject if undo.can_undo(entry.before, entry.after, name)), None)


@act("act.undone", unaudited={"next"})
def undo_act(call: Call, body: UndoRequest) -> str:
    """Undo an act of the caller: write the values before it back, if they are unchanged since."""
    history = ActHistory(call.executor, call.undos)
    act = history.act(body.act)
    if act is None or not act.can_undo:
        raise InvalidForm("This act cannot be undone: it is too old, not yours, or has no inverse.")
    with open_transaction(call.executor) as executor:
        in_transaction = replace(call, executor=executor, audited={})
        _write_back([
            undo(in_transaction, entry) for entry in act.entries if (undo := history.undo_of(entry)) is not None
        ])  # fmt: skip
    return safe_path(body.next)


def _write_back(undos: Sequence[Undo]) -> None:
    """Raises InvalidForm if something has changed since."""
    for undo in sorted(undos, key=lambda undo: (undo.subject, undo.name)):  # two at a time lock in one order
        undo.lock()
    for undo in undos:
        if not _is_unchanged(undo):
            raise InvalidForm(f"Nothing was undone: {undo.subject} {undo.name} has changed since.")
    for undo in undos:
        undo.restore()


def _is_unchanged(undo: Undo) -> bool:
    """Whether the values are those that the act wrote."""
    current = undo.current()
    if current is None or undo.after is None:
        return current is None and undo.after is None
    written = undo.written()
    return all(_plain(vars(current)[name]) == _plain(value) for name, value in written.items() if name in vars(current))


def _plain(value: Any) -> Any:
    """A value as it is compared: of a row or of JSON."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str) and value[4:5] == "-":
        try:
            return datetime.fromisoformat(value).astimezone(UTC)
        except ValueError:
            return value
    return value
