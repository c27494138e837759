"""The part of the overview: schedules that do not fire."""

from __future__ import annotations

from collections.abc import Iterator

from dataloader.app.acts.service_problems import Impact, Problem, ProblemAct, problems_of
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.features.schedules.checks import read_findings
from dataloader.app.features.schedules.rows import Schedule, read_not_firing

_MAX_PAUSED_LISTED = 2  # more paused schedules are one line


def schedule_problems(reads: SharedReads) -> Iterator[Problem]:
    schedules = reads.get(read_not_firing)
    paused = [schedule for schedule in schedules if schedule.paused_at is not None]
    if len(paused) > _MAX_PAUSED_LISTED:
        names = ", ".join(schedule.name for schedule in paused[:_MAX_PAUSED_LISTED])
        yield Problem(
            kind="paused",
            subject=("schedules", "paused"),
            impact=Impact.NOT_MADE,
            before=f"{len(paused)} schedules are paused: {names} and {len(paused) - _MAX_PAUSED_LISTED} more",
            since=min((schedule.paused_at for schedule in paused if schedule.paused_at), default=None),
            acts=(ProblemAct("Schedules", "/schedules"),),
        )
    for schedule in schedules:
        if schedule.paused_at is None or len(paused) <= _MAX_PAUSED_LISTED:
            yield _schedule_problem(schedule)
    yield from problems_of(reads.get(read_findings))


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
        impact=Impact.NOT_MADE,
        state="alert" if state == "alert" else "warning",
        before="Schedule ",
        after=text,
        since=since,
        covers=frozenset({"schedule_late", "schedules_late", "schedules_stopped"}),
    )


def count_stopped(reads: SharedReads) -> int:
    return len(reads.get(read_not_firing))
