"""The part of the overview: subjects with firing alerts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from uuid import UUID

from dataloader.app.acts.findings import Subject
from dataloader.app.acts.service_problems import Problem, ProblemAct
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.features.alerts.rows import ALERT_FIELD, FiredAlert, read_firing_alerts, read_rules
from dataloader.app.ui.formatter import Formatter
from dataloader.app.wording import format_count


def alert_problems(reads: SharedReads) -> Iterator[Problem]:
    """Yield a problem for each subject with alerts. It is handled if a person has acknowledged or muted all of them."""
    alerts_by_subject: dict[Subject, list[FiredAlert]] = defaultdict(list)
    for alert in reads.get(read_firing_alerts):
        alerts_by_subject[alert.about].append(alert)
    muted = _muted_rules(reads)
    for subject, alerts in alerts_by_subject.items():
        oldest = alerts[-1]
        yield Problem(
            kind=oldest.kind.replace("_", " "),
            subject=subject,
            state="alert" if any(alert.is_critical for alert in alerts) else "warning",
            since=oldest.started_at,
            alerts=tuple((alert.kind, Formatter.shorten(alert.detail)) for alert in alerts),
            acts=tuple(_acts(alerts, muted)),
            is_handled=not any(_is_open(alert, muted) for alert in alerts),
        )


def count_firing(reads: SharedReads) -> int:
    muted = _muted_rules(reads)
    return sum(_is_open(alert, muted) for alert in reads.get(read_firing_alerts))


def _muted_rules(reads: SharedReads) -> set[UUID]:
    return {rule.rule_id for rule in reads.get(read_rules) if rule.is_muted}


def _is_open(alert: FiredAlert, muted: Collection[UUID]) -> bool:
    return alert.acknowledged_at is None and alert.rule_id not in muted


def _acts(alerts: Sequence[FiredAlert], muted: Collection[UUID]) -> Iterator[ProblemAct]:
    """The page of the alerts, and what a person may do about those that no one takes care of."""
    label = "Alert" if len(alerts) == 1 else format_count(len(alerts), "alert")
    yield ProblemAct(label, f"/alerts#alert-{alerts[0].alert_id}")
    open_alerts = [alert for alert in alerts if _is_open(alert, muted)]
    fields = {f"{ALERT_FIELD}{alert.alert_id}": str(alert.alert_id) for alert in open_alerts} | {"next": "/"}
    if any(alert.rule_id is not None for alert in open_alerts):
        yield ProblemAct("Mute 1 h", "/alerts", fields | {"action": "mute", "mute_sec": "1h"})
    if open_alerts:
        yield ProblemAct("Acknowledge", "/alerts", fields | {"action": "acknowledge"})
