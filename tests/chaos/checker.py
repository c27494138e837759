"""Checks the rules against the tables, the events, the reports of runs and the responses of callers only.

Each rule is a function from a history to what is wrong with it. docs/chaos.md says in words what each of them promises.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import UUID

from dataloader.app.queue.job import Status
from tests.chaos.client_log import ClientResponse
from tests.chaos.etl import FOLLOW_UPS, PARTS
from tests.chaos.graph_rules import (
    graph_made_in_part,
    job_left_waiting,
    not_skipped,
    skipped_without_reason,
    started_before_parents_ended,
)
from tests.chaos.history import CLOCK_SLACK_SEC, Findings, History, Row, RunReport
from tests.chaos.lease_rules import LEASE_RULES
from tests.chaos.limit_rules import job_left_limited, limit_exceeded, rate_exceeded, started_while_paused
from tests.chaos.offload_rules import (
    offload_executed_again,
    offload_left_running,
    offload_without_intent,
    wrong_offload_result,
)
from tests.chaos.schedule_rules import (
    firing_without_job,
    incomplete_backfill,
    job_without_firing,
    made_while_paused,
    overlapping_scheduled_jobs,
    schedule_left_behind,
    slice_state_differs,
    time_not_fired,
    two_live_jobs_of_a_slice,
    update_not_answered,
)
from tests.chaos.target_rules import TARGET_RULES
from tests.model.trace import TraceReport
from tests.support.event_replay import Event, ReplayedJob, replay

STUBBORN = "chaos.zombie"
_SLACK_SEC = 1.0  # between two lines of one thread, which may be frozen or wait for the interpreter there
_WALL_SLACK_SEC = 0.3  # as CLOCK_SLACK_SEC, read once at the end of a campaign of minutes
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


def trace_violations(trace: TraceReport) -> list[Violation]:
    """The steps that the model of the protocol does not allow."""
    return [Violation("step that the model forbids", refusal.job, refusal.message) for refusal in trace.refusals]


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
            late = f"{word.at - cancel.at:.1f} s after the answer to the cancel"
            yield word.job_id, f"run {word.run_id} of {word.task} {word.what} {late}; a lease has {row.lease_ttl_sec} s"


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
        last = last_effect[own.run_id] - CLOCK_SLACK_SEC
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
    *LEASE_RULES,
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
    *TARGET_RULES,
    inconsistent_row,
)
