"""Search for jobs: lists and counts by filter.

A request never scans a table of ten million rows: a list is read window by window within a time budget, and says how
far it has scanned.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from dataloader._job_filter import FILTER_FIELDS, JobFilterFields
from dataloader.app.db.encoding import array, as_uuid, from_row, validate_text
from dataloader.app.db.statements import Executor
from dataloader.app.queue.job import Status
from dataloader.app.state.statistics import SAMPLED_PAGES, UNSUCCESSFUL

Sort = Literal["-created_at", "created_at", "priority", "available_at", "-available_at", "started_at", "-started_at"]

# The next page continues a search that ran out of time. A page and its count together take less than 100 ms.
TIME_BUDGET_SEC = 0.04
COUNT_TIME_BUDGET_SEC = 0.02
MAX_ACTIVE = 5_000  # up to so many queued and running jobs are listed in any order
MAX_ACTIVE_SEARCHED = 500  # up to so many, if args and errors are searched
ACTIVE = frozenset({Status.QUEUED, Status.RUNNING})
MAX_RUNNING_READ = 50  # where problems are looked for
STALLED_AFTER_SEC = 60.0  # older progress shows no remaining time
MAX_KEYED = 5_000  # jobs of a lock key, a tag or a list of ids that are listed in any order
# The first window of a search; later ones grow as the time budget allows.
_FIRST_WINDOW_ROWS = 1_000
_FIRST_TEXT_WINDOW_ROWS = 200  # if args and errors are searched
FIRST_COUNT_WINDOW_ROWS = 5_000
_MAX_WINDOW_ROWS = 50_000
_MIN_TIME, _MAX_TIME = "-infinity", "infinity"
_MIN_ID, _MAX_ID = UUID(int=0), UUID(int=2**128 - 1)


@dataclass(frozen=True, kw_only=True)
class Filter(JobFilterFields):
    """Which jobs to search for; None matches any. Time ranges include their start and exclude their end."""

    status: frozenset[Status] | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether an index finds the jobs, however old they are."""
        keys = (self.job_id, self.idempotency_key, self.lock_key, self.tag)
        return any(value is not None for value in keys)

    @property
    def reads_texts(self) -> bool:
        """Whether args or errors are searched, which takes several times as long."""
        return any(value is not None for value in (self.text, self.args, self.error))

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, with statuses and ids in order."""
        return {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in vars(self).items()
            if value is not None
        }

    def as_parameters(self) -> dict[str, str]:
        """The texts that the SQL function dl_job_matches takes, and that a bulk operation stores."""
        return {
            name: str(value).lower() if isinstance(value, bool) else value.isoformat() if isinstance(value, datetime)
            else array(value) if isinstance(value, list) else validate_text(name, value)
            for name, value in self.to_dict().items()
        }  # fmt: skip

    def to_json(self) -> str:
        return json.dumps(self.as_parameters(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Filter:
        """The filter of which `to_json` made the text; of another text, one that no job matches."""
        try:
            return cls._parse(json.loads(text))
        except (AttributeError, KeyError, TypeError, ValueError):
            return cls(job_id=frozenset())

    @classmethod
    def _parse(cls, values: dict[str, Any]) -> Filter:
        for name, value in values.items():
            of_type = FILTER_FIELDS[name].type
            if name == "status":
                values[name] = frozenset(Status(status) for status in _array_items(value))
            elif name == "job_id":
                values[name] = frozenset(UUID(job_id) for job_id in _array_items(value))
            elif of_type is bool:
                values[name] = value == "true"
            elif of_type is datetime:
                values[name] = datetime.fromisoformat(value)
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    """A job in a list. `duration_ms`: how long its last attempt took, or has taken so far."""

    job_id: UUID
    queue: str
    task: str
    status: Status
    lock_key: str
    partition_key: str
    idempotency_key: str | None
    priority: int
    attempt: int
    max_attempts: int
    cancel_requested: bool
    available_at: datetime
    created_at: datetime
    started_at: datetime | None
    heartbeat_at: datetime | None
    finished_at: datetime | None
    error: str | None
    progress: Any  # an object, unless another service has written it
    producer: str | None
    consumer_group: str | None
    worker: str | None
    wait_state: str
    unknown_task: bool
    warnings: int | None
    duration_ms: int | None = None  # set by `JobRows.with_durations`


SUMMARY_FIELDS = tuple(field.name for field in fields(JobSummary))


@dataclass(frozen=True)
class Cursor:
    """The job after which a list continues."""

    key: datetime | float
    id: UUID
    is_active: bool  # the list is of queued and running jobs


@dataclass(frozen=True)
class MatchCount:
    """The number of matching jobs; an estimate from a sample (not exact) if there was no time to count them all."""

    jobs: int
    exact: bool
    scanned: int


@dataclass(frozen=True)
class JobPage:
    """A page of a list. Without `next` the list ends here; with it there may be more, even if this page is not full."""

    jobs: list[JobSummary]
    next: Cursor | None
    scanned: int
    scanned_to: datetime | None  # creation time of the last scanned job; None: all were scanned
    matching: MatchCount | None = None  # the number of all matching jobs, if the page determined it


class JobSearch:
    """Reads lists and counts of jobs within bounded time."""

    def __init__(self, executor: Executor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._execute = executor.execute
        self._schema = executor.schema
        self._clock = clock

    def page(
        self,
        job_filter: Filter,
        *,
        sort: Sort = "-created_at",
        limit: int = 50,
        after: Cursor | None = None,
        time_budget_sec: float = TIME_BUDGET_SEC,
    ) -> JobPage:
        """The next matching jobs. Raises NotSortable or TooManyActiveJobs if they can only be sorted by creation."""
        if job_filter.status == frozenset():
            return JobPage([], None, 0, None)
        by_creation = sort in ("created_at", "-created_at")
        if job_filter.is_indexed:
            page = self._indexed_page(job_filter, sort, limit, after)
            if page is not None:
                return page
            if by_creation and after is not None and after.is_active:  # jobs have been added since the page before
                created_at = datetime.fromtimestamp(abs(float(after.key)), UTC)  # type: ignore[arg-type]
                after = Cursor(created_at, after.id, is_active=False)
        if job_filter.status is not None and job_filter.status <= ACTIVE and (after is None or after.is_active):
            page = self._active_page(job_filter, sort, limit, after)
            if page is not None:
                return page
            if not by_creation or after is not None:
                raise TooManyActiveJobs
        if not by_creation:
            raise NotSortable
        return self._scan(job_filter, sort == "-created_at", limit, after, time_budget_sec)

    def _indexed_page(self, job_filter: Filter, sort: Sort, limit: int, after: Cursor | None) -> JobPage | None:
        """A page of the jobs that an index finds, or None if there are too many of them to sort."""
        key = None if after is None else after.key
        if isinstance(key, datetime):
            key = -key.timestamp() if sort.startswith("-") else key.timestamp()
        parameters = {
            "job_ids": None if job_filter.job_id is None else array(job_filter.job_id),
            "idempotency_key": job_filter.idempotency_key,
            "lock_key": job_filter.lock_key,
            "tag": job_filter.tag,
            "max_jobs": MAX_KEYED,
            "filter": job_filter.to_json(),
            "sort": sort.removeprefix("-"),
            "reverse": sort.startswith("-"),
            "key": key,
            "id": after and str(after.id),
            "limit": limit,
        }
        return _sorted_page(self._execute("indexed_jobs", parameters), limit)

    def _active_page(self, job_filter: Filter, sort: Sort, limit: int, after: Cursor | None) -> JobPage | None:
        """A page of queued and running jobs, or None if there are too many of them to sort."""
        status = job_filter.status or ACTIVE
        parameters = {
            "running": Status.RUNNING in status,
            "queued": Status.QUEUED in status,
            "queue": job_filter.queue,
            "max_active": MAX_ACTIVE_SEARCHED if job_filter.reads_texts else MAX_ACTIVE,
            "filter": replace(job_filter, status=None).to_json(),
            "sort": sort.removeprefix("-"),
            "reverse": sort.startswith("-"),
            "key": after and after.key,
            "id": after and str(after.id),
            "limit": limit,
        }
        return _sorted_page(self._execute("active_jobs", parameters), limit)

    def _scan(
        self, job_filter: Filter, newest_first: bool, limit: int, after: Cursor | None, time_budget_sec: float
    ) -> JobPage:
        window = first_window(job_filter, newest_first=newest_first, after=after)
        jobs: list[JobSummary] = []
        scanned = 0
        for window_rows in self.window_sizes(job_filter, _FIRST_WINDOW_ROWS, time_budget_sec):
            statement = "jobs_before" if newest_first else "jobs_after"
            rows = self._execute(statement, window | {"window": window_rows, "limit": limit - len(jobs)})
            jobs += [from_row(JobSummary, row[2:], duration_ms=None) for row in rows if row[2] is not None]
            end_at, end_id = rows[0][:2]
            if len(jobs) == limit:
                last = jobs[-1]
                return JobPage(jobs, Cursor(last.created_at, last.job_id, is_active=False), scanned, last.created_at)
            if end_id is None:
                count = MatchCount(len(jobs), True, scanned) if after is None else None
                return JobPage(jobs, None, scanned, None, count)
            scanned += window_rows
            window |= {"at": end_at, "id": str(end_id)}
        return JobPage(jobs, Cursor(window["at"], UUID(window["id"]), is_active=False), scanned, window["at"])

    def window_sizes(self, job_filter: Filter, first_rows: int, time_budget_sec: float) -> Iterator[int]:
        """Yield the size of each window until the time is spent, from the pace of the windows so far: rows may have to
        be read from disk, and filters differ."""
        first_rows = _FIRST_TEXT_WINDOW_ROWS if job_filter.reads_texts else first_rows
        started_at, scanned, window_rows = self._clock(), 0, first_rows
        while window_rows > 0:
            yield window_rows
            scanned += window_rows
            spent = self._clock() - started_at
            affordable = scanned * (time_budget_sec - spent) / spent if spent > 0 else _MAX_WINDOW_ROWS
            window_rows = int(min(4 * window_rows, affordable, _MAX_WINDOW_ROWS))
            if window_rows < first_rows // 4:
                return

    def count(self, job_filter: Filter, *, time_budget_sec: float = COUNT_TIME_BUDGET_SEC) -> MatchCount:
        """Count matching jobs exactly if the time allows, else estimate from a sample."""
        if job_filter.status == frozenset():
            return MatchCount(0, True, 0)
        if job_filter.is_indexed:
            page = self._indexed_page(job_filter, "created_at", 0, None)
            if page is not None and page.matching is not None:
                return page.matching
        if job_filter.status is not None and job_filter.status <= ACTIVE:
            page = self._active_page(job_filter, "created_at", 0, None)
            if page is not None and page.matching is not None:
                return page.matching
        scanned = matching = 0
        window = first_window(job_filter, newest_first=True, after=None)
        for window_rows in self.window_sizes(job_filter, FIRST_COUNT_WINDOW_ROWS, time_budget_sec):
            end_at, end_id, *counts = self._execute("count_window", window | {"window": window_rows})[0]
            scanned, matching = scanned + counts[0], matching + counts[1]
            if end_id is None:
                return MatchCount(matching, True, scanned)
            window |= {"at": end_at, "id": str(end_id)}
        return MatchCount(max(matching, self._estimate_count(job_filter)), False, scanned)

    def _estimate_count(self, job_filter: Filter) -> int:
        """Estimate the count from a sample of the table's pages."""
        ((pages,),) = self._execute("count_pages", {"schema": self._schema})
        percent: float = min(100.0, 100.0 * SAMPLED_PAGES / pages)
        parameters = {"percent": percent, "filter": job_filter.to_json()}
        sampled: int = self._execute("count_matching_sample", parameters)[0][0]
        return round(sampled * 100 / percent)

    def has_lock_key(self, lock_key: str) -> bool:
        """Whether any job, of whatever age, has the key."""
        return bool(self._execute("has_lock_key", {"lock_key": lock_key})[0][0])

    def stalled(self, *, min_sec: float) -> dict[UUID, float]:
        """Seconds since the last progress of each running job whose progress has not changed for `min_sec`."""
        return {as_uuid(row[0]): row[1] for row in self._execute("stalled_runs", {"min_sec": min_sec})}

    def attempt_starts(self, jobs: Iterable[JobSummary]) -> dict[UUID, datetime]:
        """When the current attempt of each job started."""
        rows = self._execute("attempt_starts", {"job_ids": array(job.job_id for job in jobs)})
        return {as_uuid(row[0]): row[1] for row in rows}


class NotSortable(Exception):
    """Only queued and running jobs can be sorted by anything but creation time."""

    message = "must be created_at or -created_at unless status is queued, running or both"


class TooManyActiveJobs(NotSortable):
    """Too many jobs are queued and running to sort them by anything but creation time."""

    message = "more than five thousand jobs are queued and running; sort by created_at, or select a queue"


def _array_items(text: str) -> list[str]:
    """The items of an array of PostgreSQL that are words or ids."""
    return [item.strip('"') for item in text[1:-1].split(",") if item]


def _sorted_page(rows: Sequence[tuple[Any, ...]], limit: int) -> JobPage | None:
    """The page of a statement that sorts all it finds, or None if that was too much."""
    too_many, scanned, matching_count = rows[0][:3]
    if too_many:
        return None
    jobs = [from_row(JobSummary, row[4:], duration_ms=None) for row in rows if row[4] is not None]
    last = Cursor(rows[-1][3], jobs[-1].job_id, is_active=True) if jobs and len(jobs) == limit else None
    return JobPage(jobs, last, scanned, None, MatchCount(matching_count, True, scanned))


def first_window(job_filter: Filter, *, newest_first: bool, after: Cursor | None) -> dict[str, Any]:
    """The parameters of the first window of a search along the jobs by creation time."""
    # No matching job was created later than any of these: a job is created before it starts and before it finishes.
    ends = [at for at in (job_filter.created_to, job_filter.started_to, job_filter.finished_to) if at is not None]
    oldest, newest = job_filter.created_from or _MIN_TIME, min(ends, default=_MAX_TIME)
    at: datetime | str = newest if newest_first else oldest
    if after is not None and isinstance(after.key, datetime):
        at, last_id = after.key, after.id
    else:
        last_id = _MAX_ID if newest_first and not ends else _MIN_ID
    return {
        "at": at,
        "id": str(last_id),
        "until": oldest if newest_first else newest,
        "unsuccessful_only": job_filter.status is not None and job_filter.status <= UNSUCCESSFUL,
        "filter": job_filter.to_json(),
    }


def read_running_jobs(executor: Executor) -> list[JobSummary]:
    """The jobs that run longest, or the newest running jobs when there are too many to sort."""
    search, running = JobSearch(executor), Filter(status=frozenset({Status.RUNNING}))
    try:
        return search.page(running, sort="started_at", limit=MAX_RUNNING_READ).jobs
    except TooManyActiveJobs:
        return search.page(running, limit=MAX_RUNNING_READ).jobs


def read_stalled_sec(executor: Executor) -> dict[UUID, float]:
    """Seconds since the last progress of each running job whose progress is older than a minute."""
    return JobSearch(executor).stalled(min_sec=STALLED_AFTER_SEC)
