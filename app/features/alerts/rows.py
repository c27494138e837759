"""Alert rules, their alerts, and the check that fires and resolves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote
from uuid import UUID

from dataloader.app.db.encoding import as_uuid, from_row, validate_texts
from dataloader.app.db.statements import Executor
from dataloader.app.errors import AlertNotFound, RuleExists, RuleNotFound
from dataloader.app.wording import replace_seconds

ALERT_FIELD = "alert-"  # what the names of fields that select an alert begin with, before its id


class RuleKind(StrEnum):
    """What a rule compares with its threshold."""

    FAILURE_RATE = "failure_rate"  # the share of failed runs within the window
    NO_SUCCESS = "no_success"  # seconds since a task last succeeded
    QUEUE_AGE = "queue_age"  # seconds that the oldest ready job has waited
    STALLED = "stalled"  # seconds since a running job's progress last changed
    BREAKER_OPEN = "breaker_open"  # seconds since a task's circuit breaker opened
    LIMIT_STARVED = "limit_starved"  # seconds that the next job of a limit has waited
    SCHEDULE_LATE = "schedule_late"  # seconds since a schedule should have fired
    SCHEDULE_BEHIND = "schedule_behind"  # jobs of a schedule that have not ended
    CHECK_FAILED = "check_failed"  # how often a data check has not passed within the window
    STALE_DATASET = "stale_dataset"  # seconds since a dataset was last updated
    DEAD_WORKER = "dead_worker"  # seconds since a worker's last heartbeat


# Jobs run, or will, but not as they should. Of the other kinds jobs do not run, they fail, or data is missing.
WARNING_KINDS = frozenset({
    RuleKind.STALLED, RuleKind.LIMIT_STARVED, RuleKind.SCHEDULE_BEHIND, RuleKind.CHECK_FAILED,
})  # fmt: skip
# What an alert of a kind is about.
SUBJECT_KINDS: Mapping[str, str] = {
    RuleKind.FAILURE_RATE: "task",
    RuleKind.NO_SUCCESS: "task",
    RuleKind.QUEUE_AGE: "queue",
    RuleKind.STALLED: "job",
    RuleKind.BREAKER_OPEN: "task",
    RuleKind.LIMIT_STARVED: "limit",
    RuleKind.SCHEDULE_LATE: "schedule",
    RuleKind.SCHEDULE_BEHIND: "schedule",
    RuleKind.CHECK_FAILED: "task",
    RuleKind.STALE_DATASET: "dataset",
    RuleKind.DEAD_WORKER: "worker",
}
MAX_FIRING_SHARED = 100  # of alerts that the overview and the header of pages read


@dataclass(frozen=True)
class AlertRule:
    rule_id: UUID
    name: str
    kind: RuleKind
    queue: str | None
    task: str | None
    threshold: float
    window_sec: float
    min_runs: int
    active: bool
    created_at: datetime
    dataset: str | None
    by_time: str | None
    zone: str | None
    muted_until: datetime | None  # until then its new alerts are not delivered
    muted_by: str | None

    @property
    def is_muted(self) -> bool:
        return self.muted_until is not None and self.muted_until > datetime.now(UTC)


@dataclass(frozen=True)
class FiredAlert:
    """An alert; `subject` is the task, queue, job or worker that it is about. `sent_at`: when it was given to the
    webhooks; null while its rule is muted."""

    alert_id: UUID
    rule_id: UUID | None
    kind: str
    name: str
    subject: str
    queue: str | None
    task: str | None
    value: float | None
    detail: str
    started_at: datetime
    last_checked_at: datetime
    resolved_at: datetime | None
    sent_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None

    @property
    def is_critical(self) -> bool:
        return self.kind not in WARNING_KINDS

    @property
    def about(self) -> tuple[str, str]:
        """The kind of the subject, empty if no rule has it, and its name. `subject` of a check is `task: its name`."""
        kind = SUBJECT_KINDS.get(self.kind, "")
        return kind, self.task if kind == "task" and self.task else self.subject


@dataclass(frozen=True)
class CheckResult:
    fired: int
    resolved: int


class Alerts:
    """Reads and changes alert rules, and checks them."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def add(
        self,
        name: str,
        kind: RuleKind,
        threshold: float,
        *,
        queue: str | None = None,
        task: str | None = None,
        window_sec: float = 3600.0,
        min_runs: int = 1,
        dataset: str | None = None,
        by_time: str | None = None,
        zone: str | None = None,
    ) -> AlertRule:
        """Raises RuleExists if there is one of this name."""
        values = {"kind": kind.value, "threshold": threshold, "window_sec": window_sec, "min_runs": min_runs}
        texts = {"name": name, "queue": queue, "task": task, "dataset": dataset, "by_time": by_time, "zone": zone}
        rows = self._execute("add_alert_rule", validate_texts(texts) | values)
        if not rows:
            raise RuleExists(name)
        return from_row(AlertRule, rows[0])

    def rules(self) -> list[AlertRule]:
        return [from_row(AlertRule, row) for row in self._execute("alert_rules", {"rule_id": None})]

    def rule(self, rule_id: UUID) -> AlertRule:
        return from_row(AlertRule, self._single_row("alert_rules", rule_id))

    def change(
        self,
        rule_id: UUID,
        *,
        threshold: float | None = None,
        window_sec: float | None = None,
        min_runs: int | None = None,
        active: bool | None = None,
    ) -> AlertRule:
        """Change a rule; None leaves a value as it is."""
        values = {"threshold": threshold, "window_sec": window_sec, "min_runs": min_runs, "active": active}
        return from_row(AlertRule, self._single_row("change_alert_rule", rule_id, **values))

    def mute(self, rule_id: UUID, *, mute_sec: float, muted_by: str) -> AlertRule:
        """Deliver no new alert of a rule for so long; 0 ends the mute."""
        row = self._single_row("mute_alert_rule", rule_id, mute_sec=mute_sec, muted_by=muted_by)
        return from_row(AlertRule, row)

    def remove(self, rule_id: UUID) -> None:
        self._single_row("remove_alert_rule", rule_id)

    def _single_row(self, statement: str, rule_id: UUID, **parameters: Any) -> tuple[Any, ...]:
        rows = self._execute(statement, {"rule_id": str(rule_id), **parameters})
        if not rows:
            raise RuleNotFound(rule_id)
        return rows[0]

    def all(self, *, firing: bool = True, before: UUID | None = None, limit: int = 100) -> list[FiredAlert]:
        """List firing alerts, or all, newest first; `before` is the last one of the previous page."""
        parameters = {"firing": firing, "before": before and str(before), "limit": limit}
        return [_fired_alert(row) for row in self._execute("alerts", parameters)]

    def acknowledge(self, alert_id: UUID, *, acknowledged_by: str | None) -> FiredAlert:
        """Note who takes care of a firing alert; None takes that back. Raises AlertNotFound if it does not fire."""
        rows = self._execute("acknowledge_alert", {"alert_id": str(alert_id), "acknowledged_by": acknowledged_by})
        if not rows:
            raise AlertNotFound(alert_id)
        return _fired_alert(rows[0])

    def firing_hours(self) -> dict[UUID, list[int]]:
        """Of each rule the hours of the last day in which it fired, as hours before now."""
        return {as_uuid(row[0]): row[1] for row in self._execute("alert_hours")}

    def counts(self) -> dict[str, int]:
        """The number of firing alerts by kind."""
        return {row[0]: row[1] for row in self._execute("count_alerts")}

    def check(self, *, interval_sec: float) -> CheckResult:
        """Check all rules, as is done every `interval_sec`; fire and resolve alerts."""
        return CheckResult(*self._execute("check_rules", {"interval_sec": interval_sec})[0][:2])

    def prune(self, *, keep_sec: float) -> None:
        self._execute("prune_alerts", {"keep_sec": keep_sec})


def _fired_alert(row: Sequence[Any]) -> FiredAlert:
    """Return the alert with the seconds of its detail as people read them."""
    alert = from_row(FiredAlert, row)
    return replace(alert, detail=replace_seconds(alert.detail))


def subject_path(kind: str, subject: str, task: str | None) -> str:
    """The page of what an alert is about."""
    name = quote(subject, safe="")
    paths = {
        RuleKind.QUEUE_AGE: f"/queues/{name}",
        RuleKind.STALLED: f"/jobs/{name}",
        RuleKind.DEAD_WORKER: "/workers",
        RuleKind.LIMIT_STARVED: f"/limits#limit-{name}",
        RuleKind.BREAKER_OPEN: "/limits#breakers",
        RuleKind.SCHEDULE_LATE: f"/schedules/{name}",
        RuleKind.SCHEDULE_BEHIND: f"/schedules/{name}",
        RuleKind.STALE_DATASET: f"/datasets/{name}",
        "webhook_disabled": f"/webhooks/{name}",
    }
    return paths.get(kind, f"/tasks/{quote(task or subject, safe='')}")


def read_firing_alerts(executor: Executor) -> list[FiredAlert]:
    return Alerts(executor).all(limit=MAX_FIRING_SHARED)


def read_rules(executor: Executor) -> list[AlertRule]:
    return Alerts(executor).rules()
