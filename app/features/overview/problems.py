"""The problems that features find, one for each subject, worst first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dataloader.app.acts.feature import Feature, load_all
from dataloader.app.acts.findings import Subject
from dataloader.app.acts.service_problems import Problem, ProblemAct
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.http.links import page_of


class ProblemReader:
    """Reads what the features of a service find wrong."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self._finders = tuple(load_all(features, "problems"))
        self._features = features

    def read(self, reads: SharedReads) -> list[Problem]:
        """Return one problem for each subject, the worst first; those that are taken care of last."""
        found = [problem for find in self._finders for problem in find(reads)]
        covered = {(problem.subject, kind) for problem in found for kind in problem.covers}
        by_subject: dict[Subject, list[Problem]] = defaultdict(list)
        for problem in sorted(found, key=lambda problem: (problem.state != "alert", problem.impact)):
            if not problem.repeats or problem.repeats - covered:
                by_subject[problem.subject].append(problem)
        problems = [self._merge(group) for group in by_subject.values()]
        return sorted(problems, key=lambda problem: (problem.is_handled, problem.state != "alert"))

    def _merge(self, group: Sequence[Problem]) -> Problem:
        """One problem of all that is wrong with a subject: the first leads, and alerts add what it does not say."""
        alerts = next((problem for problem in group if problem.alerts), None)
        others = [self._with_page(problem) for problem in group if problem is not alerts]
        if alerts is None:
            return _join(others)
        return _add_alerts(others, alerts) if others else self._of_alerts_alone(alerts)

    def _of_alerts_alone(self, alerts: Problem) -> Problem:
        first, *rest = (text for _, text in alerts.alerts)
        problem = self._with_page(replace(alerts, before=first[:1].upper() + first[1:], others=tuple(rest), acts=()))
        return replace(problem, acts=(*problem.acts, *alerts.acts))

    def _with_page(self, problem: Problem) -> Problem:
        kind, name = problem.subject
        if (path := page_of(self._features, kind, name)) is None:
            return problem
        return replace(problem, link=path, acts=problem.acts or (ProblemAct(kind.capitalize(), path),))


def count_open(problems: Iterable[Problem]) -> int:
    return sum(not problem.is_handled for problem in problems)


def _join(group: Sequence[Problem]) -> Problem:
    """One problem of several of a subject: the first leads."""
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


def _add_alerts(group: Sequence[Problem], alerts: Problem) -> Problem:
    """Add alerts to the problems of their subject. An alert that says what a problem says adds no text."""
    known, covered = _join(group), {kind for problem in group for kind in problem.covers}
    texts = (text for kind, text in alerts.alerts if kind not in covered)
    return replace(
        known,
        state=known.state if alerts.is_handled else min(known.state, alerts.state),  # "alert" before "warning"
        others=(*known.others, *texts),
        acts=(*known.acts, *alerts.acts),
        alerts=alerts.alerts,
        is_handled=alerts.is_handled,
    )
