"""What a page of a job list shows beyond the jobs' own fields: durations, args, and how many jobs each state has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, as_uuid, from_row
from dataloader.app.db.statements import Executor
from dataloader.app.features.jobs.job_search import (
    FIRST_COUNT_WINDOW_ROWS,
    MAX_ACTIVE,
    MAX_ACTIVE_SEARCHED,
    MAX_KEYED,
    Filter,
    JobSearch,
    JobSummary,
    MatchCount,
    first_window,
)
from dataloader.app.queue.job import WAIT_STATES, Status
from dataloader.app.state.statistics import SAMPLED_PAGES, UNSUCCESSFUL

FINAL_STATES = (Status.SUCCEEDED, Status.FAILED, Status.LOST, Status.CANCELED)
STATES = ("ready", "running", "scheduled", "blocked", "waiting", "limited", *(status.value for status in FINAL_STATES))
_TIME_BUDGET_SEC = 0.005  # of each of two scans
_MAX_COUNTED, _MAX_COUNTED_SEARCHED = 1_000, 100  # jobs of a state that are counted one by one; the latter with a text
_MIN_SAMPLED = 30  # jobs in the sample of an estimate


@dataclass(frozen=True)
class RowDetails:
    """The args of a job, and for what it waits: a limit, or the job that has its lock key."""

    job_id: UUID
    args: Any
    waits_on: str | None
    lock_holder: UUID | None
    skipped: bool | None


class JobRows:
    """Reads what lists show of their jobs. Each statement reads only the jobs of a page, or a bounded number."""

    def __init__(self, executor: Executor) -> None:
        self._execute, self._schema = executor.execute, executor.schema
        self._search = JobSearch(executor)

    def with_durations(self, jobs: Iterable[JobSummary]) -> list[JobSummary]:
        """The jobs with `duration_ms`: from the start of the last attempt to its end, or to now while it runs."""
        listed = list(jobs)
        started = array(job.job_id for job in listed if job.started_at is not None)
        rows = self._execute("attempt_durations", {"job_ids": started})
        durations = {as_uuid(job_id): duration_ms for job_id, duration_ms in rows}
        return [replace(job, duration_ms=durations.get(job.job_id)) for job in listed]

    def details(self, jobs: Iterable[JobSummary]) -> dict[UUID, RowDetails]:
        rows = self._execute("row_details", {"job_ids": array(job.job_id for job in jobs)})
        return {details.job_id: details for details in (from_row(RowDetails, row) for row in rows)}

    def count_states(self, job_filter: Filter) -> dict[str, MatchCount | None]:
        """The number of jobs that match the filter by state, whatever states it asks for. None: too many to count."""
        anything = replace(job_filter, status=None, wait_state=None)
        if anything.is_indexed:
            counted = self._count_indexed(anything)
            if counted is not None:
                return counted
        return self._count_active(anything) | self._count_final(anything)

    def _count_indexed(self, job_filter: Filter) -> dict[str, MatchCount | None] | None:
        page = self._search.page(job_filter, limit=MAX_KEYED)
        if page.next is not None or page.matching is None:
            return None
        states = Counter(job.wait_state if job.status is Status.QUEUED else job.status.value for job in page.jobs)
        return {state: MatchCount(states[state], True, page.scanned) for state in STATES}

    def _count_active(self, job_filter: Filter) -> dict[str, MatchCount | None]:
        max_jobs = MAX_ACTIVE_SEARCHED if job_filter.reads_texts else MAX_ACTIVE
        rows = self._execute("active_state_counts", {"filter": job_filter.to_json(), "max_jobs": max_jobs})
        counts: Mapping[str | None, int] = dict(rows)
        if None in counts:
            return dict.fromkeys((*WAIT_STATES, Status.RUNNING.value))
        return {
            state: MatchCount(counts.get(state, 0), True, max_jobs) for state in (*WAIT_STATES, Status.RUNNING.value)
        }

    def _count_final(self, job_filter: Filter) -> dict[str, MatchCount | None]:
        """Exact where a scan of all jobs, or of the unsuccessful ones, ends in time, or where a state has few jobs;
        else estimated from a sample. None where the sample has too few of them: such an estimate is far off."""
        counts, is_exact = self._scan(job_filter)
        if is_exact:
            return {state: MatchCount(count, True, 0) for state, count in counts.items()}
        unsuccessful, is_exact = self._scan(replace(job_filter, status=UNSUCCESSFUL))
        ((pages,),) = self._execute("count_pages", {"schema": self._schema})
        percent = min(100.0, 100.0 * SAMPLED_PAGES / pages)
        _, *sample = self._execute("count_matching_sample", {"percent": percent, "filter": job_filter.to_json()})[0]
        exact = {state: unsuccessful[state] for state in UNSUCCESSFUL} if is_exact else self._count_small(job_filter)
        found: dict[str, MatchCount | None] = {}
        for state, count in zip(FINAL_STATES, sample, strict=True):
            at_least = max(counts[state], unsuccessful[state])
            if state in exact:
                found[state.value] = MatchCount(exact[state], True, 0)
            elif count < _MIN_SAMPLED:
                found[state.value] = None
            else:
                found[state.value] = MatchCount(max(round(count * 100 / percent), at_least), False, 0)
        return found

    def _count_small(self, job_filter: Filter) -> dict[Status, int]:
        """The unsuccessful states that have few jobs."""
        max_jobs = _MAX_COUNTED_SEARCHED if job_filter.reads_texts else _MAX_COUNTED
        rows = self._execute("small_state_counts", {"filter": job_filter.to_json(), "max_jobs": max_jobs})
        return {Status(state): count for state, count in rows}

    def _scan(self, job_filter: Filter) -> tuple[dict[str, int], bool]:
        """Count by window until the time is spent; whether all were scanned."""
        total: Sequence[int] = (0, 0, 0, 0)
        window = first_window(job_filter, newest_first=True, after=None)
        is_complete = False
        for window_rows in self._search.window_sizes(job_filter, FIRST_COUNT_WINDOW_ROWS, _TIME_BUDGET_SEC):
            end_at, end_id, _, _, *counts = self._execute("count_window", window | {"window": window_rows})[0]
            total = [a + b for a, b in zip(total, counts, strict=True)]
            if end_id is None:
                is_complete = True
                break
            window |= {"at": end_at, "id": str(end_id)}
        return {state.value: count for state, count in zip(FINAL_STATES, total, strict=True)}, is_complete
