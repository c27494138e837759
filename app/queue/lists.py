"""Jobs as people look for them: lists by filter, counts, and all that is known about one.

A table of ten million rows is never scanned in a request: a list is read in stretches, for a bounded time, and says how
far it has looked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from app.errors import JobNotFound
from app.queue.counts import SAMPLED_PAGES
from app.queue.job import Event, Job, Status
from app.queue.jobqueue import JobQueue, Source, _decoded, as_uuid
from app.queue.values import array, checked_text

Sort = Literal["-created_at", "created_at", "priority", "available_at", "-available_at", "started_at", "-started_at"]

# What is not found by then is looked for by the next question. A page and its count together stay below a tenth of a
# second, with the words around them.
PATIENCE_SEC = 0.04
COUNT_PATIENCE_SEC = 0.02
FEW = 5_000  # waiting and running jobs up to which they are listed apart, in any order
FEW_SEARCHED = 500  # and where their args are searched, which may be long
ENDED_BADLY = frozenset({Status.FAILED, Status.CANCELED, Status.LOST})
LIVE = frozenset({Status.QUEUED, Status.RUNNING})
MOST_TRIES = 200  # that are told of one job
# Jobs that the first stretch looks at; the next ones as many as the time that is left allows for, at most so many.
_FIRST_WINDOW, _FIRST_SLOW_WINDOW, _FIRST_COUNT_WINDOW = 1_000, 200, 5_000  # slow: where args are searched
_LARGEST_WINDOW = 50_000
_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_NO_ID, _EVERY_ID = UUID(int=0), UUID(int=2**128 - 1)


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which jobs are meant; None: any. Times are from (included) … to (left out)."""

    status: frozenset[Status] | None = None
    queue: str | None = None
    task: str | None = None
    lock_key: str | None = None
    partition_key: str | None = None
    producer: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    started_from: datetime | None = None
    started_to: datetime | None = None
    finished_from: datetime | None = None
    finished_to: datetime | None = None
    text: str | None = None  # somewhere in the args or in the error, in upper or lower case

    def told(self) -> dict[str, str]:
        """As the function dl_job_fits reads it, and as a bulk operation keeps it."""
        said: dict[str, str] = {}
        for name, value in vars(self).items():
            if isinstance(value, datetime):
                said[name] = value.isoformat()
            elif isinstance(value, frozenset):
                said[name] = array(sorted(value))
            elif value is not None:
                said[name] = checked_text(name, value)
        return said

    def json(self) -> str:
        return json.dumps(self.told(), ensure_ascii=False)

    @classmethod
    def read(cls, said: dict[str, str]) -> Filter:
        """The filter that `told` told."""
        known: dict[str, Any] = dict(said)
        for name, value in said.items():
            if name.endswith(("_from", "_to")):
                known[name] = datetime.fromisoformat(value)
        if "status" in known:
            known["status"] = frozenset(Status(s.strip('"')) for s in known["status"].strip("{}").split(",") if s)
        return cls(**known)

    @property
    def newest(self) -> datetime | None:
        """No job that was made then or later fits: it is made before it starts, and starts before it ends."""
        return min((at for at in (self.created_to, self.started_to, self.finished_to) if at is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job in a list."""

    id: UUID
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
    progress: dict[str, Any]
    producer: str | None
    consumer_group: str | None
    worker: str | None
    place: str
    stray: bool


@dataclass(frozen=True)
class Cursor:
    """Where a list goes on: behind this job."""

    key: datetime | float
    id: UUID
    live: bool  # it is one of waiting and running jobs


@dataclass(frozen=True)
class Tally:
    """How many jobs fit. Not exact: reckoned from a sample, for there was no time to count them all."""

    jobs: int
    exact: bool
    looked_at: int


@dataclass(frozen=True)
class Page:
    """A part of a list. No `next`: the list ends here. A page may hold less than was asked for, or nothing, and still
    have a next one: the time for one question was over."""

    jobs: list[JobRow]
    next: Cursor | None
    looked_at: int  # how many jobs were looked at
    looked_to: datetime | None  # when the last of these was made; None: all were looked at
    fitting: Tally | None = None  # how many fit in all, where the page itself tells it


@dataclass(frozen=True, kw_only=True)
class Try:
    """One try at a job, as the journal tells it."""

    attempt: int
    run_id: UUID | None
    worker: str | None
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None  # the kind of the event that ended it; None: it goes on
    reason: str | None
    error: str | None
    pause_sec: float | None  # until the next try
    notes: dict[str, Any]


@dataclass(frozen=True)
class Relative:
    """Another job that this one has to do with."""

    id: UUID
    queue: str
    task: str
    status: Status
    at: datetime


@dataclass(frozen=True)
class Versioned:
    """A job, and a word for the state its row is in."""

    job: Job
    version: str
    place: str
    stray: bool


@dataclass(frozen=True)
class Story:
    """All that is known about a job."""

    job: Job
    version: str
    place: str
    stray: bool
    tries: list[Try]
    children: list[Relative]
    parent: Relative | None
    key_holder: Relative | None  # who has its key while it waits


class Lists:
    """Questions about jobs that look at no more than they must."""

    def __init__(self, source: Source, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask
        self._queue, self._schema = JobQueue(source), source.schema
        self._clock = clock

    # ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────

    def page(
        self,
        wanted: Filter,
        *,
        sort: Sort = "-created_at",
        limit: int = 50,
        after: Cursor | None = None,
        patience_sec: float = PATIENCE_SEC,
    ) -> Page:
        """The next jobs that fit.

        Raises NotSortable or TooManyLive when they can be had in the order of their making alone.
        """
        if wanted.status == frozenset():
            return Page([], None, 0, None)
        by_making = sort in ("created_at", "-created_at")
        if wanted.status is not None and wanted.status <= LIVE and (after is None or after.live):
            page = self._live(wanted, sort, limit, after)
            if page is not None:
                return page
            if not by_making or after is not None:
                raise TooManyLive
        if not by_making:
            raise NotSortable
        return self._walk(wanted, sort == "-created_at", limit, after, patience_sec)

    def _live(self, wanted: Filter, sort: Sort, limit: int, after: Cursor | None) -> Page | None:
        """None: there are too many of them."""
        status = wanted.status or LIVE
        rows = self._ask(
            "live_jobs",
            {
                "running": Status.RUNNING in status,
                "queued": Status.QUEUED in status,
                "queue": wanted.queue,
                "bound": FEW if wanted.text is None else FEW_SEARCHED,
                "filter": replace(wanted, status=None).json(),
                "sort": sort.removeprefix("-"),
                "reverse": sort.startswith("-"),
                "key": None if after is None else after.key,
                "id": None if after is None else str(after.id),
                "most": limit,
            },
        )
        many, looked = rows[0][:2]
        if many:
            return None
        jobs = [_row(row[4:]) for row in rows if row[4] is not None]
        last = Cursor(rows[-1][3], jobs[-1].id, live=True) if jobs and len(jobs) == limit else None
        return Page(jobs, last, looked, None, Tally(rows[0][2], True, looked))

    def _walk(self, wanted: Filter, down: bool, limit: int, after: Cursor | None, patience_sec: float) -> Page:
        stretch = _Stretch(wanted, down=down, after=after)
        jobs: list[JobRow] = []
        looked = 0
        for window in self._windows(_FIRST_WINDOW if wanted.text is None else _FIRST_SLOW_WINDOW, patience_sec):
            rows = self._ask(
                "stretch_down" if down else "stretch_up",
                stretch.parameters() | {"window": window, "most": limit - len(jobs)},
            )
            found = [_row(row[2:]) for row in rows if row[2] is not None]
            jobs += found
            edge_at, edge_id = rows[0][:2]
            if len(jobs) == limit:
                return Page(jobs, Cursor(jobs[-1].created_at, jobs[-1].id, live=False), looked, jobs[-1].created_at)
            if edge_id is None:
                return Page(jobs, None, looked, None, Tally(len(jobs), True, looked) if after is None else None)
            looked += window
            stretch.at, stretch.id = edge_at, as_uuid(edge_id)
        return Page(jobs, Cursor(stretch.at, stretch.id, live=False), looked, stretch.at)

    def _windows(self, first: int, patience_sec: float) -> Iterator[int]:
        """How many jobs each stretch looks at, until the time is over. The pace is that of this search: rows may have
        to be fetched from the disk, and filters differ."""
        began, looked, window = self._clock(), 0, first
        while window > 0:
            yield window
            looked += window
            spent = self._clock() - began
            affordable = looked * (patience_sec - spent) / spent if spent > 0 else _LARGEST_WINDOW
            window = int(min(4 * window, affordable, _LARGEST_WINDOW))
            if window < first // 4:
                return

    def count(self, wanted: Filter, *, patience_sec: float = COUNT_PATIENCE_SEC) -> Tally:
        """How many jobs fit: exactly, if they can be counted in that time; else reckoned from a sample."""
        if wanted.status == frozenset():
            return Tally(0, True, 0)
        if wanted.status is not None and wanted.status <= LIVE:
            few = self._live(wanted, "created_at", 0, None)
            if few is not None and few.fitting is not None:
                return few.fitting
        looked = fitting = 0
        stretch = _Stretch(wanted, down=True, after=None)
        for window in self._windows(_FIRST_COUNT_WINDOW if wanted.text is None else _FIRST_SLOW_WINDOW, patience_sec):
            ((edge_at, edge_id, fit, seen),) = self._ask("count_stretch", stretch.parameters() | {"window": window})
            looked, fitting = looked + seen, fitting + fit
            if edge_id is None:
                return Tally(fitting, True, looked)
            stretch.at, stretch.id = edge_at, as_uuid(edge_id)
        return Tally(max(fitting, self._sampled(wanted)), False, looked)

    def _sampled(self, wanted: Filter) -> int:
        """An estimate from a part of the table's pages, wherever they lie."""
        ((pages,),) = self._ask("count_pages", {"schema": self._schema})
        percent: float = min(100.0, 100.0 * SAMPLED_PAGES / pages)
        fitting: int = self._ask("count_fitting_sample", {"percent": percent, "filter": wanted.json()})[0][0]
        return round(fitting * 100 / percent)

    def standing_still(self, *, least_sec: float) -> dict[UUID, float]:
        """Running jobs whose progress has not changed for so long, and since how many seconds."""
        return {as_uuid(row[0]): row[1] for row in self._ask("still_runs", {"least": least_sec})}

    def began(self, rows: Iterable[JobRow]) -> dict[UUID, datetime]:
        """When the present try of each began: a job may have started long before."""
        found = self._ask("tries_began", {"job_ids": array(row.id for row in rows)})
        return {as_uuid(row[0]): row[1] for row in found}

    # ── one job ─────────────────────────────────────────────────────────────────────────────────────────────────

    def versioned(self, job_id: UUID) -> Versioned:
        """A job and the version of its row. Raises JobNotFound.

        Should it be changed between the two questions, the version is the older one: nobody takes it for this state.
        """
        rows = self._ask("row_version", {"job_id": str(job_id)})
        job = self._queue.get(job_id) if rows else None
        if job is None:
            raise JobNotFound(job_id)
        return Versioned(job, *rows[0])

    def story(self, job_id: UUID) -> Story:
        """All that is known about a job. Raises JobNotFound."""
        found = self.versioned(job_id)
        job = found.job
        asked = {"job_id": str(job_id)}
        children = [_relative(row) for row in self._ask("children", asked | {"limit": 100})]
        holder = None
        if job.status is Status.QUEUED:
            holders = self._ask("key_holder", asked | {"lock_key": job.lock_key})
            holder = _relative(holders[0]) if holders else None
        return Story(
            job, found.version, found.place, found.stray, self.tries(job_id), children, self._parent(job), holder
        )

    def _parent(self, job: Job) -> Relative | None:
        if job.parent_id is None:
            return None
        rows = self._ask("relative", {"job_id": str(job.parent_id)})  # it may have been deleted since
        return _relative(rows[0]) if rows else None

    def tries(self, job_id: UUID) -> list[Try]:
        """The last tries at a job, the oldest first."""
        rows = self._ask("tries", {"job_id": str(job_id), "limit": 2 * MOST_TRIES})
        return tries_of([_event(row) for row in rows])

    def events(self, job_id: UUID, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """The job's journal behind an event, the oldest line first."""
        rows = self._ask("events_after", {"job_id": str(job_id), "after": after, "limit": limit})
        return [_event(row) for row in rows]

    def last_events(self, job_id: UUID, *, limit: int) -> list[Event]:
        """The end of the job's journal, the oldest line first."""
        rows = self._ask("last_events", {"job_id": str(job_id), "limit": limit})
        return [_event(row) for row in rows]

    def states(self, job_ids: Iterable[UUID]) -> dict[UUID, tuple[str, Status]]:
        """The version and status of each of these jobs that is there."""
        rows = self._ask("states", {"job_ids": array(job_ids)})
        return {as_uuid(row[0]): (row[1], Status(row[2])) for row in rows}


class TooManyLive(Exception):
    """Too many jobs wait and run for another order than that of their making."""


class NotSortable(Exception):
    """Only waiting and running jobs can be sorted in another order than that of their making."""


class _Stretch:
    """Where a walk along the jobs stands. The window of times bounds it from both ends."""

    def __init__(self, wanted: Filter, *, down: bool, after: Cursor | None) -> None:
        oldest, newest = wanted.created_from or _FIRST, wanted.newest or _LAST
        if after is not None and isinstance(after.key, datetime):
            self.at, self.id = after.key, after.id
        elif down:
            self.at, self.id = newest, _NO_ID if wanted.newest else _EVERY_ID
        else:
            self.at, self.id = oldest, _NO_ID
        self._until = oldest if down else newest
        self._bad = wanted.status is not None and wanted.status <= ENDED_BADLY
        self._filter = wanted.json()

    def parameters(self) -> dict[str, Any]:
        return {"at": self.at, "id": str(self.id), "until": self._until, "bad": self._bad, "filter": self._filter}


def tries_of(events: Iterable[Event]) -> list[Try]:
    """The tries that these lines of a journal tell of."""
    tries: list[Try] = []
    open_ = False
    for event in events:
        said = event.payload
        if event.kind == "picked":
            tries.append(_begun(event))
            open_ = True
        elif event.kind in ("cancel_requested", "stop_pending") or not open_:
            continue
        else:
            known = {"status", "attempt", "run_id", "error", "reason", "pause_sec"}
            tries[-1] = Try(
                **{
                    **vars(tries[-1]),
                    "ended_at": event.at,
                    "outcome": event.kind,
                    "reason": said.get("reason"),
                    "error": said.get("error"),
                    "pause_sec": said.get("pause_sec"),
                    "notes": {name: value for name, value in said.items() if name not in known},
                }
            )
            open_ = False
    return tries


def _begun(event: Event) -> Try:
    said = event.payload
    return Try(
        attempt=int(said.get("attempt", 0)),
        run_id=UUID(said["run_id"]) if said.get("run_id") else None,
        worker=said.get("worker"),
        started_at=event.at,
        ended_at=None,
        outcome=None,
        reason=None,
        error=None,
        pause_sec=None,
        notes={},
    )


_ROW_FIELDS = tuple(field.name for field in fields(JobRow))


def _row(row: Sequence[Any]) -> JobRow:
    values = dict(zip(_ROW_FIELDS, row, strict=True))
    values["id"] = as_uuid(values["id"])
    values["status"] = Status(values["status"])
    values["progress"] = _decoded(values["progress"])
    return JobRow(**values)


def _event(row: Sequence[Any]) -> Event:
    return Event(row[0], as_uuid(row[1]), row[2], row[3], row[4], _decoded(row[5]))


def _relative(row: Sequence[Any]) -> Relative:
    return Relative(as_uuid(row[0]), row[1], row[2], Status(row[3]), row[4])
