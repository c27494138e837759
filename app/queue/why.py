"""Why a job waits, runs for so long, or ended as it did: as reasons for programs, each with a sentence for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from app.queue.job import Job, Status
from app.queue.jobqueue import Source, as_uuid
from app.queue.lists import Lists, Try
from app.queue.rollups import Happened, Rollups
from app.wording import counted

MOST_AHEAD = 10_000  # jobs in front that are counted one by one
_LATE_HEARTBEATS = 3
_QUIET_SEC = 300.0  # progress that is older than that is told of
_LONGEST_LINE = 300  # of an error, in a sentence


class ReasonCode(StrEnum):
    """What programs go by; each stays as it is."""

    QUEUE_PAUSED = "queue_paused"
    QUEUE_DRAINING = "queue_draining"
    QUEUE_AT_LIMIT = "queue_at_limit"
    NO_WORKER = "no_worker"
    TASK_UNKNOWN = "task_unknown"
    WORKERS_DRAINING = "workers_draining"
    NOT_DUE = "not_due"
    KEY_BUSY = "key_busy"
    KEY_LOCKED_ELSEWHERE = "key_locked_elsewhere"
    KEY_FREED = "key_freed"
    PER_WORKER_LIMIT = "per_worker_limit"
    THREADS_BUSY = "threads_busy"
    JOBS_AHEAD = "jobs_ahead"
    NEXT = "next"
    LEASE_EXPIRED = "lease_expired"
    WORKER_SILENT = "worker_silent"
    STOP_NOT_OBEYED = "stop_not_obeyed"
    PROGRESS_OLD = "progress_old"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    LOST = "lost"


@dataclass(frozen=True)
class Reason:
    """One thing that holds a job, or explains it. The first of several is the one to look at."""

    code: ReasonCode
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimate:
    """When a waiting job may start, and what that is reckoned from."""

    seconds: float
    basis: str


@dataclass(frozen=True)
class Explanation:
    """Why a job is where it is."""

    job: Job
    reasons: list[Reason]
    position: int | None  # how many are in front of it, and one; None: it stands in no row
    position_exact: bool
    estimate: Estimate | None


class Why:
    """Asks for the facts of one job, and puts them into words."""

    def __init__(self, source: Source) -> None:
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask
        self._lists, self._rollups = Lists(source), Rollups(source)

    def explain(self, job_id: UUID) -> Explanation:
        """Raises JobNotFound."""
        job = self._lists.versioned(job_id).job
        if job.status is Status.QUEUED:
            rows = self._ask("why_queued", {"job_id": str(job_id), "bound": MOST_AHEAD})
            if rows:
                return _waiting(job, Wait(*rows[0]), self._usual(job))
        elif job.status is Status.RUNNING:
            rows = self._ask("why_running", {"job_id": str(job_id)})
            if rows:  # else it has just ended
                return Explanation(job, list(_running(Run(*rows[0]), self._usual(job))), None, True, None)
            job = self._lists.versioned(job_id).job
        return Explanation(job, [_ended(job, self._lists.tries(job_id))], None, True, None)

    def _usual(self, job: Job) -> Happened:
        """Of its task in its queue: these numbers are found without reading those of others."""
        return self._rollups.by_task("7d", task=job.task, queue=job.queue).get(job.task, Happened())


@dataclass(frozen=True)
class Wait:
    """The facts about a waiting job, as the statement has them."""

    now: datetime
    place: str
    stray: bool
    available_at: datetime
    created_at: datetime
    queue: str
    task: str
    lock_key: str
    attempt: int
    holder: str | UUID | None
    holder_worker: str | None
    holder_since: datetime | None
    pid: int | None
    application: str | None
    session_since: datetime | None
    state: str
    note: str | None
    changed_by: str | None
    changed_at: datetime | None
    concurrency: int | None
    per_worker: int | None
    running: int
    workers: int
    knowing: int
    stopping: int  # of those that know the task
    eligible: int  # workers that know the task and claim
    threads: int  # of the eligible ones, for this queue, as far as its per-worker limit lets them run
    busy: int
    at_per_worker: int  # eligible workers that the per-worker limit keeps from claiming
    ahead: int
    ahead_of_key: int
    workers_anywhere: int


def _waiting(job: Job, wait: Wait, usual: Happened) -> Explanation:
    reasons = list(_why_waiting(job, wait))
    ahead = wait.ahead_of_key if wait.place == "parked" else wait.ahead
    stands = wait.place in ("ready", "parked")
    return Explanation(
        job,
        reasons or [_next(wait)],
        min(ahead, MOST_AHEAD) + 1 if stands else None,
        ahead <= MOST_AHEAD,
        _estimate(wait, usual) if stands and all(reason.code in _PASSING for reason in reasons) else None,
    )


_PASSING = (  # these pass by themselves
    ReasonCode.KEY_BUSY,
    ReasonCode.JOBS_AHEAD,
    ReasonCode.THREADS_BUSY,
    ReasonCode.PER_WORKER_LIMIT,
    ReasonCode.QUEUE_AT_LIMIT,
)


def _why_waiting(job: Job, wait: Wait) -> Iterator[Reason]:
    yield from _of_the_queue(wait)
    if wait.stray:
        yield Reason(
            ReasonCode.TASK_UNKNOWN,
            f"It was set aside because no live worker of queue {wait.queue!r} knows the task {wait.task!r}; "
            f"it is looked at again at {_at(wait.available_at)}, or as soon as one that does appears.",
            {"task": wait.task, "again_at": wait.available_at},
        )
        return
    yield from _of_workers(wait)
    if wait.available_at > wait.now:
        if wait.attempt > 0 and job.error is not None:
            told = f"Try {wait.attempt} failed; the next one is not due before {_at(wait.available_at)}."
        else:
            told = f"It is not due before {_at(wait.available_at)}."
        yield Reason(
            ReasonCode.NOT_DUE, told, {"available_at": wait.available_at, "after_error": job.error is not None}
        )
        return
    yield from _of_the_key(wait)
    if wait.place == "ready":
        yield from _of_the_row(wait)


def _of_the_queue(wait: Wait) -> Iterator[Reason]:
    if wait.state != "open":
        by = f" by {wait.changed_by}" if wait.changed_by else ""
        note = f": {wait.note}" if wait.note else ""
        code = ReasonCode.QUEUE_PAUSED if wait.state == "paused" else ReasonCode.QUEUE_DRAINING
        yield Reason(
            code,
            f"Queue {wait.queue!r} is {wait.state} since {_at(wait.changed_at)}{by}{note}; nothing is claimed from it.",
            {"queue": wait.queue, "since": wait.changed_at, "by": wait.changed_by, "note": wait.note},
        )
    elif wait.concurrency is not None and wait.running >= wait.concurrency:
        yield Reason(
            ReasonCode.QUEUE_AT_LIMIT,
            f"Queue {wait.queue!r} may run {counted(wait.concurrency, 'job')} at once; running now: {wait.running}.",
            {"queue": wait.queue, "concurrency": wait.concurrency, "running": wait.running},
        )


def _of_workers(wait: Wait) -> Iterator[Reason]:
    if wait.workers == 0:
        other = f"; {wait.workers_anywhere} work on other queues" if wait.workers_anywhere else " at all"
        yield Reason(
            ReasonCode.NO_WORKER,
            f"No live worker works on queue {wait.queue!r}{other}.",
            {"queue": wait.queue, "workers_anywhere": wait.workers_anywhere},
        )
    elif wait.knowing == 0:
        yield Reason(
            ReasonCode.TASK_UNKNOWN,
            f"None of the {wait.workers} live workers of queue {wait.queue!r} knows the task {wait.task!r}.",
            {"task": wait.task, "workers": wait.workers},
        )
    elif wait.eligible == 0:
        drained = wait.knowing - wait.stopping
        doing = [f"{n} {what}" for n, what in ((wait.stopping, "shutting down"), (drained, "drained")) if n]
        yield Reason(
            ReasonCode.WORKERS_DRAINING,
            f"None of the {wait.knowing} live workers of queue {wait.queue!r} that know the task {wait.task!r} claims "
            f"anything: {', '.join(doing)}.",
            {"queue": wait.queue, "workers": wait.knowing, "stopping": wait.stopping},
        )


def _of_the_key(wait: Wait) -> Iterator[Reason]:
    facts: dict[str, Any] = {"lock_key": wait.lock_key}
    if wait.holder is not None:
        since = wait.holder_since or wait.now
        yield Reason(
            ReasonCode.KEY_BUSY,
            f"Its key {wait.lock_key!r} is held by job {wait.holder}, which runs since {_at(since)} "
            f"({_for(wait.now, since)}) on {wait.holder_worker}.",
            facts | {"job_id": as_uuid(wait.holder), "since": since, "worker": wait.holder_worker},
        )
    elif wait.pid is not None and wait.place == "parked":
        since_told = f" since {_at(wait.session_since)}" if wait.session_since else ""
        yield Reason(
            ReasonCode.KEY_LOCKED_ELSEWHERE,
            f"Its key {wait.lock_key!r} is locked by the session {wait.application or 'without a name'!r} (process "
            f"{wait.pid} of the server){since_told}, though no job runs with it: a run that lost its lease and goes "
            "on, or another service.",
            facts | {"pid": wait.pid, "application_name": wait.application, "since": wait.session_since},
        )
    elif wait.place == "parked":
        yield Reason(
            ReasonCode.KEY_FREED,
            f"Its key {wait.lock_key!r} was freed a moment ago; the sweep wakes the next job within a second.",
            facts,
        )


def _of_the_row(wait: Wait) -> Iterator[Reason]:
    facts = {"queue": wait.queue, "threads": wait.threads, "busy": wait.busy}
    if wait.eligible and wait.busy >= wait.threads:
        if wait.at_per_worker:
            yield Reason(
                ReasonCode.PER_WORKER_LIMIT,
                f"Each worker process may run {counted(wait.per_worker or 0, 'job')} of queue {wait.queue!r} at once, "
                f"and none of the {wait.eligible} that could run it has room: {wait.busy} run.",
                facts | {"per_worker": wait.per_worker, "workers": wait.eligible},
            )
        else:
            yield Reason(
                ReasonCode.THREADS_BUSY,
                f"All threads of the workers that could run it are busy: {wait.threads} for queue {wait.queue!r}.",
                facts,
            )
    if wait.ahead:
        many = counted(wait.ahead, "ready job") if wait.ahead <= MOST_AHEAD else f"more than {MOST_AHEAD} ready jobs"
        yield Reason(
            ReasonCode.JOBS_AHEAD,
            f"It waits behind {many} of queue {wait.queue!r}, by priority and age.",
            {"ahead": min(wait.ahead, MOST_AHEAD), "exact": wait.ahead <= MOST_AHEAD},
        )


def _next(wait: Wait) -> Reason:
    return Reason(ReasonCode.NEXT, "Nothing holds it: it is about to be claimed.", {"queue": wait.queue})


def _estimate(wait: Wait, usual: Happened) -> Estimate | None:
    """From how long runs of the same task take; None if none has ended in the last days."""
    mean = usual.ran.mean
    if mean is None:
        return None
    average = f"jobs of {wait.task!r} take {mean:.1f} s on average"
    if wait.place == "parked":
        before = wait.ahead_of_key + 1
        return Estimate(mean * before, f"{counted(before, 'job')} of its key before it, and {average}")
    slots, free = wait.threads, wait.threads - wait.busy
    if wait.concurrency is not None:
        slots, free = min(slots, wait.concurrency), min(free, wait.concurrency - wait.running)
    if slots <= 0:
        return None
    free = max(0, free)
    key_free_sec = 0.0 if wait.holder is None else mean
    return Estimate(
        max(key_free_sec, mean * max(0, wait.ahead + 1 - free) / slots),
        f"{counted(wait.ahead, 'job')} before it, {free} of {counted(slots, 'thread')} free, and {average}",
    )


@dataclass(frozen=True)
class Run:
    """The facts about a running job, as the statement has them."""

    now: datetime
    queue: str
    task: str
    attempt: int
    max_attempts: int
    worker: str | None
    heartbeat_at: datetime | None
    lease_expires_at: datetime | None
    lease_ttl_sec: int
    cancel_requested: bool
    time_limit_sec: int | None
    error: str | None
    began_at: datetime | None
    asked_at: datetime | None
    worker_id: str | UUID | None
    worker_seen_at: datetime | None
    worker_alive: bool | None
    rung: str | None
    stopping: str | None
    progress_age: float | None


def _running(run: Run, usual: Happened) -> Iterator[Reason]:
    if run.lease_expires_at is not None and run.lease_expires_at < run.now:
        yield Reason(
            ReasonCode.LEASE_EXPIRED,
            f"Its lease ran out {_for(run.now, run.lease_expires_at)} ago; a reaper takes it from {run.worker} soon.",
            {"lease_expires_at": run.lease_expires_at, "worker": run.worker},
        )
    elif not run.worker_alive:
        seen = f" since {_at(run.worker_seen_at)}" if run.worker_seen_at else ""
        yield Reason(
            ReasonCode.WORKER_SILENT,
            f"Its worker {run.worker} was not heard of{seen}; the job is taken from it when its lease runs out at "
            f"{_at(run.lease_expires_at)}.",
            {"worker": run.worker, "seen_at": run.worker_seen_at, "lease_expires_at": run.lease_expires_at},
        )
    if run.cancel_requested or run.stopping:
        asked = run.asked_at or run.now
        why = "cancel" if run.cancel_requested else run.stopping
        means = f"; the means tried last is {run.rung!r}" if run.rung else ""
        yield Reason(
            ReasonCode.STOP_NOT_OBEYED,
            f"It was asked to stop ({why}) {_for(run.now, asked)} ago and has not come to a safe point{means}.",
            {"reason": why, "asked_at": run.asked_at, "rung": run.rung or "flag"},
        )
    if run.progress_age is not None and run.progress_age > _QUIET_SEC:
        yield Reason(
            ReasonCode.PROGRESS_OLD,
            f"Its progress has not changed for {_span(run.progress_age)}.",
            {"progress_age_sec": round(run.progress_age, 1)},
        )
    yield _since(run, usual)


def _since(run: Run, usual: Happened) -> Reason:
    began = run.began_at or run.now
    ran = (run.now - began).total_seconds()
    p50, p95 = usual.ran.percentile(0.5), usual.ran.percentile(0.95)
    told = f"Try {run.attempt} of {run.max_attempts} runs on {run.worker} for {_span(ran)}"
    if p95 is not None and ran > p95:
        told += f", longer than 95 % of the jobs of {run.task!r} do ({_span(p95)})"
    elif p50 is not None:
        told += f"; half of the jobs of {run.task!r} take {_span(p50)} or less"
    beat = None if run.heartbeat_at is None else max(0.0, (run.now - run.heartbeat_at).total_seconds())
    if beat is not None:
        told += f"; its last heartbeat was {_span(beat)} ago"
    return Reason(
        ReasonCode.RUNNING,
        told + ".",
        {
            "attempt": run.attempt,
            "worker": run.worker,
            "worker_id": run.worker_id and as_uuid(run.worker_id),
            "began_at": began,
            "running_sec": round(ran, 1),
            "heartbeat_age_sec": None if beat is None else round(beat, 1),
            "progress_age_sec": None if run.progress_age is None else round(run.progress_age, 1),
            "usual_p50_sec": p50,
            "usual_p95_sec": p95,
        },
    )


def _ended(job: Job, tries: list[Try]) -> Reason:
    last = tries[-1] if tries else None
    facts = {
        "finished_at": job.finished_at,
        "attempts": job.attempt,
        "max_attempts": job.max_attempts,
        "worker": job.worker,
        "error": job.error,
        "last_outcome": last.outcome if last else None,
    }
    at = _at(job.finished_at)
    tried = "its first try" if job.attempt == 1 else f"try {job.attempt}"
    match job.status:
        case Status.SUCCEEDED:
            told = f"It succeeded at {at}, in {tried}."
        case Status.FAILED:
            given_up = "which was the last" if job.attempt >= job.max_attempts else "which was not to be tried again"
            told = f"It failed at {at} in {tried} of {job.max_attempts}, {given_up}: {_first_line(job.error)}"
        case Status.LOST:
            told = f"It was lost at {at}: its worker vanished in {tried} of {job.max_attempts}, which was the last."
        case _:
            begun = "before it began" if not tries else f"in {tried}"
            told = f"It was canceled at {at}, {begun}."
    return Reason(ReasonCode(job.status.value), told, facts)


def _first_line(error: str | None) -> str:
    line = (error or "no error was told").strip().partition("\n")[0]
    line = line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"
    return line if line.endswith(".") else line + "."


def _at(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _for(now: datetime, since: datetime) -> str:
    return _span(max(0.0, (now - since).total_seconds()))


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
