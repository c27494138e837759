"""The rules of schedules, backfills and updates of datasets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from tests.chaos.history import FINAL, Findings, History, Pause

_LATE_FIRING_SEC = 15.0  # by which a nominal time may be fired late on a busy machine


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
