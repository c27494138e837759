"""The problems of the service, grouped by their subject, worst first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Literal
from urllib.parse import urlencode
from uuid import UUID

from dataloader.app.db.statements import Executor
from dataloader.app.features.alerts.rows import ALERT_FIELD, AlertRule, Alerts, FiredAlert
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.features.doctor.findings import Finding, Severity
from dataloader.app.features.doctor.queue import check_queue
from dataloader.app.features.jobs.job_search import Filter, JobSearch, JobSummary, TooManyActiveJobs
from dataloader.app.features.limits.breakers import Breakers, BreakerState, BreakerStatus
from dataloader.app.features.queues.rows import Queues, QueueStatus, WorkerStatus
from dataloader.app.features.schedules.rows import Schedule, Schedules
from dataloader.app.features.statistics.rows import PeriodStatistics, RecentRun, Statistics
from dataloader.app.http.links import quote_name
from dataloader.app.queue.job import Status
from dataloader.app.queue.queues import QueueState
from dataloader.app.ui.formatter import Formatter
from dataloader.app.wording import format_count

MAX_RUNNING_READ = 50
STALLED_AFTER_SEC = 60.0  # older progress shows no remaining time; five times as old, it is a problem
_LONG_WAIT_SEC = 300.0
_MAX_AGE_SEC = 1_000 * 365 * 86_400.0  # another service may have created a job in the year 4000 BC
_LATE_SCHEDULE_SEC = 60.0
_MAX_HEARTBEAT_AGE_SEC = 60.0
_LONG_RUN_SEC, _LONG_RUN_FACTOR = 600.0, 3  # a run is long after both: the seconds, and so many times the longest run
_STARTUP_PERIOD = timedelta(seconds=20)  # in which a worker may still connect its listener
_MAX_FAILURE_RATE = 0.2
_MAX_OF_A_KIND = 20
_MAX_READY_READ = 20  # jobs of a queue whose tasks are looked at
_MAX_PAUSED_LISTED = 2  # more paused schedules are one line

State = Literal["alert", "warning"]
Subject = tuple[str, str]  # what it is, and its name
# The subject of an alert, by the kind of its rule.
_ALERT_SUBJECTS = {
    "failure_rate": "task",
    "no_success": "task",
    "breaker_open": "task",
    "check_failed": "task",
    "queue_age": "queue",
    "stalled": "job",
    "dead_worker": "worker",
    "limit_starved": "limit",
    "schedule_late": "schedule",
    "schedule_behind": "schedule",
    "stale_dataset": "dataset",
}
_SUBJECT_PATHS = {
    "task": "/tasks/{}",
    "queue": "/queues/{}",
    "job": "/jobs/{}",
    "worker": "/workers",
    "limit": "/limits",
    "schedule": "/schedules/{}",
    "dataset": "/datasets/{}",
}


@dataclass(frozen=True)
class Act:
    """What helps: a link, or with `fields` a form."""

    label: str
    path: str
    fields: dict[str, str] | None = None
    is_danger: bool = False


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong with one subject. The sentence is `before`, the subject as a link, `after`; `others` are further
    facts about the same subject. `is_handled`: a person has acknowledged or muted its alerts."""

    kind: str
    subject: Subject
    state: State = "warning"
    before: str = ""
    after: str = ""
    task: str | None = None  # of a job
    since: datetime | None = None
    acts: tuple[Act, ...] = ()
    covers: frozenset[str] = frozenset()  # the kinds of alert rules and checks of doctor that say the same
    alerts: tuple[FiredAlert, ...] = ()
    others: tuple[str, ...] = ()
    is_handled: bool = False

    @property
    def link(self) -> str | None:
        kind, name = self.subject
        path = _SUBJECT_PATHS.get(kind)
        return path and path.format(quote_name(name))


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the problems are found in."""

    running: list[JobSummary]
    stalled_sec: dict[UUID, float]
    recent_runs: dict[str, list[RecentRun]]
    queues: list[QueueStatus]
    workers: list[WorkerStatus]
    breakers: list[BreakerStatus]
    schedules: list[Schedule]
    last_hour: dict[str, PeriodStatistics]  # by task
    alerts: list[FiredAlert]
    rules: list[AlertRule]
    errors: list[Finding]  # of `dataloader doctor`
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


class ProblemReader:
    """Reads the state of the service."""

    def __init__(self, source: Executor) -> None:
        self._search, self._queues, self._statistics = JobSearch(source), Queues(source), Statistics(source)
        self._breakers, self._schedules, self._alerts = Breakers(source), Schedules(source), Alerts(source)
        self._facts = DatabaseFacts(source)

    def read(self) -> Situation:
        facts = self._facts.queue(max_ready=_MAX_READY_READ)
        return Situation(
            running=self._running_jobs(),
            stalled_sec=self._search.stalled(min_sec=STALLED_AFTER_SEC),
            recent_runs=self._statistics.recent_runs(),
            queues=self._queues.statuses(),
            workers=self._queues.workers(),
            breakers=[b for b in self._breakers.statuses() if b.state is not BreakerState.CLOSED],
            schedules=self._schedules.not_firing(late_sec=_LATE_SCHEDULE_SEC, limit=_MAX_OF_A_KIND),
            last_hour=self._statistics.by_task("1h", has_times=False),
            alerts=self._alerts.all(limit=_MAX_OF_A_KIND * 5),
            rules=self._alerts.rules(),
            errors=[finding for finding in check_queue(facts) if finding.severity is Severity.ERROR],
        )

    def _running_jobs(self) -> list[JobSummary]:
        """The jobs that run longest, or the newest running jobs when there are too many to sort."""
        running = Filter(status=frozenset({Status.RUNNING}))
        try:
            return self._search.page(running, sort="started_at", limit=MAX_RUNNING_READ).jobs
        except TooManyActiveJobs:
            return self._search.page(running, limit=MAX_RUNNING_READ).jobs


def count_open(problems: Iterable[Problem]) -> int:
    return sum(not problem.is_handled for problem in problems)


def find_problems(now: Situation) -> list[Problem]:
    """Return one problem for each subject, the worst first; those that are taken care of last."""
    found = [
        *_worker_problems(now.workers),
        *_breaker_problems(now.breakers),
        *_queue_problems(now.queues, now.at),
        *_schedule_problems(now.schedules),
        *_failure_problems(now.last_hour),
        *_job_problems(now),
    ]
    found += _doctor_problems(now.errors, {(problem.subject, check) for problem in found for check in problem.covers})
    by_subject: dict[Subject, list[Problem]] = defaultdict(list)
    for problem in sorted(found, key=lambda problem: problem.state != "alert"):  # stable: the order above decides
        by_subject[problem.subject].append(problem)
    muted = {rule.rule_id for rule in now.rules if rule.is_muted}
    for subject, alerts in _alerts_by_subject(now.alerts).items():
        by_subject[subject] = [_with_alerts(by_subject.get(subject, []), subject, alerts, muted)]
    problems = [_merge(group) for group in by_subject.values()]
    return sorted(problems, key=lambda problem: (problem.is_handled, problem.state != "alert"))


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


def _alerts_by_subject(alerts: Iterable[FiredAlert]) -> dict[Subject, list[FiredAlert]]:
    by_subject: dict[Subject, list[FiredAlert]] = defaultdict(list)
    for alert in alerts:
        kind = _ALERT_SUBJECTS.get(alert.kind, "")
        # The subject of a check is `task: name of the check`.
        name = alert.task if kind == "task" and alert.task else alert.subject
        by_subject[kind, name].append(alert)
    return by_subject


def _with_alerts(
    group: list[Problem], subject: Subject, alerts: list[FiredAlert], muted: Collection[UUID | None]
) -> Problem:
    """Add alerts to the problem of their subject. An alert that says what the problem says adds no text."""
    is_handled = all(alert.acknowledged_at is not None or alert.rule_id in muted for alert in alerts)
    is_critical, covered = any(alert.is_critical for alert in alerts), {kind for item in group for kind in item.covers}
    details = [Formatter.shorten(alert.detail) for alert in alerts if alert.kind not in covered]
    if group:
        known = _merge(group)
        state: State = known.state if is_handled or not is_critical else "alert"
        acts = (*known.acts, *_alert_acts(alerts, muted))
        others = (*known.others, *details)
        return replace(known, state=state, alerts=tuple(alerts), others=others, acts=acts, is_handled=is_handled)
    first = alerts[-1]  # the oldest
    subject_acts = (Act(subject[0].capitalize(), _path_of(subject)),) if subject[0] else ()
    return Problem(
        kind=first.kind.replace("_", " "),
        subject=subject,
        state="alert" if is_critical else "warning",
        before=details[0][:1].upper() + details[0][1:],
        since=first.started_at,
        acts=(*subject_acts, *_alert_acts(alerts, muted)),
        alerts=tuple(alerts),
        others=tuple(details[1:]),
        is_handled=is_handled,
    )


def _alert_acts(alerts: list[FiredAlert], muted: Collection[UUID | None]) -> Iterator[Act]:
    """The page of the alerts, and what a person may do about those that no one takes care of."""
    label = "Alert" if len(alerts) == 1 else format_count(len(alerts), "alert")
    yield Act(label, f"/alerts#alert-{alerts[0].alert_id}")
    open_alerts = [alert for alert in alerts if alert.acknowledged_at is None and alert.rule_id not in muted]
    fields = {f"{ALERT_FIELD}{alert.alert_id}": str(alert.alert_id) for alert in open_alerts} | {"next": "/"}
    if any(alert.rule_id is not None for alert in open_alerts):
        yield Act("Mute 1 h", "/alerts", fields | {"action": "mute", "mute_sec": "1h"})
    if open_alerts:
        yield Act("Acknowledge", "/alerts", fields | {"action": "acknowledge"})


def _path_of(subject: Subject) -> str:
    kind, name = subject
    return _SUBJECT_PATHS[kind].format(quote_name(name))


def _worker_problems(workers: list[WorkerStatus]) -> Iterator[Problem]:
    if not any(worker.alive for worker in workers):
        yield Problem(
            kind="no worker",
            subject=("service", "workers"),
            state="alert",
            before="No live worker: no job will run.",
            since=max((worker.last_beat_at for worker in workers), default=None),
            acts=(Act("Workers", "/workers"),),
        )
    for worker in islice(workers, _MAX_OF_A_KIND):
        subject, acts = ("worker", worker.name), (Act("Workers", "/workers"),)
        if not worker.alive:
            lost = f"; it ran {format_count(len(worker.running), 'job')}" if worker.running else ""
            yield Problem(
                kind="worker lost",
                subject=subject,
                state="alert" if worker.running else "warning",
                before="Worker ",
                after=f" sends no heartbeat{lost}",
                since=worker.last_beat_at,
                acts=acts,
                covers=frozenset({"dead_worker"}),
            )
        elif worker.has_lost_notifications and worker.last_beat_at - worker.started_at > _STARTUP_PERIOD:
            text = f" is not receiving notifications ({worker.listener}), polling"
            yield Problem(kind="polling", subject=subject, before="Worker ", after=text, acts=acts)


def _doctor_problems(errors: list[Finding], covered: Collection[tuple[Subject, str]]) -> Iterator[Problem]:
    """What doctor finds and no other problem says."""
    for error in errors:
        if error.subjects and all((subject, error.check) in covered for subject in error.subjects):
            continue
        has_page = len(error.subjects) == 1
        subject = error.subjects[0] if has_page else ("doctor", error.check)
        yield Problem(
            kind=error.check.replace("_", " "),
            subject=subject,
            state="alert",
            before=f"{error.message[:1].upper()}{Formatter.shorten(error.message[1:])}",
            acts=(Act(subject[0].capitalize(), _path_of(subject)),) if has_page else (),
            others=(error.remedy,),
        )


def _breaker_problems(breakers: list[BreakerStatus]) -> Iterator[Problem]:
    for breaker in islice(breakers, _MAX_OF_A_KIND):
        is_paused = breaker.state is BreakerState.OPEN and breaker.probe_at is None
        by = f" by {breaker.changed_by}" if breaker.changed_by else ""
        state = f" is paused{by}" if is_paused else f": its circuit breaker is {breaker.state.value.replace('_', '-')}"
        reason = f": {breaker.reason}" if breaker.reason else ""
        waiting = f"; {format_count(breaker.waiting, 'job')} waiting" if breaker.waiting else ""
        yield Problem(
            kind="paused" if is_paused else "breaker open",
            subject=("task", breaker.task),
            state="warning" if is_paused else "alert",
            after=f"{state}{reason}{waiting}",
            since=breaker.opened_at,
            acts=(
                Act("Failures", "/failures?" + urlencode({"task": breaker.task})),
                Act("Resume", "/breakers", {"task": breaker.task, "action": "resume"}),
            ),
            covers=frozenset({"breaker_open"}),
        )


def _failure_problems(by_task: dict[str, PeriodStatistics]) -> Iterator[Problem]:
    failing = [(task, counts) for task, counts in by_task.items() if (counts.failure_rate or 0.0) >= _MAX_FAILURE_RATE]
    for task, counts in islice(sorted(failing, key=lambda pair: -(pair[1].failure_rate or 0.0)), _MAX_OF_A_KIND):
        failed, runs = counts.failed + counts.lost, counts.finished - counts.canceled
        share = f" {failed} of {format_count(runs, 'time')}" if runs > 1 else ""
        yield Problem(
            kind="failing",
            subject=("task", task),
            state="alert",
            after=f" failed{share} in the last hour",
            acts=(Act("Failures", "/failures?" + urlencode({"task": task})),),
            covers=frozenset({"failure_rate"}),
        )


def _queue_problems(statuses: list[QueueStatus], at: datetime) -> Iterator[Problem]:
    for status in statuses:
        subject = ("queue", status.queue)
        jobs = Act("Jobs", "/jobs?" + urlencode({"queue": status.queue, "status": "queued"}))
        ready = f"{'' if status.ready_exact else 'about '}{format_count(status.ready, 'ready job')}"
        wait_sec = status.oldest_ready_sec or 0.0
        since = at - timedelta(seconds=min(wait_sec, _MAX_AGE_SEC)) if wait_sec else None
        if status.state is not QueueState.OPEN:
            by = f" by {status.changed_by}" if status.changed_by else ""
            note = f": {status.note}" if status.note else ""
            yield Problem(
                kind=status.state.value,
                subject=subject,
                before="Queue ",
                after=f" is {status.state.value}{by}{note}; {ready}",
                since=status.changed_at,
                acts=(jobs, Act("Resume", "/queues", {"queue": status.queue, "state": "open"})),
                covers=frozenset({"queue_age"}),
            )
        elif (status.ready or status.scheduled or status.blocked or status.limited) and status.workers == 0:
            yield Problem(
                kind="no worker",
                subject=subject,
                state="alert" if status.ready else "warning",
                before="No live worker serves queue ",
                after=f": {ready}",
                since=since,
                acts=(jobs, Act("Workers", "/workers")),
                covers=frozenset({"queue_age", "queues_without_worker"}),
            )
        elif wait_sec > _LONG_WAIT_SEC:
            yield Problem(
                kind="long wait",
                subject=subject,
                before="The oldest job of queue ",
                after=f" is ready for {Formatter.duration(wait_sec)}; {ready}",
                since=since,
                acts=(jobs, Act("Workers", "/workers")),
                covers=frozenset({"queue_age"}),
            )


def _schedule_problems(schedules: list[Schedule]) -> Iterator[Problem]:
    paused = [schedule for schedule in schedules if schedule.paused_at is not None]
    if len(paused) > _MAX_PAUSED_LISTED:
        names = ", ".join(schedule.name for schedule in paused[:_MAX_PAUSED_LISTED])
        yield Problem(
            kind="paused",
            subject=("schedules", "paused"),
            before=f"{len(paused)} schedules are paused: {names} and {len(paused) - _MAX_PAUSED_LISTED} more",
            since=min((schedule.paused_at for schedule in paused if schedule.paused_at), default=None),
            acts=(Act("Schedules", "/schedules"),),
        )
    for schedule in schedules:
        if schedule.paused_at is None or len(paused) <= _MAX_PAUSED_LISTED:
            yield _schedule_problem(schedule)


def _schedule_problem(schedule: Schedule) -> Problem:
    kind, state, text, since = "late", "alert", f" has not fired {schedule.task}", schedule.next_at
    if schedule.paused_at is not None:
        by = f" by {schedule.paused_by}" if schedule.paused_by else ""
        reason = f": {schedule.paused_reason}" if schedule.paused_reason else ""
        kind, state, text, since = "paused", "warning", f" is paused{by}{reason}", schedule.paused_at
    elif schedule.orphaned_at is not None:
        kind, state, since = "orphaned", "warning", schedule.orphaned_at
        text = " is in the code of no live worker and does not fire"
    elif schedule.error is not None:
        kind, text, since = "stopped", f" makes no jobs: {schedule.error}", schedule.changed_at
    return Problem(
        kind=kind,
        subject=("schedule", schedule.name),
        state="alert" if state == "alert" else "warning",
        before="Schedule ",
        after=text,
        since=since,
        acts=(Act("Schedule", _path_of(("schedule", schedule.name))),),
        covers=frozenset({"schedule_late", "schedules_late", "schedules_stopped"}),
    )


def _job_problems(now: Situation) -> Iterator[Problem]:
    problems = (problem for job in now.running if (problem := _job_problem(job, now)))
    yield from islice(problems, _MAX_OF_A_KIND)
    if next(problems, None) is not None:
        acts = (Act("Jobs", "/jobs?status=running"),)
        yield Problem(kind="stalled", subject=("jobs", "running"), before="More running jobs have problems", acts=acts)


def _job_problem(job: JobSummary, now: Situation) -> Problem | None:
    """Describe what is wrong with a running job, or return None."""
    stalled_sec, runs = min(now.stalled_sec.get(job.job_id, 0.0), _MAX_AGE_SEC), now.recent_runs.get(job.task, [])
    on = f" on {job.worker}" if job.worker else ""
    heartbeat_at = job.heartbeat_at or job.started_at or now.at
    longest_sec = max((run.duration_sec or 0.0 for run in runs if run.outcome == "succeeded"), default=0.0)
    elapsed_sec = (now.at - job.started_at).total_seconds() if job.started_at else 0.0
    if (now.at - heartbeat_at).total_seconds() > _MAX_HEARTBEAT_AGE_SEC:
        kind, text, since = "no heartbeat", f" runs{on} without a heartbeat", heartbeat_at
    elif job.cancel_requested:
        kind, text, since = "not canceled", f" still runs{on}, although its cancel is requested", None
    elif stalled_sec >= 5 * STALLED_AFTER_SEC:
        kind, text, since = "stalled", f" runs{on} without progress", now.at - timedelta(seconds=stalled_sec)
    elif longest_sec and job.attempt == 1 and elapsed_sec > max(_LONG_RUN_SEC, _LONG_RUN_FACTOR * longest_sec):
        usual = f"its last {format_count(len(runs), 'run')} took {Formatter.duration(longest_sec)} at most"
        kind, text, since = "long run", f" runs{on}; {usual}", job.started_at
    else:
        return None
    link, cancel = Act("Job", f"/jobs/{job.job_id}"), Act("Cancel", f"/jobs/{job.job_id}/cancel", {}, is_danger=True)
    return Problem(
        kind=kind,
        subject=("job", str(job.job_id)),
        task=job.task,
        after=text,
        since=since,
        acts=(link,) if job.cancel_requested else (link, cancel),
        covers=frozenset({"stalled", "expired_leases"}),
    )
