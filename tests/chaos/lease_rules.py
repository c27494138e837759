"""Rules about leases as a reader of the tables sees them, and about the progress of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import groupby, pairwise
from uuid import UUID

from tests.chaos.history import Findings, History, RowLook, RunReport
from tests.support.event_replay import Event

_WALL_SLACK_SEC = 0.3  # between the time of day, by which servers write, and the clock of all processes
_SAVE_SLACK_SEC = 1.0  # of a statement that saves progress while its run is being reaped
_REAPED = ("lease_expired", "process_died")
_TRUSTING = ("acted", "trusted")  # what a run reports only while it trusts its lease


def trusted_after_reap(history: History) -> Findings:
    """A run trusted its lease when it had been reaped: an obedient one passed a safe point, or a stubborn one would."""
    reaped_at = {UUID(event.payload["run_id"]): event.at.timestamp() for event in _reaps(history)}
    for run_id, words in history.reports_by_run().items():
        last = max((word.at for word in words if word.what in _TRUSTING), default=0.0) + history.wall
        late_sec = last - reaped_at.get(run_id, last)
        if late_sec > _WALL_SLACK_SEC:
            yield words[0].job_id, f"run {run_id} trusted its lease {late_sec:.3f} s after it had been reaped"


def _reaps(history: History) -> Iterator[Event]:
    for events in history.events.values():
        yield from (e for e in events if e.payload.get("reason") in _REAPED and e.payload.get("run_id"))


def live_run_looks_dead(history: History) -> Findings:
    """By its row alone the lease of a run had expired, for a heartbeat at least, and the run trusted it meanwhile."""
    trusting: dict[UUID, list[RunReport]] = defaultdict(list)
    for word in history.run_reports:
        if word.what in _TRUSTING:
            trusting[word.run_id].append(word)
    for run_id, looks in _looks_by_run(history).items():
        expired = [look for look in looks if look.status == "running" and look.is_expired and look.lease_expires_at]
        for lease_end, group in groupby(expired, lambda look: look.lease_expires_at):
            same = list(group)
            if lease_end is None or same[-1].at - same[0].at < timedelta(seconds=history.heartbeat_sec):
                continue
            begin, end = lease_end.timestamp() + _WALL_SLACK_SEC, same[-1].at.timestamp()
            if any(begin < word.at + history.wall < end for word in trusting[run_id]):
                yield (
                    same[0].job_id,
                    f"run {run_id} lived, and its row had a lease until {lease_end}, still at {same[-1].at}",
                )


def progress_went_back(history: History) -> Findings:
    """The progress that a job shows went back within a run or at its end, or was replaced by that of another run.

    The last second of it may be lost when the server crashes, so only looks at one server are compared.
    """
    for run_id, looks in _looks_by_run(history).items():
        run = str(run_id)
        for before, after in pairwise(looks):
            if after.server != before.server or after.is_reset:
                continue
            if after.progress_run not in (run, before.progress_run):
                yield after.job_id, f"run {run} shows the progress of run {after.progress_run} at {after.at}"
            elif before.progress_run == run != after.progress_run:
                yield after.job_id, f"run {run} shows no progress of its own any more at {after.at}"
            elif after.progress_run == before.progress_run and _is_behind(after, before):
                now = f"{after.position} of run {after.progress_run} at {after.at}"
                yield after.job_id, f"run {run} shows {now}, and {before.position} before"


def _is_behind(after: RowLook, before: RowLook) -> bool:
    """Progress of a former run stays as it is."""
    if after.progress_run != str(after.run_id):
        return after.position != before.position
    return before.position is not None and (after.position is None or after.position < before.position)


def progress_of_a_lost_run(history: History) -> Findings:
    """Progress was recorded for a run that had been reaped, or for another run than the one that reported it."""
    reaped_at = {UUID(event.payload["run_id"]): event.at for event in _reaps(history)}
    for row in history.progress:
        if row.reported_by not in (None, str(row.run_id)):
            yield row.job_id, f"progress of run {row.reported_by} is recorded for run {row.run_id}"
        late_sec = (row.ts - reaped_at.get(row.run_id, row.ts)).total_seconds()
        if late_sec > _SAVE_SLACK_SEC:
            yield row.job_id, f"progress of run {row.run_id} is recorded {late_sec:.3f} s after it had been reaped"


def _looks_by_run(history: History) -> dict[UUID, list[RowLook]]:
    looks: dict[UUID, list[RowLook]] = defaultdict(list)
    for look in history.looks:
        looks[look.run_id].append(look)
    return looks


LEASE_RULES: Sequence[Callable[[History], Findings]] = (
    trusted_after_reap,
    live_run_looks_dead,
    progress_went_back,
    progress_of_a_lost_run,
)
