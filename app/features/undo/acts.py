"""Undo of acts: after an act its page shows what has changed, and a form that writes the old values back.

The old values are those that the audit recorded with the request of the act. They are written by the classes that every
act uses, so that the audit shows both, and only while the values are still those that the act wrote: they are compared
and written in one transaction, which locks them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

from flask import g, request
from pydantic import Field

from dataloader.app.acts.act import Call, act
from dataloader.app.acts.audit_log import AuditEntry, AuditLog
from dataloader.app.acts.web import ActRunner
from dataloader.app.db.statements import Executor, open_transaction
from dataloader.app.features.alerts.rows import Alerts
from dataloader.app.features.jobs.edits import JobEditor
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.limits.breakers import Breakers, BreakerState
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.queues.rows import Queues
from dataloader.app.features.schedules.acts import PauseRequest, ResumeQuery, pause_schedule, resume_schedule
from dataloader.app.features.schedules.reader import ScheduleReader
from dataloader.app.http.auth.guard import ACTOR, current_actor
from dataloader.app.http.caches import QueueSettingsCache
from dataloader.app.http.jobs.job_maker import JobMaker
from dataloader.app.http.options import WebOptions
from dataloader.app.http.schemas import BodyModel
from dataloader.app.queue.job import Job, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.queues import QueueControl, QueueState
from dataloader.app.ui.base import ACT_COOKIE, UNAVAILABLE_ERRORS, InvalidForm, can_operate, safe_path
from dataloader.pipelines.contract import Pipelines

_NEWEST_READ = 1_000  # entries of the audit in which those of an act are looked for
_MAX_ENTRIES = 50  # of one act
_MAX_EVENTS = 20
_MAX_ALERTS = 500
_UNDO_ACTION = "undo_act"
_QUEUE_FIELDS = frozenset({"state", "concurrency", "per_worker", "fair", "share", "note"})
_LIMIT_FIELDS = ("concurrency", "rate", "per_sec", "burst", "note")
_PAUSE_FIELDS = frozenset({"paused_at", "paused_by", "paused_reason"})
_MUTE_FIELDS = frozenset({"muted_until", "muted_by"})
_RULE_FIELDS = frozenset({"active", "threshold", "window_sec", "min_runs"})
_BREAKER_NUMBERS = ("failures", "window_sec", "resume_sec")
_DERIVED = frozenset({"failed_in_row", "opened_at", "probe_at", "is_declared"})  # of a breaker, by what was set


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
    """Finds the acts of callers, and undoes them."""

    def __init__(self, executor: Executor, pipelines: Pipelines, options: WebOptions) -> None:
        self._source, self._pipelines, self._options = executor, pipelines, options
        self._audit = AuditLog(executor)

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
            entry for entry in found if entry.actor == actor.name and entry.key_id == actor.key_id and _is_change(entry)
        ]
        if not entries or entries[0].audit_id <= newest_id - _NEWEST_READ:
            return None
        # Of a larger or older one some entries are not read, and a part of an act is never undone.
        is_complete = len(found) <= _MAX_ENTRIES and found[-1].audit_id > newest_id - _NEWEST_READ
        can_undo = all(_can_undo(entry) for entry in entries) and entries[0].action != _UNDO_ACTION
        return PastAct(request_id, entries, is_complete and can_undo)

    def undo(self, request_id: str) -> None:
        """Write the old values back. Raises InvalidForm if something has changed since."""
        act = self.act(request_id)
        if act is None or not act.can_undo:
            raise InvalidForm("This act cannot be undone: it is too old, not yours, or has no inverse.")
        with open_transaction(self._source) as executor:
            _Undo(executor, self._pipelines, self._options).run(act.entries)


class _Undo:
    """Compares what an act has changed and writes the old values, in one transaction: all of them or none."""

    def __init__(self, executor: Executor, pipelines: Pipelines, options: WebOptions) -> None:
        self._audit, self._queues, self._limits, self._alerts = (
            AuditLog(executor), Queues(executor), Limits(executor), Alerts(executor)
        )  # fmt: skip
        self._breakers, self._jobs, self._queue = Breakers(executor), JobReader(executor), JobQueue(executor)
        self._editor, self._schedules = JobEditor(executor), ScheduleReader(executor, pipelines, options)
        maker = JobMaker(self._queue, pipelines, QueueSettingsCache(QueueControl(executor)))
        self._runner = ActRunner(executor, pipelines, options, maker)
        self._job_versions: dict[str, str] = {}  # of the jobs that were compared

    def run(self, entries: list[AuditEntry]) -> None:
        """Raises InvalidForm if something has changed since."""
        for entry in sorted(entries, key=lambda entry: (entry.subject, str(entry.subject_id))):  # two undos: one order
            self._audit.lock(entry)
        for entry in entries:
            if not self._is_unchanged(entry):
                raise InvalidForm(f"Nothing was undone: {entry.subject} {entry.subject_id} has changed since.")
        for entry in entries:
            self._restore(entry)

    def _is_unchanged(self, entry: AuditEntry) -> bool:
        """Whether the values are those that the act wrote."""
        current = self._current(entry)
        if entry.after is None:
            return current is None
        if entry.subject == "job" and "status" not in entry.after:
            return current is not None and _has_values(current, self._last_edit(entry)[1])
        known = {name: value for name, value in entry.after.items() if name not in _DERIVED}
        return current is not None and _has_values(current, known)

    def _current(self, entry: AuditEntry) -> Any:
        """What there is now; None: it does not exist."""
        name = str(entry.subject_id)

        def first(found: Iterator[Any]) -> Any:
            return next(found, None)

        read: dict[str, Callable[[], Any]] = {
            "queue": lambda: self._queues.settings().get(name),
            "limit": lambda: first(limit for limit in self._limits.statuses() if limit.setting == limit.name == name),
            "breaker": lambda: first(breaker for breaker in self._breakers.statuses() if breaker.task == name),
            "schedule": lambda: self._schedules.get(name),
            "worker": lambda: self._queues.worker(UUID(name)),
            "alert": lambda: first(a for a in self._alerts.all(limit=_MAX_ALERTS) if str(a.alert_id) == name),
            "alert_rule": lambda: self._alerts.rule(UUID(name)),
            "job": lambda: self._job(name),
        }
        return read[entry.subject]()

    def _job(self, job_id: str) -> Job:
        found = self._jobs.get_with_version(UUID(job_id))
        self._job_versions[job_id] = found.version
        return found.job

    def _restore(self, entry: AuditEntry) -> None:
        name, actor = str(entry.subject_id), current_actor().name
        before: Mapping[str, Any] = entry.before or {}
        match entry.subject:
            case "queue":
                self._restore_queue(entry, name)
            case "limit":
                self._restore_limit(entry, name)
            case "breaker":
                self._restore_breaker(entry, name)
            case "schedule" if before.get("paused_at") is None:
                self._runner.perform(resume_schedule, {"name": name}, query=ResumeQuery())
            case "schedule":
                self._runner.perform(pause_schedule, {"name": name}, PauseRequest(reason=before.get("paused_reason")))
            case "worker":
                self._queues.drain_worker(UUID(name), draining=bool(before["draining"]))
            case "alert":
                self._alerts.acknowledge(UUID(name), acknowledged_by=None)
            case "alert_rule" if "muted_until" in before:
                self._alerts.mute(UUID(name), mute_sec=_seconds_until(before["muted_until"]), muted_by=actor)
            case "alert_rule":
                self._alerts.change(UUID(name), **before)
            case "job" if "status" in before:
                self._queue.retry(UUID(name), keep_time=True)
            case "job":
                values = _parsed(self._last_edit(entry)[0])
                self._editor.edit(UUID(name), values, if_version=self._job_versions[name])

    def _restore_queue(self, entry: AuditEntry, name: str) -> None:
        old = {"state": "open", **dict.fromkeys(entry.after)} if entry.before is None else entry.before
        values: dict[str, Any] = {f: old[f] for f in _QUEUE_FIELDS & old.keys() if old[f] is not None}
        removed = [field for field in ("concurrency", "per_worker", "fair", "share") if field in old]
        if "state" in old:
            values["state"] = QueueState(old["state"] or "open")
            values["note"] = old["note"] if "note" in old else self._current(entry).note  # a state has its own note
        remove = [field for field in removed if old[field] is None]
        self._queues.change_settings(name, **values, remove=remove, changed_by=current_actor().name)

    def _restore_limit(self, entry: AuditEntry, name: str) -> None:
        if entry.before is None:
            self._limits.delete(name)
            return
        current = self._current(entry)
        values = {field: getattr(current, field, None) for field in _LIMIT_FIELDS}
        values |= {field: entry.before[field] for field in _LIMIT_FIELDS if field in entry.before}
        self._limits.set(name, **values, changed_by=current_actor().name)

    def _restore_breaker(self, entry: AuditEntry, task: str) -> None:
        if entry.before is None:
            self._breakers.delete(task)
            return
        old, current = entry.before, self._current(entry)
        numbers: dict[str, Any] = {}
        if any(field in old for field in _BREAKER_NUMBERS):
            numbers = {field: old.get(field, getattr(current, field, None)) for field in _BREAKER_NUMBERS}
        state: dict[str, Any] = {}
        if "state" in old or "reason" in old:
            was_closed = old.get("state", current.state) == BreakerState.CLOSED
            state["state"] = BreakerState.CLOSED if was_closed else BreakerState.OPEN
            state["reason"] = old.get("reason", current.reason)
        self._breakers.set(task, **numbers, **state, changed_by=current_actor().name)

    def _last_edit(self, entry: AuditEntry) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values before and after the edit of a job; of args the audit has only the names. Raises InvalidForm if
        there is a later edit."""
        events = self._jobs.last_events(UUID(str(entry.subject_id)), limit=_MAX_EVENTS)
        edits = [event for event in events if event.kind == "edited"]
        if not edits:
            raise InvalidForm("Nothing was undone: the old values are not known any more.")
        if edits[-1].ts > entry.at:  # an edit writes its event before its entry
            raise InvalidForm(f"Nothing was undone: job {entry.subject_id} has changed since.")
        return edits[-1].payload["before"], edits[-1].payload["after"]


@act("act.undone", unaudited={"next"})
def undo_act(call: Call, body: UndoRequest) -> str:
    """Undo an act of the caller: write the values before it back, if they are unchanged since."""
    ActHistory(call.executor, call.pipelines, call.options).undo(body.act)
    return safe_path(body.next)


_UNDOABLE = {
    "schedule": (_PAUSE_FIELDS,),
    "worker": (frozenset({"draining"}),),
    "alert": (frozenset({"acknowledged_at", "acknowledged_by"}),),
    "alert_rule": (_MUTE_FIELDS, _RULE_FIELDS),
}
SHOWN_FIELDS = {
    "queue": _QUEUE_FIELDS,
    "limit": frozenset(_LIMIT_FIELDS),
    "breaker": frozenset({*_BREAKER_NUMBERS, "state", "reason"}),
    "schedule": frozenset({"paused_at", "paused_reason"}),
    "worker": frozenset({"draining"}),
    "alert": frozenset({"acknowledged_at"}),
    "alert_rule": _RULE_FIELDS | {"muted_until"},
    "job": frozenset({"status", "priority", "available_at", "max_attempts"}),
}


def _is_change(entry: AuditEntry) -> bool:
    """Whether an entry is worth a message: a new job, for one, has its own page."""
    return entry.subject in SHOWN_FIELDS


def _can_undo(entry: AuditEntry) -> bool:
    """Whether the values before an act are known, and can be written back."""
    before, after = entry.before, entry.after
    changed = frozenset({*(before or ()), *(after or ())})
    if entry.subject == "limit":
        return not str(entry.subject_id).startswith("backfill:")
    if entry.subject == "queue":
        return after is not None and not changed & {"fair_key", "weight"}
    if entry.subject == "breaker":
        return before is None or all(before[field] is not None for field in _BREAKER_NUMBERS if field in before)
    if before is None or after is None:
        return False
    if entry.subject == "job":
        if "status" in after:
            return bool(before["status"] == Status.QUEUED and after["status"] == Status.CANCELED)
        return "cancel_requested" not in changed
    return any(changed <= fields for fields in _UNDOABLE[entry.subject])


def _has_values(current: Any, values: Mapping[str, Any]) -> bool:
    return all(
        _plain(getattr(current, name)) == _plain(value) for name, value in values.items() if hasattr(current, name)
    )


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


def _parsed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of an event as an edit takes them."""
    return {
        name: datetime.fromisoformat(value) if name == "available_at" and isinstance(value, str) else value
        for name, value in values.items()
    }


def _seconds_until(moment: Any) -> float:
    """Of a mute that is written back; 0: there was none, or it is over."""
    if not isinstance(moment, str):
        return 0.0
    return max(0.0, (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds())
