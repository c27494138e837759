"""What an operator changes of alert rules, and of alerts that fire."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Self
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dataloader.app.acts.act import Call, Undo, act, undone_by
from dataloader.app.features.alerts.rows import AlertRule, Alerts, FiredAlert, RuleKind
from dataloader.app.features.webhooks.rows import Webhooks
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import InvalidRequest, ProblemCode
from dataloader.app.http.schemas import INT4_MAX, BodyModel, Deleted, Timestamp, require_change, require_one_field
from dataloader.pipelines.reports import MAX_DATASET_BYTES
from dataloader.pipelines.zone_clock import find_zone

_MAX_DURATION_SEC = 30 * 86_400.0  # statistics are kept no longer
_MIN_WINDOW_SEC = 60.0
_MAX_ALERTS = 500  # among which the alert of an undo is looked for
_RULE_NOT_FOUND = (ProblemCode.RULE_NOT_FOUND,)

Name = Annotated[str, Field(min_length=1, max_length=1000)]
Threshold = Annotated[float, Field(ge=0, le=_MAX_DURATION_SEC, allow_inf_nan=False)]
Window = Annotated[float, Field(ge=_MIN_WINDOW_SEC, le=_MAX_DURATION_SEC, allow_inf_nan=False)]
RunCount = Annotated[int, Field(ge=1, le=INT4_MAX)]


def _validate_zone(raw: str) -> str:
    try:
        find_zone(raw)
    except ValueError:
        raise PydanticCustomError("zone", "is not a time zone of the IANA database, such as Europe/Moscow") from None
    return raw


class NewAlertRule(BodyModel):
    """An alert rule to create."""

    name: Name = Field(description="For people; unique.", examples=["rates fail"])
    kind: Annotated[RuleKind, Field(strict=False)] = Field(
        description="failure_rate: the share of failed runs within the window; no_success: seconds since a task last "
        "succeeded; queue_age: seconds that the oldest ready job has waited; stalled: seconds since a running job's "
        "progress last changed; dead_worker: seconds since a worker's last heartbeat; breaker_open: seconds since a "
        "task's circuit breaker opened; limit_starved: seconds that a job has waited for a limit; "
        "schedule_late: seconds that a schedule is late, also one that was refused, skipped times or stopped; "
        "schedule_behind: jobs of a schedule that have not ended; check_failed: how often a data check did not pass "
        "within the window, while its last value does not; stale_dataset: seconds since a dataset was last updated, "
        "now or at the last time `by_time`."
    )
    threshold: Threshold = Field(description="The alert fires above it: a share from 0 to 1, seconds, or jobs.")
    queue: Name | None = Field(None, description="Only this queue; null: every queue.")
    task: Name | None = Field(None, description="Only this task; null: every task. Required for no_success.")
    window_sec: Window = Field(
        3600.0,
        description="failure_rate, check_failed: the window of what counts; dead_worker: the age after which a worker "
        "is forgotten. Ignored for other kinds.",
    )
    min_runs: RunCount = Field(1, description="failure_rate: the minimum number of runs in the window.")
    dataset: Annotated[str, Field(min_length=1, max_length=MAX_DATASET_BYTES)] | None = Field(
        None, description="The dataset of stale_dataset."
    )
    by_time: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] | None = Field(
        None,
        description="stale_dataset: the time of day by which the update is due; it may be `threshold` seconds older.",
        examples=["07:00"],
    )
    zone: Annotated[str, AfterValidator(_validate_zone)] | None = Field(
        None, description="The time zone of `by_time`; null: UTC.", examples=["Europe/Moscow"]
    )

    @model_validator(mode="after")
    def _check_fields_fit_kind(self) -> Self:
        if self.kind == "no_success" and self.task is None:
            raise PydanticCustomError("rule", "is required for no_success", {"field": "task"})
        if self.kind == "failure_rate" and self.threshold >= 1:
            raise PydanticCustomError("rule", "must be below 1 for failure_rate, such as 0.2", {"field": "threshold"})
        if self.kind in ("queue_age", "dead_worker", "limit_starved", "stale_dataset") and self.task is not None:
            raise PydanticCustomError("rule", "belongs to no rule of kind {kind}", {"field": "task", "kind": self.kind})
        if (self.kind == "stale_dataset") != (self.dataset is not None):
            raise PydanticCustomError("rule", "is required for stale_dataset, and only for it", {"field": "dataset"})
        if self.kind in ("stale_dataset", "check_failed") and self.queue is not None:
            raise PydanticCustomError(
                "rule", "belongs to no rule of kind {kind}", {"field": "queue", "kind": self.kind}
            )
        if self.by_time is not None and self.dataset is None:
            raise PydanticCustomError("rule", "belongs to rules of kind stale_dataset", {"field": "by_time"})
        if self.zone is not None and self.by_time is None:
            raise PydanticCustomError("rule", "belongs to by_time; send that too", {"field": "zone"})
        return self


class AlertRuleEdit(BodyModel):
    """Values of an alert rule to change; those left out stay as they are."""

    model_config = ConfigDict(json_schema_extra=require_one_field(null_is_change=False))

    threshold: Threshold | None = Field(None, description="The alert fires above it.")
    window_sec: Window | None = Field(None, description="The window, in seconds.")
    min_runs: RunCount | None = Field(None, description="The minimum number of runs in the window.")
    active: bool | None = Field(None, description="False: the rule is not checked, and its alerts are resolved.")

    _require_change = model_validator(mode="after")(require_change)


class AlertMute(BodyModel):
    """Until when no new alert of a rule is delivered."""

    mute_sec: Annotated[float, Field(ge=0, le=_MAX_DURATION_SEC, allow_inf_nan=False)] | None = Field(
        None, description="The time in seconds from now; 0 ends the mute.", examples=[28_800]
    )
    until: Timestamp | None = Field(None, description="The end of the mute, instead of `mute_sec`; 30 days at most.")

    @model_validator(mode="after")
    def _require_one_end(self) -> Self:
        if (self.mute_sec is None) == (self.until is None):
            raise PydanticCustomError("mute", "or until is required, and not both", {"field": "mute_sec"})
        return self


@dataclass(frozen=True)
class ChangedAlertRule(AlertRule):
    """A rule after a change. `warnings`: why its queue or task may be misspelt."""

    warnings: list[str]


@dataclass(frozen=True)
class SentTest:
    """The test deliveries that were created, one for each receiver; none: no webhook gets alerts."""

    delivery_ids: list[UUID]


@act("alert_rule.created", "POST", "/rules", problems=(ProblemCode.RULE_EXISTS,))
def create_alert_rule(call: Call, body: NewAlertRule) -> ChangedAlertRule:
    """Create an alert rule. One worker process checks all rules every few seconds.

    An alert is delivered once when it fires and once when it is resolved, to the webhooks with the events
    `alert.firing` and `alert.resolved`.
    """
    warnings = call.check_names(queue=body.queue, task=body.task)
    rule = Alerts(call.executor).add(**vars(body))
    call.audit(rule_id=rule.rule_id)
    return ChangedAlertRule(**vars(rule), warnings=warnings)


class RuleUndo(Undo):
    subject, fields = "alert_rule", frozenset({"active", "threshold", "window_sec", "min_runs"})

    def current(self) -> AlertRule:
        return Alerts(self.call.executor).rule(UUID(self.name))

    def restore(self) -> None:
        Alerts(self.call.executor).change(UUID(self.name), **(self.before or {}))


@undone_by(RuleUndo)
@act("alert_rule.changed", "PATCH", "/rules/<uuid:rule_id>", problems=_RULE_NOT_FOUND)
def edit_alert_rule(call: Call, rule_id: UUID, body: AlertRuleEdit) -> ChangedAlertRule:
    """Change the values of an alert rule, or activate or deactivate it."""
    rule = Alerts(call.executor).change(rule_id, **vars(body))
    return ChangedAlertRule(**vars(rule), warnings=call.check_names(queue=rule.queue, task=rule.task))


class MuteUndo(RuleUndo):
    fields = frozenset({"muted_until", "muted_by"})

    def restore(self) -> None:
        until = (self.before or {}).get("muted_until")
        left_sec = 0.0 if until is None else (datetime.fromisoformat(until) - datetime.now(UTC)).total_seconds()
        Alerts(self.call.executor).mute(UUID(self.name), mute_sec=max(0.0, left_sec), muted_by=self.call.actor)


@undone_by(MuteUndo)
@act("alert_rule.muted", "POST", "/rules/<uuid:rule_id>/mute", problems=_RULE_NOT_FOUND)
def mute_alert_rule(call: Call, rule_id: UUID, body: AlertMute) -> AlertRule:
    """Deliver no new alert of a rule for a time.

    It is still checked, and its alerts are listed. One that still fires at the end of the mute is delivered then.
    """
    mute_sec = body.mute_sec
    if body.until is not None:
        mute_sec = (body.until - datetime.now(UTC)).total_seconds()
        if not 0 < mute_sec <= _MAX_DURATION_SEC:
            raise InvalidRequest([FieldError("until", "is not within the next 30 days")])
    return Alerts(call.executor).mute(rule_id, mute_sec=mute_sec or 0.0, muted_by=call.actor)


@act("alert.tested", "POST", "/test")
def send_alert_test(call: Call) -> SentTest:
    """Send a test message to each active webhook with the event `alert.firing`. A worker process sends it.

    `GET /api/v1/deliveries/{delivery_id}` has the result of each.
    """
    delivery_ids = Webhooks(call.executor).ping_alert_receivers()
    call.audit(deliveries=len(delivery_ids))
    return SentTest(delivery_ids)


@act("alert_rule.deleted", "DELETE", "/rules/<uuid:rule_id>", problems=_RULE_NOT_FOUND)
def delete_alert_rule(call: Call, rule_id: UUID) -> Deleted:
    """Delete an alert rule. Its alerts are resolved by the next check."""
    Alerts(call.executor).remove(rule_id)
    return Deleted()


class AcknowledgementUndo(Undo):
    subject, fields = "alert", frozenset({"acknowledged_at", "acknowledged_by"})

    def current(self) -> FiredAlert | None:
        alerts = Alerts(self.call.executor).all(limit=_MAX_ALERTS)
        return next((alert for alert in alerts if str(alert.alert_id) == self.name), None)

    def restore(self) -> None:
        Alerts(self.call.executor).acknowledge(UUID(self.name), acknowledged_by=None)


@undone_by(AcknowledgementUndo)
@act("alert.acknowledged", "POST", "/<uuid:alert_id>/acknowledge", problems=(ProblemCode.ALERT_NOT_FOUND,))
def acknowledge_alert(call: Call, alert_id: UUID) -> FiredAlert:
    """Note that the caller takes care of a firing alert. A second acknowledgement changes nothing."""
    return Alerts(call.executor).acknowledge(alert_id, acknowledged_by=call.actor)
