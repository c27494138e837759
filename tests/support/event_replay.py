"""The journal as a witness: replay it by TRANSITIONS, and compare with the rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

from dataloader.app.queue.job import TRANSITIONS, Status, Transition

_RELEASES = ("shutdown", "lock_busy", "not_started", "waits")
_NO_TRANSITION = ("heartbeat", "cancel_requested", "stop_pending")
_STILL_QUEUED = ("unknown_task", "edited")
_QUEUED_ONLY = ("limited", "released", "debounced")  # of a job that waits


@dataclass(frozen=True)
class Event:
    """An event with what its job says of itself."""

    job_id: UUID
    at: datetime
    kind: str
    payload: dict[str, Any]


@dataclass(frozen=True)
class ReplayedJob:
    """What a job's events say it went through."""

    status: Status
    attempt: int
    runs: tuple[tuple[datetime, datetime | None], ...]  # from the claim to whatever ended it
    transitions: tuple[tuple[Status, Transition, Status], ...]


def transition_of(event: Event, status_before: Status) -> Transition:
    """Which move wrote this event?"""
    reason = event.payload.get("reason")
    if event.kind == "picked":
        return Transition.CLAIM
    if reason in ("lease_expired", "process_died"):
        return Transition.REAP
    if reason in _RELEASES:
        return Transition.RELEASE
    if reason in ("retry", "redrive"):
        return Transition.RETRY
    if reason == "no_attempts":
        return Transition.REFUSE
    if event.kind in ("canceled", "skipped") and status_before is Status.QUEUED:
        return Transition.CANCEL
    return Transition.SETTLE


def replay(events: Sequence[Event]) -> ReplayedJob:
    """The life of one job; AssertionError when an event does not follow from the one before."""
    assert events, "a job without a single event"
    first = events[0]
    assert first.kind == "queued", f"the first event is {first.kind}"
    status, attempt = Status.QUEUED, int(first.payload["attempt"])
    runs: list[tuple[datetime, datetime | None]] = []
    moves: list[tuple[Status, Transition, Status]] = []
    owner: str | None = None
    for line in events[1:]:
        after = Status(line.payload["status"])
        if line.kind in _NO_TRANSITION:
            assert after is status is Status.RUNNING, f"{line} while {status}"
            continue
        if line.payload.get("reason") in _STILL_QUEUED or line.kind in _QUEUED_ONLY:
            assert after is status is Status.QUEUED, f"{line} while {status}"
            continue
        if line.payload.get("reason") == "by_hand":
            if status is Status.RUNNING:
                runs[-1] = (runs[-1][0], line.at)
            status, attempt = after, int(line.payload["attempt"])
            continue
        move = transition_of(line, status)
        assert after in TRANSITIONS.get((status, move), ()), f"{status} -> {after} by {move}: {line}"
        moves.append((status, move, after))
        if move is Transition.CLAIM:
            owner = line.payload["run_id"]
            runs.append((line.at, None))
        elif status is Status.RUNNING:
            assert line.payload.get("run_id") == owner, f"ended by {line.payload.get('run_id')}, owned by {owner}"
            runs[-1] = (runs[-1][0], line.at)
        if move is Transition.CLAIM:
            assert line.payload["attempt"] == attempt + 1, line
        elif move is Transition.RETRY:
            assert line.payload["attempt"] == 0, line
        elif move is Transition.RELEASE and after is Status.QUEUED:
            assert line.payload["attempt"] == attempt - 1, line
        elif move is Transition.SETTLE and after is Status.QUEUED:
            assert line.payload["attempt"] in (attempt, attempt - 1), line  # a try may be given back
        else:
            assert line.payload["attempt"] == attempt, line
        attempt = int(line.payload["attempt"])
        status = after
    return ReplayedJob(status, attempt, tuple(runs), tuple(moves))


def read_events(sql: Any) -> dict[UUID, list[Event]]:
    """Each job's events, in the order they were written."""
    lines: dict[UUID, list[Event]] = defaultdict(list)
    for job_id, ts, kind, payload in sql("SELECT job_id, ts, kind, payload FROM dl_job_events ORDER BY event_id"):
        lines[UUID(job_id)].append(Event(UUID(job_id), ts, kind, payload))
    return lines


def check_invariants(sql: Any) -> dict[UUID, ReplayedJob]:
    """All that must hold at any moment, from the tables and the journal alone. `sql` runs a query and returns rows."""
    rows = sql(
        "SELECT job_id, lock_key, status, wait_state, attempt, max_attempts, cancel_requested, run_id, error,"
        "       lease_expires_at, started_at, finished_at, traceback FROM dl_jobs"
    )
    journal = read_events(sql)
    result: dict[UUID, ReplayedJob] = {}
    spans: dict[str, list[tuple[datetime, datetime | None, UUID]]] = defaultdict(list)
    for row in rows:
        job, key, status, place, attempt, most, asked, run, error, lease, started, finished, traceback = row
        job_id, now = UUID(job), Status(status)
        life = result[job_id] = replay(journal[job_id])
        assert (life.status, life.attempt) == (now, attempt), f"{job_id}: journal {life}, row {now} {attempt}"
        assert 0 <= attempt <= most, f"{job_id}: attempt {attempt} of {most}"
        assert (finished is not None) == now.final, f"{job_id}: {now}, finished_at {finished}"
        assert (lease is not None) == (now is Status.RUNNING), f"{job_id}: {now}, lease {lease}"
        assert place == "scheduled" or now is Status.QUEUED, f"{job_id}: {now} stands in {place}"
        assert not (asked and now is Status.QUEUED), f"{job_id}: queued with its cancel asked for"
        if now is Status.RUNNING:
            assert run is not None
            assert started is not None
        if now is Status.SUCCEEDED:
            assert error is None
        if error is None:
            assert traceback is None, f"{job_id}: a traceback without an error"
        spans[key] += [(begin, end, job_id) for begin, end in life.runs]
    for key, runs in spans.items():
        runs.sort(key=lambda span: span[0])
        for (_, end, one), (begin, _, other) in pairwise(runs):
            assert end is not None, f"{key}: {other} began while {one} ran"
            assert end <= begin, f"{key}: {one} ended at {end}, {other} had begun at {begin}"
    return result
