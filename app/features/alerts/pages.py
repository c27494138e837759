"""The page of alerts: what fires, the rules with their forms, and what was resolved."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from flask import Response, request
from pydantic import ConfigDict, Field

from dataloader.app.acts.web import ActForms, Choice
from dataloader.app.errors import AlertNotFound
from dataloader.app.features.alerts import acts
from dataloader.app.features.alerts.rows import ALERT_FIELD, AlertRule, Alerts, FiredAlert, RuleKind, subject_path
from dataloader.app.features.webhooks.rows import Webhooks
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.queue.webhook_events import WebhookEvent
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer, parse_choice, redirect_to, safe_path
from dataloader.app.ui.formatter import Formatter
from dataloader.app.ui.forms import format_duration, parse_duration, parse_form, parse_number

_MAX_FIRING = 500
_RESOLVED_PAGE_SIZE = 20
_RULE_ACTIONS = {
    "on": Choice(act=acts.edit_alert_rule, preset={"active": True}),
    "off": Choice(act=acts.edit_alert_rule, preset={"active": False}),
    "mute": Choice(act=acts.mute_alert_rule, parse=lambda form, _path: _mute_end(form)),
    "unmute": Choice(act=acts.mute_alert_rule, preset={"mute_sec": 0}),
    "delete": Choice(act=acts.delete_alert_rule),
}
_COUNTED_KINDS = (RuleKind.SCHEDULE_BEHIND, RuleKind.CHECK_FAILED)  # their thresholds are numbers, not durations
_KIND_NAMES = {
    RuleKind.FAILURE_RATE: "failure rate",
    RuleKind.NO_SUCCESS: "no success",
    RuleKind.QUEUE_AGE: "old queue",
    RuleKind.STALLED: "stalled job",
    RuleKind.BREAKER_OPEN: "breaker open",
    RuleKind.LIMIT_STARVED: "limit starved",
    RuleKind.SCHEDULE_LATE: "schedule late",
    RuleKind.SCHEDULE_BEHIND: "schedule behind",
    RuleKind.CHECK_FAILED: "data check failed",
    RuleKind.STALE_DATASET: "stale dataset",
    RuleKind.DEAD_WORKER: "dead worker",
}
_KINDS_WITHOUT = {  # a field of the form
    "task": (RuleKind.QUEUE_AGE, RuleKind.DEAD_WORKER, RuleKind.LIMIT_STARVED, RuleKind.STALE_DATASET),
    "queue": (RuleKind.STALE_DATASET, RuleKind.CHECK_FAILED),
}
_KIND_FIELDS = {  # the kinds whose rules have a field
    "window_sec": "failure_rate check_failed dead_worker",
    **{name: " ".join(kind for kind in RuleKind if kind not in without) for name, without in _KINDS_WITHOUT.items()},
}


class AlertsPageQuery(FormModel):
    edit: FormText = Field("", description="The rule that the form shows.")
    before: UUID | None = Field(None, description="Only resolved alerts older than this one.")


class SelectedAlertsForm(FormModel):
    """An act on the selected alerts: a field `alert-ID` for each."""

    model_config = ConfigDict(extra="allow", frozen=True)

    action: FormText = Field(description="acknowledge; mute: the rules of these alerts.")
    mute_sec: FormText = Field("8h", description="How long their rules are muted, such as 8h.")
    until: FormText = Field("", description="Until when they are muted, instead.")
    next: FormText = Field("/alerts", description="The page to return to.")


def create_alerts_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("alerts_page", site.options)
    alerts, webhooks = Alerts(site.executor), Webhooks(site.executor)

    @pages.page("/alerts", query=AlertsPageQuery)
    def show_alerts(query: AlertsPageQuery | None = None) -> Response:
        """Show what fires, the rules, and what was resolved."""
        rules, firing = alerts.rules(), alerts.all(limit=_MAX_FIRING)
        before = None if query is None else query.before
        resolved = _resolved(alerts, before)
        return pages.render(
            "alerts.html",
            firing=sorted(firing, key=lambda alert: (alert.acknowledged_at is not None, not alert.is_critical)),
            rules=rules,
            rules_by_id={rule.rule_id: rule for rule in rules},
            edited=_rule_of(rules, request.form.get("rule_id") or ("" if query is None else query.edit)),
            hours=alerts.firing_hours(),
            resolved=resolved,
            is_first_page=before is None,
            older=resolved[-1].alert_id if len(resolved) == _RESOLVED_PAGE_SIZE else None,
            receivers=[hook for hook in webhooks.all() if hook.active and WebhookEvent.ALERT_FIRING in hook.events],
            last_deliveries=webhooks.last_deliveries(),
            has_links=_has_links(site),
            kind_names=_KIND_NAMES,
            kind_fields=_KIND_FIELDS,
            subject_url=subject_url,
            describe=lambda rule: describe_rule(rule, pages.formatter),
            format_threshold=format_threshold,
            format_duration=format_duration,
        )

    @pages.action("/alerts", form=SelectedAlertsForm, page_url="/alerts", page=show_alerts)
    def submit_alerts(form: SelectedAlertsForm) -> Response:
        """Acknowledge the selected alerts, or mute their rules."""
        selected = _selected_ids()
        if not selected:
            raise InvalidForm("Select at least one alert.")
        if parse_choice("action", form.action, ("acknowledge", "mute")) == "acknowledge":
            for alert_id in selected:
                with suppress(AlertNotFound):  # one that was resolved meanwhile needs none
                    site.runner.perform(acts.acknowledge_alert, {"alert_id": alert_id})
            return redirect_to(safe_path(form.next))
        mute = parse_form(acts.AlertMute, form, _mute_end(form), pages.formatter.zone)
        fired = [alert for alert in alerts.all(limit=_MAX_FIRING) if alert.alert_id in selected]
        for rule_id in {alert.rule_id for alert in fired if alert.rule_id is not None}:
            site.runner.perform(acts.mute_alert_rule, {"rule_id": rule_id}, mute)
        return redirect_to(safe_path(form.next))

    ActForms(pages=pages, runner=site.runner, page=show_alerts, page_url="/alerts#receivers").add_button(
        "/alerts/test", "submit_alert_test", acts.send_alert_test
    )

    def parse_edit(form: Any, path: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = alerts.rule(path["rule_id"]).kind
        return {"threshold": parse_threshold(kind, form.threshold) if form.threshold.strip() else None}

    forms = ActForms(pages=pages, runner=site.runner, page=show_alerts, page_url="/alerts#rules")
    new = Choice(act=acts.create_alert_rule, parse=_parse_new, is_strict=True)
    forms.add("/alerts/rules", "submit_alert_rule", new)
    forms = replace(
        forms,
        page=lambda rule_id: show_alerts(AlertsPageQuery(edit=str(rule_id))),
        problems=(ProblemCode.RULE_NOT_FOUND,),
    )
    choices = {"change": Choice(act=acts.edit_alert_rule, parse=parse_edit), **_RULE_ACTIONS}
    summary = "Change, mute, switch or delete an alert rule."
    forms.add("/alerts/rules/<uuid:rule_id>", "submit_alert_rule_change", choices, summary=summary)
    return pages.blueprint


def _parse_new(form: Any, _path: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"threshold": parse_threshold(form.kind, form.threshold)}


def _has_links(site: Site) -> bool:
    options = site.options.features.get("webhooks")
    return options is None or options.origin.public_url is not None


def _mute_end(form: Any) -> Mapping[str, Any]:
    """A time counts more than the choice of a duration, which a form always has."""
    return {"mute_sec": None} if form.until.strip() else {}


def _selected_ids() -> set[UUID]:
    """Raises InvalidForm."""
    try:
        return {UUID(name.removeprefix(ALERT_FIELD)) for name in request.form if name.startswith(ALERT_FIELD)}
    except ValueError:
        raise InvalidForm("A selected alert has no valid id; reload the page.") from None


def _resolved(alerts: Alerts, before: UUID | None) -> list[FiredAlert]:
    """The next page of resolved alerts."""
    found: list[FiredAlert] = []
    while len(found) < _RESOLVED_PAGE_SIZE:
        page = alerts.all(firing=False, before=before, limit=_MAX_FIRING)
        found += [alert for alert in page if alert.resolved_at is not None]
        if len(page) < _MAX_FIRING:
            break
        before = page[-1].alert_id
    return found[:_RESOLVED_PAGE_SIZE]


def _rule_of(rules: list[AlertRule], rule_id: str) -> AlertRule | None:
    return next((rule for rule in rules if str(rule.rule_id) == rule_id), None)


def parse_threshold(kind: str, raw: str) -> float:
    """A share, a number or seconds, as the kind takes it. Raises InvalidForm."""
    text = raw.strip()
    if kind == RuleKind.FAILURE_RATE:
        share = parse_number(text.removesuffix("%").strip())
        if not isinstance(share, int | float) or not 0 <= share / (100 if text.endswith("%") else 1) < 1:
            raise InvalidForm.at_field("threshold", "is not a share below 100 %, such as 20 % or 0.2")
        return share / 100 if text.endswith("%") else float(share)
    if kind in _COUNTED_KINDS:
        count = parse_number(text)
        if not isinstance(count, int | float) or count < 0:
            raise InvalidForm.at_field("threshold", f"{raw!r} is not a number")
        return float(count)
    seconds = parse_duration("threshold", text)
    if seconds is None:
        raise InvalidForm.at_field("threshold", "is required, such as 15m")
    return float(seconds)


def format_threshold(rule: AlertRule) -> str:
    """The threshold as `parse_threshold` takes it."""
    if rule.kind is RuleKind.FAILURE_RATE:
        return f"{rule.threshold * 100:g} %"
    return f"{rule.threshold:g}" if rule.kind in _COUNTED_KINDS else format_duration(rule.threshold)


def describe_rule(rule: AlertRule, formatter: Formatter) -> str:
    """When a rule fires, in a sentence."""
    time, number = formatter.duration(rule.threshold), f"{rule.threshold:g}"
    window = formatter.duration(rule.window_sec)
    runs = f"the runs, if {rule.min_runs} or more," if rule.min_runs > 1 else "the runs"
    deadline = "" if rule.by_time is None else f", at {rule.by_time} {rule.zone or 'UTC'}"
    return {
        RuleKind.FAILURE_RATE: f"more than {format_threshold(rule)} of {runs} fail within {window}",
        RuleKind.NO_SUCCESS: f"no run has succeeded for {time}",
        RuleKind.QUEUE_AGE: f"the oldest ready job has waited for {time}",
        RuleKind.STALLED: f"a running job's progress has not changed for {time}",
        RuleKind.BREAKER_OPEN: "a circuit breaker opens" if not rule.threshold else f"a breaker is open for {time}",
        RuleKind.LIMIT_STARVED: f"a job has waited for a limit for {time}",
        RuleKind.SCHEDULE_LATE: f"a schedule is {time} late, was refused or makes no jobs",
        RuleKind.SCHEDULE_BEHIND: f"of a schedule more jobs than {number} have not ended",
        RuleKind.CHECK_FAILED: f"a data check failed more often than {number} within {window}",
        RuleKind.STALE_DATASET: f"the dataset has not been updated for {time}{deadline}",
        RuleKind.DEAD_WORKER: f"a worker has been silent for {time}",
    }[rule.kind]


def subject_url(alert: FiredAlert) -> str:
    """The page of what an alert is about."""
    return subject_path(alert.kind, alert.subject, alert.task)
