"""What a process writes about its running jobs between claim and settlement: progress, and seldom their rows.

A version of a job's row costs all who read it, for as long as a transaction of hours keeps vacuum from removing it. So
the lease is proved by the heartbeat of the process, progress is appended to a table of its own, and the row is renewed
for those that know only the row: whenever the run has become half as long again. A checkpoint is
written to the row, too: at once at first, and ever more seldom the longer the run takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from dataloader.app.queue.job import RenewalRequest, RunRef
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt

_ROW_SHARE = 0.5  # of the run's time so far, until its row is renewed again
_MAX_ROW_SEC = 3600.0  # dl_is_lease_expired has the same bound
_CHECKPOINT_SHARE = 0.02  # of the run's time so far, until its next checkpoint is written
_MAX_CHECKPOINT_SEC = 60.0
_FREQUENT_SEC = 60.0  # so long the progress of a run is saved whenever it has changed
_FREQUENT_INTERVAL_SEC = 0.9  # about once a second
_PROGRESS_INTERVAL_SEC = 5.0  # from then on
_FOLLOW_SEC = 30.0  # after a request for the progress of a job

_ChangedProgress = tuple[Attempt, Mapping[str, Any]]


def row_interval_sec(run_sec: float, half_lease_sec: float) -> float:
    """How long the row of a run stays as it is that was renewed when the run had taken so long."""
    return max(half_lease_sec, min(_MAX_ROW_SEC, _ROW_SHARE * run_sec))


def checkpoint_interval_sec(run_sec: float) -> float:
    """How long a run's next checkpoint waits after the one that was written when the run had taken so long."""
    return min(_MAX_CHECKPOINT_SEC, _CHECKPOINT_SHARE * run_sec)


class _RunTimes:
    """When the row of a run is renewed and its progress saved next."""

    __slots__ = (
        "_claimed_at",
        "_half_lease_sec",
        "next_checkpoint_at",
        "next_followed_at",
        "next_progress_at",
        "next_row_at",
    )

    def __init__(self, attempt: Attempt) -> None:
        self._claimed_at, self._half_lease_sec = attempt.lease.claimed_at, attempt.lease.ttl_sec / 2
        self.next_row_at = self._claimed_at + self._half_lease_sec
        self.next_progress_at = self.next_followed_at = self.next_checkpoint_at = 0.0

    def row_interval_sec(self, now: float) -> float:
        return row_interval_sec(now - self._claimed_at, self._half_lease_sec)

    def record_row(self, now: float) -> None:
        self.next_row_at = now + self.row_interval_sec(now)
        self.next_checkpoint_at = now + checkpoint_interval_sec(now - self._claimed_at)

    def record_progress(self, now: float) -> None:
        is_young = now - self._claimed_at < _FREQUENT_SEC
        self.next_followed_at = now + _FREQUENT_INTERVAL_SEC
        self.next_progress_at = self.next_followed_at if is_young else now + _PROGRESS_INTERVAL_SEC


class RunRecords:
    """Used by the heartbeat's thread, but for `follow`."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._times: dict[str, _RunTimes] = {}  # by run
        self._followed_until: dict[str, float] = {}  # by run

    def follow(self, run: str) -> None:
        """Save the progress of a run whenever it changes, for a while. May be called by any thread."""
        if run in self._times:
            self._followed_until[run] = clock() + _FOLLOW_SEC

    def renew_soon(self, run_id: UUID) -> None:
        """Renew the row of a run with the next write."""
        if (times := self._times.get(str(run_id))) is not None:
            times.next_row_at = 0.0

    def write(self, attempts: Sequence[Attempt], now: float) -> list[Attempt]:
        """Write what is due of these attempts; return those that may have lost their job."""
        self._times = {a.job.run_text: self._times.get(a.job.run_text) or _RunTimes(a) for a in attempts}
        if self._followed_until:
            self._followed_until = {run: until for run, until in self._followed_until.copy().items() if until > now}
        due = {a.job.run_text for a in attempts if self._is_row_due(a, now)}
        changed = self._find_changed(attempts, now, due)
        self._renew_rows([a for a in attempts if a.job.run_text in due], now)  # first: their leases depend on it
        return self._save_progress(changed, now)

    def _is_row_due(self, attempt: Attempt, now: float) -> bool:
        times = self._times[attempt.job.run_text]
        has_checkpoint = now >= times.next_checkpoint_at and attempt.reported.unsaved()[1] is not None
        return has_checkpoint or now >= times.next_row_at

    def _renew_rows(self, attempts: Sequence[Attempt], now: float) -> None:
        """Renew the rows of these runs. One that another transaction has locked has to wait."""
        if not attempts:
            return
        unwritten = {a.job.run_text: (a, a.reported.unwritten()) for a in attempts}
        sent_at = clock()
        requests = [
            RenewalRequest(a.job.id_text, run, *values, next_sec=self._times[run].row_interval_sec(now))
            for run, (a, values) in unwritten.items()
        ]
        for run_id in self._queue.renew(requests):
            attempt, values = unwritten[str(run_id)]
            attempt.reported.mark_written(values)
            times = self._times[str(run_id)]
            times.record_row(now)
            attempt.lease.row_ends_at = sent_at + times.row_interval_sec(now) + attempt.lease.ttl_sec

    def _find_changed(self, attempts: Sequence[Attempt], now: float, due: set[str]) -> list[_ChangedProgress]:
        """Return the progress that has changed and is due; that of the runs `due`, whose rows get it too, always is."""
        changed: list[_ChangedProgress] = []
        for attempt in attempts:
            progress = attempt.reported.unsaved()[0]
            if progress is None:
                continue
            run = attempt.job.run_text
            times = self._times[run]
            next_at = times.next_followed_at if run in self._followed_until else times.next_progress_at
            if run in due or now >= next_at:
                changed.append((attempt, progress))
        return changed

    def _save_progress(self, changed: Sequence[_ChangedProgress], now: float) -> list[Attempt]:
        """Save progress; return the attempts that may have lost their job."""
        if not changed:
            return []
        runs = [(RunRef(a.job.id_text, a.job.run_text), progress) for a, progress in changed]
        saved = self._queue.save_progress(runs)
        lost = []
        for attempt, progress in changed:
            if attempt.job.run_id in saved:
                attempt.reported.mark_saved((progress, None))
                self._times[attempt.job.run_text].record_progress(now)
            else:
                lost.append(attempt)
        return lost
