"""The problems that features find, grouped by their subject, worst first; with the alerts of each subject."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from uuid import UUID

from dataloader.app.acts.feature import Feature, load_all
from dataloader.app.acts.service_problems import Problem, ProblemAct, State, Subject
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.features.alerts.rows import ALERT_FIELD, FiredAlert, read_firing_alerts, read_rules
from dataloader.app.http.links import quote_name
from dataloader.app.ui.formatter import Formatter
from dataloader.app.wording import format_count


class ProblemReader:
    """Reads what the features of a service find wrong."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self._finders = tuple(load_all(features, "problems"))
        self._pages = {kind: path for feature in features for kind, path in feature.subjects.items()}

    def read(self, reads: SharedReads) -> list[Problem]:
        """Return one problem for each subject, the worst first; those that are taken care of last."""
        found = [problem for find in self._finders for problem in find(reads)]
        covered = {(problem.subject, kind) for problem in found for kind in problem.covers}
        shown = [self._with_page(problem) for problem in found if not problem.repeats or problem.repeats - covered]
        by_subject: dict[Subject, list[Problem]] = defaultdict(list)
        for problem in sorted(shown, key=lambda problem: (problem.state != "alert", problem.impact)):
            by_subject[problem.subject].append(problem)
        alerts_by_subject: dict[Subject, list[FiredAlert]] = defaultdict(list)
        for alert in reads.get(read_firing_alerts):
            alerts_by_subject[alert.about].append(alert)
        muted = {rule.rule_id for rule in reads.get(read_rules) if rule.is_muted}
        for subject, alerts in alerts_by_subject.items():
            group = by_subject[subject]
            by_subject[subject] = [_add_alerts(group, alerts, muted) if group else self._alerts_alone(alerts, muted)]
        problems = [_merge(group) for group in by_subject.values()]
        return sorted(problems, key=lambda problem: (problem.is_handled, problem.state != "alert"))

    def _alerts_alone(self, alerts: list[FiredAlert], muted: Collection[UUID | None]) -> Problem:
        """The problem of a subject in which no feature finds one."""
        first = alerts[-1]  # the oldest
        details = [Formatter.shorten(alert.detail) for alert in alerts]
        problem = self._with_page(
            Problem(
                kind=first.kind.replace("_", " "),
                subject=first.about,
                state="alert" if any(alert.is_critical for alert in alerts) else "warning",
                before=details[0][:1].upper() + details[0][1:],
                since=first.started_at,
                others=tuple(details[1:]),
                is_handled=_are_handled(alerts, muted),
            )
        )
        return replace(problem, acts=(*problem.acts, *_alert_acts(alerts, muted)))

    def _with_page(self, problem: Problem) -> Problem:
        kind, name = problem.subject
        if kind not in self._pages:
            return problem
        path = self._pages[kind].format(quote_name(name))
        return replace(problem, link=path, acts=problem.acts or (ProblemAct(kind.capitalize(), path),))


def count_open(problems: Iterable[Problem]) -> int:
    return sum(not problem.is_handled for problem in problems)


def _merge(group: list[Problem]) -> Problem:
    """One problem of all that is wrong with a subject: the first leads."""
    first, *rest = group
    if not rest:
        return first
    acts = {act.label: act for problem in group for act in problem.acts}
    others = (*first.others, *(_sentence(problem) for problem in rest))
    return replace(first, others=others, acts=tuple(acts.values()))


def _sentence(problem: Problem) -> str:
    is_whole = not problem.after or problem.after.startswith(":")
    text = (problem.before + problem.after if is_whole else problem.after.lstrip(" ,;")).strip()
    return text[:1].upper() + text[1:].rstrip(".")


def _are_handled(alerts: Iterable[FiredAlert], muted: Collection[UUID | None]) -> bool:
    return all(alert.acknowledged_at is not None or alert.rule_id in muted for alert in alerts)


def _add_alerts(group: list[Problem], alerts: list[FiredAlert], muted: Collection[UUID | None]) -> Problem:
    """Add alerts to the problem of their subject. An alert that says what the problem says adds no text."""
    known, covered = _merge(group), {kind for problem in group for kind in problem.covers}
    is_handled = _are_handled(alerts, muted)
    is_worse = not is_handled and any(alert.is_critical for alert in alerts)
    state: State = "alert" if is_worse else known.state
    details = (Formatter.shorten(alert.detail) for alert in alerts if alert.kind not in covered)
    acts = (*known.acts, *_alert_acts(alerts, muted))
    return replace(known, state=state, others=(*known.others, *details), acts=acts, is_handled=is_handled)


def _alert_acts(alerts: list[FiredAlert], muted: Collection[UUID | None]) -> Iterator[ProblemAct]:
    """The page of the alerts, and what a person may do about those that no one takes care of."""
    label = "Alert" if len(alerts) == 1 else format_count(len(alerts), "alert")
    yield ProblemAct(label, f"/alerts#alert-{alerts[0].alert_id}")
    open_alerts = [alert for alert in alerts if alert.acknowledged_at is None and alert.rule_id not in muted]
    fields = {f"{ALERT_FIELD}{alert.alert_id}": str(alert.alert_id) for alert in open_alerts} | {"next": "/"}
    if any(alert.rule_id is not None for alert in open_alerts):
        yield ProblemAct("Mute 1 h", "/alerts", fields | {"action": "mute", "mute_sec": "1h"})
    if open_alerts:
        yield ProblemAct("Acknowledge", "/alerts", fields | {"action": "acknowledge"})
