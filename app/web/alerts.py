"""Alerts: what fires, and the rules that decide it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.queue.alerts import Alerts, Firing, NewRule, Rule, RuleKind
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.web.exchange import said
from app.web.models import INT4_MAX, LONGEST_LIST, need_one_of
from app.web.operations import Subject
from app.web.options import WebOptions
from app.web.problems import Code

_DATABASE = (Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH)
_LONGEST = 30 * 86_400.0  # seconds: the journal's rollups go back no further
_SHORTEST_WINDOW = 60.0

Kind = Literal["failure_rate", "no_success", "queue_age", "stalled", "dead_worker"]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Threshold = Annotated[float, Field(ge=0, le=_LONGEST, allow_inf_nan=False)]
Window = Annotated[float, Field(ge=_SHORTEST_WINDOW, le=_LONGEST, allow_inf_nan=False)]
Runs = Annotated[int, Field(ge=1, le=INT4_MAX)]


class NewAlertRule(BaseModel):
    """When somebody is to be told that something goes wrong."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Name = Field(description="For people; unique.", examples=["rates fail"])
    kind: Kind = Field(
        description="failure_rate: the share of runs that failed within the window; no_success: seconds since a task "
        "last succeeded; queue_age: seconds that the oldest ready job has waited; stalled: seconds that a running "
        "job's progress stands still; dead_worker: seconds that a worker has been silent."
    )
    threshold: Threshold = Field(description="Above it the rule is broken: a share from 0 to 1, or seconds.")
    queue: Name | None = Field(None, description="Only for this queue; null is each.")
    task: Name | None = Field(None, description="Only for this task; null is each. no_success needs one.")
    window_sec: Window = Field(
        3600.0,
        description="failure_rate: the runs of how many last seconds count; dead_worker: after how many seconds "
        "nobody is waited for any more. Of no meaning to the others.",
    )
    min_runs: Runs = Field(1, description="failure_rate: with fewer runs than that in the window nothing is said.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "no_success" and self.task is None:
            raise PydanticCustomError("rule", "no_success needs a task")
        if self.kind == "failure_rate" and self.threshold >= 1:
            raise PydanticCustomError("rule", "a threshold of failure_rate is a share below 1, such as 0.2")
        if self.kind in ("queue_age", "dead_worker") and self.task is not None:
            raise PydanticCustomError("rule", "{kind} is not about a task", {"kind": self.kind})
        return self

    def new_rule(self) -> NewRule:
        return NewRule(**{**self.__dict__, "kind": RuleKind(self.kind)})


class AlertRuleChange(BaseModel):
    """What is to be another way; what is left out stays."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, json_schema_extra=need_one_of(null_counts=False)
    )

    threshold: Threshold | None = Field(None, description="Above it the rule is broken.")
    window_sec: Window | None = Field(None, description="The window, in seconds.")
    min_runs: Runs | None = Field(None, description="How many runs a window must have.")
    active: bool | None = Field(None, description="False: it is not looked at, and what it has fired is over.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if all(value is None for value in self.__dict__.values()):
            raise PydanticCustomError("empty", "nothing is to be changed; name what is")
        return self


class AlertsQuery(BaseModel):
    """Which alerts to list, the newest first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: Annotated[
        Literal["firing", "all"], Field(description="firing: those that are not over; all: also those that are.")
    ] = "firing"
    before: Annotated[UUID | None, Field(description="Only those older than this one: the page before's last.")] = None
    limit: Annotated[int, Field(ge=1, le=LONGEST_LIST, description="How many at most.")] = 100


@dataclass(frozen=True)
class AlertRule:
    rule_id: UUID
    name: str
    kind: Kind
    queue: str | None
    task: str | None
    threshold: float
    window_sec: float
    min_runs: int
    active: bool
    created_at: datetime

    @classmethod
    def of(cls, rule: Rule) -> AlertRule:
        row = dict(vars(rule))
        return cls(rule_id=row.pop("id"), **row)


@dataclass(frozen=True)
class AlertRuleList:
    rules: list[AlertRule]


@dataclass(frozen=True)
class AlertLine:
    """An alert from its beginning to its end; `subject` is the task, queue, job or worker that it is about."""

    alert_id: UUID
    rule_id: UUID | None
    kind: str
    name: str
    subject: str
    queue: str | None
    task: str | None
    value: float | None
    detail: str
    began_at: datetime
    seen_at: datetime
    ended_at: datetime | None

    @classmethod
    def of(cls, alert: Firing) -> AlertLine:
        row = dict(vars(alert))
        return cls(alert_id=row.pop("id"), **row)


@dataclass(frozen=True)
class AlertList:
    alerts: list[AlertLine]


@dataclass(frozen=True)
class RuleRemoved:
    removed: bool


def alerts(source: Source, options: WebOptions) -> Subject:
    subject = Subject("alerts", "/api/v1/alerts", options.max_json_depth)
    known = Alerts(source)
    absent = (Code.RULE_NOT_FOUND, *_DATABASE)

    @subject.get("", query=AlertsQuery, answer=AlertList, problems=_DATABASE, scope=Scope.READ)
    def alert_list(wanted: AlertsQuery) -> AlertList:
        """List the alerts that fire, or that ever have, the newest first."""
        found = known.all(firing=wanted.state == "firing", before=wanted.before, limit=wanted.limit)
        return AlertList([AlertLine.of(alert) for alert in found])

    @subject.get("/rules", answer=AlertRuleList, problems=_DATABASE, scope=Scope.READ)
    def rule_list() -> AlertRuleList:
        """List the rules, by name."""
        return AlertRuleList([AlertRule.of(rule) for rule in known.rules()])

    @subject.post(
        "/rules", body=NewAlertRule, answer=AlertRule, problems=(Code.RULE_EXISTS, *_DATABASE), scope=Scope.OPERATE
    )
    def rule_add(wanted: NewAlertRule) -> AlertRule:
        """Make a rule. One process at a time looks at all rules every few seconds.

        What a rule finds is told once when it begins and once when it is over, to the webhooks that ask for
        `alert.firing` and `alert.over`.
        """
        rule = known.add(wanted.new_rule())
        said("alert_rule.add", rule_id=rule.id)
        return AlertRule.of(rule)

    @subject.get("/rules/<uuid:rule_id>", answer=AlertRule, problems=absent, scope=Scope.READ)
    def rule_detail(rule_id: UUID) -> AlertRule:
        """Tell of one rule."""
        return AlertRule.of(known.rule(rule_id))

    @subject.patch(
        "/rules/<uuid:rule_id>", body=AlertRuleChange, answer=AlertRule, problems=absent, scope=Scope.OPERATE
    )
    def rule_change(wanted: AlertRuleChange, rule_id: UUID) -> AlertRule:
        """Change a rule's numbers, switch it off or on."""
        rule = known.change(rule_id, **wanted.__dict__)
        said("alert_rule.change", rule_id=rule.id)
        return AlertRule.of(rule)

    @subject.delete("/rules/<uuid:rule_id>", answer=RuleRemoved, problems=absent, scope=Scope.OPERATE)
    def rule_remove(rule_id: UUID) -> RuleRemoved:
        """Remove a rule. What it has fired is over at the next look."""
        known.remove(rule_id)
        said("alert_rule.remove", rule_id=rule_id)
        return RuleRemoved(True)

    return subject
