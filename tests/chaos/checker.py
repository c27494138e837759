"""Checks the rules against the tables, the events, the reports of runs and the responses of callers only.

Each rule is a function from a history to what is wrong with it. docs/chaos.md says in words what each of them promises.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TypeVar
from uuid import UUID

from app.queue.job import Status
from tests.chaos.client_log import ClientResponse
from tests.chaos.etl import FOLLOW_UPS, PARTS
from tests.chaos.history import FINAL, Edge, History, LimitChange, Pause, Row, RunReport
from tests.chaos.offload_rules import (
    offload_executed_again,
    offload_left_running,
    offload_without_intent,
    wrong_offload_result,
)
from tests.support.event_replay import Event, ReplayedJob, replay

STUBBORN = "chaos.zombie"
_SLACK_SEC = 1.0  # between two lines of one thread, which may be frozen or wait for the interpreter there
_CLOCK_SLACK_SEC = 0.05  # between the time of day, by which a server writes, and the clock of all processes
_CLAIM_SEC = 2.0  # within which a claim has ended, on a busy machine too
_LATE_FIRING_SEC = 15.0  # by which a nominal time may be fired late on a busy machine
_WALL_SLACK_SEC = 0.3  # likewise, read once at the end of a campaign of minutes
_LEASE_END = re.compile(r"its lease ran out at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d(?::?\d\d)?)")
_RUN_ID_IN_ERROR = re.compile(r"failed on purpose in run ([0-9a-f-]{36})")
_RELEASE_REASONS = ("shutdown", "lock_busy", "not_started", "by_hand", "waits")


@dataclass(frozen=True)
class Violation:
    rule: str
    job_id: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: job {self.job_id}: {self.message}"


def check(history: History) -> list[Violation]:
    """Everything that is wrong, rule by rule."""
    return [
        Violation(rule.__name__.replace("_", " "), str(job_id), message)
        for rule in RULES
        for job_id, message in rule(history)
    ]


Findings = Iterator[tuple[object, str]]


# ── what callers were promised ──────────────────────────────────────────────────────────────────────────────────────


def job_missing_after_acceptance(history: History) -> Findings:
    """A caller got a job id, and the job does not exist."""
    for response in history.responses:
        if response.what == "accepted" and UUID(response.job_id) not in history.rows:
            yield response.job_id, f"accepted as {response.task} with the key {response.key!r}; no such job"


def two_jobs_for_one_key(history: History) -> Findings:
    """The same request was answered with two jobs."""
    answers: dict[str, set[str]] = defaultdict(set)
    for response in history.responses:
        if response.what == "accepted" and response.key:
            answers[response.key].add(response.job_id)
    for key, jobs in answers.items():
        if len(jobs) > 1:
            yield " ".join(sorted(jobs)), f"all were the answer to the request {key!r}"


def job_not_finished(history: History) -> Findings:
    """After quiet, a job is in no final state."""
    for row in history.rows.values():
        if not Status(row.status).final:
            yield row.job_id, f"{row.task} of the key {row.lock_key!r} is still {row.status}"


def run_started_after_cancel(history: History) -> Findings:
    """A run began after a response had confirmed the cancel of its job.

    Of a job that was answered as running, one run had been claimed before: it gets a stop request, and may begin first.
    """
    first = _first_cancels(history)
    for word in history.run_reports:
        if word.what != "began" or (cancel := first.get(word.job_id)) is None or word.at <= cancel.at:
            continue
        claimed_at = _claim_time(history, word)
        if cancel.status == "running" and claimed_at is not None and claimed_at < cancel.at + _WALL_SLACK_SEC:
            continue
        after = word.at - cancel.at
        yield word.job_id, f"run {word.run_id} began {after:.3f} s after the cancel was answered by {cancel.status!r}"


def _claim_time(history: History, report: RunReport) -> float | None:
    """When the run was claimed, by the clock of all processes."""
    for event in history.events.get(report.job_id, ()):
        if _is_claim_of(event, report.run_id):
            return event.at.timestamp() - history.wall
    return None


def run_continued_after_cancel(history: History) -> Findings:
    """An obedient run began or passed a safe point when its lease could no longer be the one it had before the answer:
    had it been renewed since, the flag would have come with it."""
    first = _first_cancels(history)
    for word in history.run_reports:
        cancel, row = first.get(word.job_id), history.rows.get(word.job_id)
        if cancel is None or row is None or word.what not in ("began", "acted") or word.task == STUBBORN:
            continue
        if word.at > cancel.at + row.lease_ttl_sec + _SLACK_SEC:
            yield word.job_id, f"run {word.run_id} went on {word.at - cancel.at:.1f} s after the answer to the cancel"


def _first_cancels(history: History) -> dict[UUID, ClientResponse]:
    """The first answer to a cancel of each job, by "canceled" or by "running" with the flag. Of a job that had
    ended otherwise, or that a caller retries, nothing is promised."""
    again = {response.job_id for response in history.responses if response.what == "retried"}
    first: dict[UUID, ClientResponse] = {}
    for response in history.responses:
        is_answered = response.status in ("canceled", "running", "queued")
        if response.what == "canceled" and response.job_id not in again and is_answered:
            first.setdefault(UUID(response.job_id), response)
    return first


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def overlapping_runs(history: History) -> Findings:
    """A run passed a safe point after another run of its key, or of its job, had begun.

    Stubborn runs pass none: what they do counts where nothing but their own session could have let a successor begin.
    """
    counts = ("acted", "wrote") if history.sessions_unbroken else ("acted",)
    by_key: dict[str, list[list[RunReport]]] = defaultdict(list)
    for words in history.reports_by_run().values():
        by_key[words[0].lock_key].append(words)
    for key, runs in by_key.items():
        runs.sort(key=lambda words: words[0].at)
        last: RunReport | None = None  # the last act of all runs that have begun so far
        for words in runs:
            if last is not None and last.at > words[0].at:
                yield (
                    words[0].job_id,
                    f"run {words[0].run_id} began {last.at - words[0].at:.3f} s before the last act of run "
                    f"{last.run_id} of job {last.job_id}; the key is {key!r}",
                )
            acts = [word for word in words if word.what in counts]
            if acts and (last is None or acts[-1].at > last.at):
                last = acts[-1]


def effects_after_successor_start(history: History) -> Findings:
    """A statement of an attempt still committed when the next run of its job or key had begun.

    A target that did not answer when its sessions were to be ended is named in the event; of it nothing is promised.
    """
    claimed_at = {
        UUID(line.payload["run_id"]): line.at
        for lines in history.events.values()
        for line in lines
        if line.kind == "picked"
    }
    last_effect: dict[UUID, float] = {}
    for effect in history.effects:
        last_effect[effect.run_id] = max(effect.at, last_effect.get(effect.run_id, effect.at))
    began_by_key: dict[str, list[RunReport]] = defaultdict(list)
    for words in history.reports_by_run().values():
        began_by_key[words[0].lock_key].append(words[0])
    for own in (words[0] for words in history.reports_by_run().values() if words[0].run_id in last_effect):
        last = last_effect[own.run_id] - _CLOCK_SLACK_SEC
        if own.run_id not in claimed_at or _has_unreached_target(history, own):
            continue
        for other in began_by_key[own.lock_key]:
            # By their claims: a run that was frozen between its claim and its first word is no successor.
            is_successor = other.run_id in claimed_at and claimed_at[own.run_id] < claimed_at[other.run_id]
            if is_successor and other.at < last:
                yield (
                    own.job_id,
                    f"run {own.run_id} of a {own.task} wrote {last - other.at:.3f} s after run {other.run_id} of job "
                    f"{other.job_id} had begun; the key is {own.lock_key!r}",
                )


def _has_unreached_target(history: History, word: RunReport) -> bool:
    return any(
        line.payload.get("run_id") == str(word.run_id) and line.payload.get("sessions_left")
        for line in history.events.get(word.job_id, ())
    )


def active_after_proof_of_death(history: History) -> Findings:
    """A run was taken from a process that was proved dead, and reported something afterwards."""
    taken = {
        UUID(line.payload["run_id"]): line.at.timestamp() - history.wall
        for lines in history.events.values()
        for line in lines
        if line.payload.get("reason") == "process_died"
    }
    for run_id, words in history.reports_by_run().items():
        late = words[-1].at - taken.get(run_id, words[-1].at)
        if late > _WALL_SLACK_SEC:
            yield words[0].job_id, f"run {run_id} lived {late:.3f} s after its process had been proved dead"


def run_without_claim(history: History) -> Findings:
    """A run began that the journal knows nothing of, or with another attempt than it was claimed for."""
    for run_id, words in history.reports_by_run().items():
        claims = [line for line in history.events.get(words[0].job_id, ()) if _is_claim_of(line, run_id)]
        if not claims:
            yield words[0].job_id, f"run {run_id} began, and no claim of it is journaled"
        elif claims[0].payload["attempt"] != words[0].attempt:
            yield words[0].job_id, f"run {run_id} began as attempt {words[0].attempt}, claimed as {claims[0].payload}"
    # Each run begins once, whatever happened to the answer of its claim.
    begun = Counter(word.run_id for word in history.run_reports if word.what == "began")
    for word in history.run_reports:
        if word.what == "began" and begun.pop(word.run_id, 1) > 1:
            yield word.job_id, f"run {word.run_id} began more than once"


def _is_claim_of(event: Event, run_id: UUID) -> bool:
    return event.kind == "picked" and event.payload.get("run_id") == str(run_id)


def wrong_attempt_count(history: History) -> Findings:
    """The attempt is not the number of tries that began and were not given back, or is above the most."""
    for row in history.rows.values():
        if not 0 <= row.attempt <= row.max_attempts:
            yield row.job_id, f"attempt {row.attempt} of {row.max_attempts}"
        counted = 0
        for before, line in pairwise(history.events.get(row.job_id, ())):
            if line.payload.get("reason") in ("retry", "redrive"):
                counted = 0
            else:
                counted += int(line.kind == "picked") - int(_is_release(before, line))
            if counted > row.max_attempts:
                yield row.job_id, f"{counted} tries of {row.max_attempts}"
        if counted != row.attempt:
            yield row.job_id, f"{counted} tries are journaled, the row says {row.attempt}"


def _is_release(before: Event, event: Event) -> bool:
    """The try that ends here does not count."""
    if event.payload.get("status") != "queued":
        return False
    refunded = int(event.payload["attempt"]) == int(before.payload["attempt"]) - 1
    return event.payload.get("reason") in _RELEASE_REASONS or (event.payload.get("reason") == "error" and refunded)


# ── the journal ─────────────────────────────────────────────────────────────────────────────────────────────────────


def invalid_event_sequence(history: History) -> Findings:
    """The events do not follow from each other by TRANSITIONS, or do not end in the status of the row."""
    for row in history.rows.values():
        life = _replay_row(history, row)
        if isinstance(life, str):
            yield row.job_id, life
        elif life.status.value != row.status:
            yield row.job_id, f"the journal ends with {life.status}, the row says {row.status}"


def overlapping_runs_in_events(history: History) -> Findings:
    """By the journal alone, two runs of a key were live at once."""
    spans: dict[str, list[tuple[datetime, datetime | None, UUID]]] = defaultdict(list)
    for row in history.rows.values():
        life = _replay_row(history, row)
        if not isinstance(life, str):
            spans[row.lock_key] += [(begin, end, row.job_id) for begin, end in life.runs]
    for key, runs in spans.items():
        runs.sort(key=lambda span: span[0])
        for (_, end, one), (begin, _, other) in pairwise(runs):
            if end is None or end > begin:
                yield other, f"it began at {begin}, {one} of the same key {key!r} ended at {end}"


def _replay_row(history: History, row: Row) -> ReplayedJob | str:
    try:
        return replay(history.events.get(row.job_id, ()))
    except (AssertionError, KeyError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def reaped_too_early(history: History) -> Findings:
    """A reaper took a run sooner than a heartbeat after its lease had run out: it cannot have looked twice."""
    least = timedelta(seconds=history.heartbeat_sec)
    for lines in history.events.values():
        for line in lines:
            found = _LEASE_END.search(str(line.payload.get("error", "")))
            if line.payload.get("reason") == "lease_expired" and found:
                waited = line.at - datetime.fromisoformat(found[1])
                if waited < least:
                    yield line.job_id, f"reaped {waited.total_seconds():.3f} s after its lease had run out"


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def limit_exceeded(history: History) -> Findings:
    """A run began although more weight was running then than its limit allowed.

    A start gets the number of its event under the limit's lock, an end gets it before others see the end. So by these
    numbers there are never more runs at once than there were. While a setting was changed, either one may have applied.
    """
    used: Counter[str] = Counter()
    held: dict[UUID, Mapping[str, int]] = {}
    settings = {name: history.settings(name) for row in history.rows.values() for name in row.weights}
    for event_id, event in history.event_log:
        if event.payload.get("status") != "running" or event.kind == "picked":
            used.subtract(held.pop(event.job_id, {}))
        if event.kind != "picked" or event.job_id not in history.rows:
            continue
        held[event.job_id] = history.rows[event.job_id].weights
        used.update(held[event.job_id])
        for name in held[event.job_id]:
            allowed = _max_concurrency(settings[name], event_id)
            if allowed is not None and used[name] > allowed:
                yield (
                    event.job_id,
                    f"run {event.payload.get('run_id')} began at event {event_id}; then a weight of {used[name]} was "
                    f"running in the limit {name!r}, which allowed {allowed}",
                )


def _max_concurrency(settings: Sequence[LimitChange], event_id: int) -> int | None:
    """The most that a setting allows which may have been in force at a claim. None: any number."""
    possible: list[LimitChange] = []
    for change in settings:
        if change.event_after < event_id:
            possible.clear()
        if change.event_before < event_id:
            possible.append(change)
    if not possible or any(change.concurrency is None for change in possible):
        return None
    return max(change.concurrency or 0 for change in possible)


def rate_exceeded(history: History) -> Findings:
    """More runs of a rate began in one of its periods than `rate + burst - 1`. A rate does not change in a campaign.

    The event of a start is written some time after the decision, and the next decision waits for its commit. So of
    the starts in a period only the first ones, a burst of them, may have been decided before it.
    """
    starts: dict[str, list[Event]] = defaultdict(list)
    for _, event in history.event_log:
        if event.kind == "picked" and event.job_id in history.rows:
            for name, weight in history.rows[event.job_id].weights.items():
                starts[name] += [event] * weight
    for name, events in starts.items():
        for change in history.settings(name)[:1]:
            if change.rate is None or change.per_sec is None:
                continue
            count = change.rate + 2 * change.burst  # of starts, which cannot fall into one period
            for first, last in zip(events, events[count - 1 :], strict=False):
                took = (last.at - first.at).total_seconds()
                if took < change.per_sec - _CLOCK_SLACK_SEC:
                    yield last.job_id, f"the last of {count} starts of {name!r} in {took:.3f} s"


def started_while_paused(history: History) -> Findings:
    """A job started although its task was paused. A claim that was under way when it was paused may still start one."""
    for _, event in history.event_log:
        row = history.rows.get(event.job_id)
        if event.kind != "picked" or row is None:
            continue
        for pause in history.pauses:
            began = pause.since + timedelta(seconds=_CLAIM_SEC)
            if row.task == pause.name and began < event.at < pause.until:
                late = (event.at - pause.since).total_seconds()
                yield row.job_id, f"it started {late:.3f} s after {pause.name} had been paused"


def job_left_limited(history: History) -> Findings:
    """After quiet, a job waits for a limit."""
    for row in history.rows.values():
        if row.wait_state == "limited":
            yield row.job_id, f"{row.task} waits for the limit {row.waits_on!r}"


# ── graphs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def started_before_parents_ended(history: History) -> Findings:
    """A job started before its parents had ended as it asks: all of them, or with `need` any one. A retry of a parent
    does not take back that it had ended so.

    The end of a parent gets the number of its event before others see it."""
    parents, retried = _edges_by_child(history), _retried(history)
    ends: dict[UUID, set[str]] = defaultdict(set)
    for _, event in history.event_log:
        if event.payload.get("status") in FINAL:
            ends[event.job_id].add(event.payload["status"])
        if event.kind != "picked" or event.job_id not in parents or event.job_id in retried:
            continue
        met = [any(map(edge.is_met_by, ends[edge.parent_id])) for edge in parents[event.job_id]]
        row = history.rows.get(event.job_id)
        if row is not None and not (any(met) if row.need == "any" else all(met)):
            yield event.job_id, f"it started when {met.count(False)} of {len(met)} parents had not ended as it asks"


def skipped_without_reason(history: History) -> Findings:
    """A job was skipped although its parents ended as it asks, and nothing failed in a graph that a failure cancels."""
    parents = _edges_by_child(history)
    failed_graphs = {
        row.graph_id
        for row in history.rows.values()
        if any(event.payload.get("status") in ("failed", "lost") for event in history.events.get(row.job_id, ()))
    } & set(history.canceling_graphs)
    for row in history.rows.values():
        if not row.skipped or row.graph_id in failed_graphs:
            continue
        met = [edge.is_met_by(history.rows[edge.parent_id].status) for edge in parents.get(row.job_id, ())]
        if met and (any(met) if row.need == "any" else all(met)):
            yield row.job_id, f"skipped ({row.error}), and its parents ended as it asks"


def not_skipped(history: History) -> Findings:
    """A job succeeded although a parent that it needs never ended as it asks, and it was not retried itself."""
    retried = _retried(history)
    for child, edges in _edges_by_child(history).items():
        row = history.rows.get(child)
        if row is None or row.status != "succeeded" or child in retried:
            continue
        ends = {edge: {str(e.payload.get("status")) for e in history.events.get(edge.parent_id, ())} for edge in edges}
        met = [any(map(edge.is_met_by, statuses & set(FINAL))) for edge, statuses in ends.items()]
        if not (any(met) if row.need == "any" else all(met)):
            yield child, f"it succeeded, and {met.count(False)} of its {len(met)} parents never ended as it asks"


def job_left_waiting(history: History) -> Findings:
    """After quiet, a job waits for others that have all ended."""
    parents = _edges_by_child(history)
    for row in history.rows.values():
        if row.wait_state == "waiting":
            ended = [history.rows[edge.parent_id].status in FINAL for edge in parents.get(row.job_id, ())]
            yield row.job_id, f"{row.task} waits; of its {len(ended)} parents {ended.count(True)} have ended"


def graph_made_in_part(history: History) -> Findings:
    """An edge leads to a job that does not exist."""
    for edge in history.edges:
        for job_id in (edge.child_id, edge.parent_id):
            if job_id not in history.rows:
                yield job_id, "an edge leads to it, and it does not exist"


def _retried(history: History) -> set[UUID]:
    """Jobs that a person retried: a skipped one runs then, whatever its parents ended as."""
    return {UUID(response.job_id) for response in history.responses if response.what == "retried"}


def _edges_by_child(history: History) -> dict[UUID, list[Edge]]:
    edges: dict[UUID, list[Edge]] = defaultdict(list)
    for edge in history.edges:
        edges[edge.child_id].append(edge)
    return edges


# ── schedules and backfills ─────────────────────────────────────────────────────────────────────────────────────────


def time_not_fired(history: History) -> Findings:
    """A nominal time that was accounted for has no row, or several."""
    for row in history.schedules:
        if row.interval_sec is None or row.last_at is None:
            continue
        rows = [firing for firing in history.firings if firing.schedule_id == row.schedule_id]
        single = Counter(int(firing.fire_at.timestamp()) for firing in rows if firing.until is None)
        ranges = [(firing.fire_at.timestamp(), firing.until.timestamp()) for firing in rows if firing.until is not None]
        first = int(row.created_at.timestamp() / row.interval_sec) + 1
        for number in range(first, int(row.last_at.timestamp() / row.interval_sec) + 1):
            second = number * row.interval_sec
            count = single[second] + sum(begin <= second <= end for begin, end in ranges)
            if count != 1:
                moment = datetime.fromtimestamp(second, UTC).isoformat()
                yield row.schedule_id, f"the schedule {row.name!r} has {count} rows for {moment}"


def schedule_left_behind(history: History) -> Findings:
    """After quiet, times that had come long before were not fired, or an update of a dataset made no job."""
    for row in history.schedules:
        if row.pending_updates:
            yield row.schedule_id, f"{row.pending_updates} updates made no job of the schedule {row.name!r}"
        if row.stopped_at is not None and row.interval_sec is not None:
            late = row.stopped_at - (row.last_at or row.created_at)
            if late > timedelta(seconds=row.interval_sec + _LATE_FIRING_SEC):
                yield row.schedule_id, f"the schedule {row.name!r} is {late.total_seconds():.0f} s behind"


def firing_without_job(history: History) -> Findings:
    """A firing says that a job serves it, and the job does not exist, or a firing was made before its time."""
    for firing in history.firings:
        if firing.outcome in ("made", "exists") and firing.job_id not in history.rows:
            yield firing.job_id, f"{firing.outcome} for {firing.fire_at.isoformat()}, and it does not exist"
        if firing.made_by == "clock" and firing.made_at < firing.fire_at:
            yield firing.job_id, f"made {firing.fire_at - firing.made_at} before its time, {firing.fire_at.isoformat()}"


def job_without_firing(history: History) -> Findings:
    """A job of a schedule that no firing names, or two for one nominal time."""
    named = {firing.job_id for firing in history.firings}
    times: Counter[object] = Counter()
    for row in history.rows.values():
        if row.schedule_id is None:
            continue
        times[row.schedule_id, row.logical_at] += 1
        if row.job_id not in named:
            yield row.job_id, f"a job of the schedule {row.schedule_id} for {row.logical_at}; no firing names it"
        elif times[row.schedule_id, row.logical_at] > 1:
            yield row.job_id, f"another job of the schedule {row.schedule_id} for {row.logical_at}"


def made_while_paused(history: History) -> Findings:
    """A schedule made a job while it was paused, or a backfill while it was paused or after it was canceled."""
    pauses: dict[str, list[Pause]] = defaultdict(list)
    for pause in history.pauses:
        pauses[pause.name].append(pause)
    names = {row.schedule_id: row.name for row in history.schedules}
    made = [
        (firing.job_id, names.get(firing.schedule_id, ""), firing.made_at)
        for firing in history.firings
        if firing.outcome == "made" and firing.made_by == "clock"
    ]
    made += [
        (row.job_id, str(row.backfill_id), history.events[row.job_id][0].at)
        for row in history.rows.values()
        if row.backfill_id is not None and history.events.get(row.job_id)
    ]
    for job_id, name, at in made:
        for pause in pauses[name]:
            if pause.since < at < pause.until:
                yield job_id, f"made {(at - pause.since).total_seconds():.3f} s after {name!r} had been stopped"


def overlapping_scheduled_jobs(history: History) -> Findings:
    """A schedule that leaves out times while a job of it has not ended had two such jobs."""
    skipping = {row.schedule_id: row.name for row in history.schedules if row.overlap == "skip"}
    groups = {row.job_id: row.schedule_id for row in history.rows.values() if row.schedule_id in skipping}
    for job_id, other, schedule_id in _live_together(history, groups):
        yield job_id, f"queued while job {other} of the schedule {skipping[schedule_id]!r} had not ended"


def two_live_jobs_of_a_slice(history: History) -> Findings:
    """A slice had two jobs at a time that had not ended."""
    groups = {row.job_id: row.slice for row in history.rows.values() if row.slice is not None}
    for job_id, other, part in _live_together(history, groups):
        yield job_id, f"queued while job {other} of the slice {part} had not ended"


Group = TypeVar("Group")


def _live_together(history: History, groups: Mapping[UUID, Group]) -> Iterator[tuple[UUID, UUID, Group]]:
    """A job that became live, another one of its group that was then, and the group. By the numbers of the events: the
    end of a job gets its number before others see it."""
    live: dict[Group, UUID] = {}
    for _, event in history.event_log:
        if event.job_id not in groups:
            continue
        group = groups[event.job_id]
        if event.payload.get("status") in FINAL:
            if live.get(group) == event.job_id:
                del live[group]
            continue
        other = live.setdefault(group, event.job_id)
        if other != event.job_id:
            yield event.job_id, other, group
            live[group] = event.job_id


def slice_state_differs(history: History) -> Findings:
    """The table of slices does not say what the last job of a slice did, or how often the slice was run."""
    known = {(row.task, row.partition_key): row for row in history.slices}
    runs: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], UUID] = {}
    for _, event in history.event_log:
        row = history.rows.get(event.job_id)
        if row is None or row.slice is None:
            continue
        runs[row.slice] += event.kind == "picked"
        last[row.slice] = event.job_id
    for part, job_id in last.items():
        found = known.get(part)
        if found is None:
            yield job_id, f"the slice {part} is not in the table"
        elif (found.job_id, found.state) != (job_id, history.rows[job_id].status):
            yield job_id, f"{history.rows[job_id].status}; the slice {part} says {found.state} by job {found.job_id}"
        elif found.runs != runs[part]:
            yield job_id, f"the slice {part} says {found.runs} runs, and {runs[part]} were claimed"


def incomplete_backfill(history: History) -> Findings:
    """After quiet, a backfill has not ended, or one that is done has not asked for each of its slices once."""
    known = {(row.task, row.partition_key) for row in history.slices}
    for row in history.backfills:
        if row.state not in ("done", "canceled"):
            yield row.backfill_id, f"the backfill is still {row.state}"
        elif row.state == "done" and row.made + row.skipped != row.total:
            yield row.backfill_id, f"done with {row.made} made and {row.skipped} skipped of {row.total} slices"
        elif row.state == "done" and (missing := [key for key in row.keys if (row.task, key) not in known]):
            yield row.backfill_id, f"done, and no job has loaded {', '.join(missing[:5])} …"


def update_not_answered(history: History) -> Findings:
    """No job of a schedule began after the last update of a dataset that the schedule follows."""
    ends = {event.job_id: number for number, event in history.event_log if event.payload.get("status") == "succeeded"}
    begun: dict[UUID | None, int] = {}
    for number, event in history.event_log:
        row = history.rows.get(event.job_id)
        if event.kind == "picked" and row is not None and row.schedule_id is not None:
            begun[row.schedule_id] = number
    for schedule in history.schedules:
        updates = [
            (ends[job], job) for job, dataset in history.producers if dataset in schedule.datasets and job in ends
        ]
        if updates and max(updates)[0] > begun.get(schedule.schedule_id, 0):
            yield (
                max(updates)[1],
                f"it updated a dataset, and no job of the schedule {schedule.name!r} began afterwards",
            )


# ── what runs have written ──────────────────────────────────────────────────────────────────────────────────────────


def result_of_another_run(history: History) -> Findings:
    """The row's result, error or progress was written by a run that did not own the job when it ended."""
    for row in history.rows.values():
        owner = _last_claim(history, row)
        if owner is None or not Status(row.status).final:
            continue
        if row.status == "succeeded" and isinstance(row.result, dict) and row.result.get("run") != owner:
            yield row.job_id, f"its result is run {row.result.get('run')}'s, its last run was {owner}"
        if row.status == "succeeded" and row.progress.get("run", owner) != owner:
            yield row.job_id, f"its progress is run {row.progress.get('run')}'s, its last run was {owner}"
        output = _RUN_ID_IN_ERROR.search(row.error or "")
        if output and output[1] != owner:
            yield row.job_id, f"its error is run {output[1]}'s, its last run was {owner}"


def _last_claim(history: History, row: Row) -> str | None:
    claims = [line for line in history.events.get(row.job_id, ()) if line.kind == "picked"]
    return str(claims[-1].payload.get("run_id")) if claims else None


def part_written_twice(history: History) -> Findings:
    """A part is in the target twice: a run committed that had lost the job."""
    for (job_id, part), count in Counter((row.job_id, row.part) for row in history.target).items():
        if count > 1:
            runs = [str(row.run_id) for row in history.target if (row.job_id, row.part) == (job_id, part)]
            task = history.rows[job_id].task if job_id in history.rows else "?"
            yield job_id, f"part {part} of this {task} is in the target {count} times, by {' and '.join(runs)}"


def incomplete_load(history: History) -> Findings:
    """A load has succeeded, and not all of it is there."""
    parts: dict[UUID, set[int]] = defaultdict(set)
    for written in history.target:
        parts[written.job_id].add(written.part)
    for row in history.rows.values():
        if row.task == "chaos.load" and row.status == "succeeded" and parts[row.job_id] != set(range(PARTS)):
            yield row.job_id, f"succeeded with the parts {sorted(parts[row.job_id])} of {PARTS}"


def wrong_follow_ups(history: History) -> Findings:
    """A follow-up exists twice, or a parent has succeeded without one."""
    children: dict[UUID, Counter[object]] = defaultdict(Counter)
    for row in history.rows.values():
        if row.parent_id is not None:
            children[row.parent_id][row.args.get("follow_up")] += 1
    for parent, found in children.items():
        for which, count in found.items():
            if count > 1:
                yield parent, f"its follow-up {which} exists {count} times"
    for row in history.rows.values():
        if row.task == "chaos.parent" and row.status == "succeeded" and len(children[row.job_id]) != FOLLOW_UPS:
            yield row.job_id, f"succeeded with {len(children[row.job_id])} follow-ups of {FOLLOW_UPS}"


def inconsistent_row(history: History) -> Findings:
    """A row says things of itself that cannot be true together."""
    for row in history.rows.values():
        final = Status(row.status).final
        if (row.finished_at is not None) != final:
            yield row.job_id, f"{row.status}, finished at {row.finished_at}"
        if (row.lease_expires_at is not None) != (row.status == "running"):
            yield row.job_id, f"{row.status} with a lease until {row.lease_expires_at}"
        if row.status == "succeeded" and row.error is not None:
            yield row.job_id, f"succeeded with the error {row.error!r}"
        if row.wait_state != "scheduled" and row.status != "queued":
            yield row.job_id, f"{row.status}, and has the wait state {row.wait_state}"
        if row.status == "queued" and row.cancel_requested:
            yield row.job_id, "queued with its cancel asked for"


RULES: Sequence[Callable[[History], Findings]] = (
    job_missing_after_acceptance,
    two_jobs_for_one_key,
    job_not_finished,
    run_started_after_cancel,
    run_continued_after_cancel,
    overlapping_runs,
    effects_after_successor_start,
    active_after_proof_of_death,
    run_without_claim,
    wrong_attempt_count,
    invalid_event_sequence,
    overlapping_runs_in_events,
    reaped_too_early,
    limit_exceeded,
    rate_exceeded,
    started_while_paused,
    job_left_limited,
    started_before_parents_ended,
    skipped_without_reason,
    not_skipped,
    job_left_waiting,
    graph_made_in_part,
    time_not_fired,
    schedule_left_behind,
    firing_without_job,
    job_without_firing,
    made_while_paused,
    overlapping_scheduled_jobs,
    two_live_jobs_of_a_slice,
    slice_state_differs,
    incomplete_backfill,
    update_not_answered,
    result_of_another_run,
    part_written_twice,
    incomplete_load,
    wrong_follow_ups,
    offload_without_intent,
    offload_executed_again,
    wrong_offload_result,
    offload_left_running,
    inconsistent_row,
)
