"""Builds histories for tests of the checker, one step after the other."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from tests.chaos.checker import check
from tests.chaos.client_log import ClientResponse
from tests.chaos.history import (
    Effect,
    Firing,
    History,
    LimitChange,
    ProgressRow,
    Row,
    RowLook,
    RunReport,
    ScheduleRow,
    SliceRow,
    TargetRow,
)
from tests.support.event_replay import Event

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class HistoryBuilder:
    """Builds a history step by step; each step takes a second."""

    def __init__(self) -> None:
        self.rows: dict[UUID, Row] = {}
        self.events: dict[UUID, list[Event]] = {}
        self.run_reports: list[RunReport] = []
        self.target: list[TargetRow] = []
        self.effects: list[Effect] = []
        self.responses: list[ClientResponse] = []
        self.event_log: list[tuple[int, Event]] = []
        self.limit_changes: list[LimitChange] = []
        self.schedules: list[ScheduleRow] = []
        self.firings: list[Firing] = []
        self.slices: dict[str, SliceRow] = {}
        self.looks: list[RowLook] = []
        self.progress: list[ProgressRow] = []
        self.now = 0.0

    def job(self, task: str = "chaos.short", key: str = "k", **more: Any) -> UUID:
        job_id = uuid4()
        self.rows[job_id] = Row(
            job_id=job_id, task=task, lock_key=key, status="queued", attempt=0, max_attempts=more.pop("most", 5), **more
        )
        self.events[job_id] = []
        self.event(job_id, "queued", "queued", 0)
        self.responses.append(ClientResponse("accepted", self.now, str(job_id), task, key=str(job_id)))
        return job_id

    def event(
        self,
        job_id: UUID,
        kind: str,
        status: str,
        attempt: int,
        run: UUID | None = None,
        *,
        after: float = 1.0,
        **more: Any,
    ) -> None:
        self.now += after
        payload = {"status": status, "attempt": attempt, **({"run_id": str(run)} if run else {}), **more}
        event = Event(job_id, self.moment, kind, payload)
        self.events[job_id].append(event)
        self.event_log.append((len(self.event_log) + 1, event))
        self.rows[job_id] = replace(
            self.rows[job_id],
            status=status,
            attempt=attempt,
            finished_at=self.moment if status not in ("queued", "running") else None,
            lease_expires_at=self.moment if status == "running" else None,
        )

    @property
    def moment(self) -> datetime:
        return NOON + timedelta(seconds=self.now)

    def set_limit(self, name: str, *, pending: int = 0, **setting: Any) -> None:
        """Change a limit; it is confirmed only after so many further events."""
        before = len(self.event_log)
        self.limit_changes.append(LimitChange(name=name, event_before=before, event_after=before + pending, **setting))

    def claim(self, job_id: UUID, attempt: int = 1, *, after: float = 1.0) -> UUID:
        run = uuid4()
        self.event(job_id, "picked", "running", attempt, run, after=after)
        self.report(job_id, run, "began", attempt)
        return run

    def report(self, job_id: UUID, run: UUID, action: str, attempt: int = 1, after: float = 0.1) -> None:
        self.now += after
        row = self.rows[job_id]
        self.run_reports.append(
            RunReport(
                run_id=run,
                job_id=job_id,
                lock_key=row.lock_key,
                attempt=attempt,
                task=row.task,
                what=action,
                at=self.now,
            )
        )

    def look(self, job_id: UUID, run: UUID, after: float = 0.1, **more: Any) -> None:
        """Of a monitor at the row of a running job."""
        self.now += after
        values: dict[str, Any] = {
            "status": "running", "server": "first", "lease_expires_at": self.moment, "is_expired": False,
            "is_reset": False, "progress_run": str(run), "position": 1.0,
        }  # fmt: skip
        self.looks.append(RowLook(job_id=job_id, run_id=run, at=self.moment, **values | more))

    def write_effect(self, run: UUID, after: float = 0.1) -> None:
        self.now += after
        self.effects.append(Effect(run, self.now))

    def succeed(self, job_id: UUID, run: UUID, attempt: int = 1, **more: Any) -> None:
        self.event(job_id, "done", "succeeded", attempt, run)
        self.row(job_id, **({"result": {"run": str(run)}, "progress": {"run": str(run)}} | more))

    def reap(self, job_id: UUID, run: UUID, attempt: int = 1, *, after: float = 2.0, status: str = "queued") -> None:
        error = f"the worker w vanished: its lease ran out at {self.moment + timedelta(seconds=1 - after)}"
        kind = "requeue" if status == "queued" else status
        self.event(job_id, kind, status, attempt, run, reason="lease_expired", error=error)

    def row(self, job_id: UUID, **more: Any) -> None:
        self.rows[job_id] = replace(self.rows[job_id], **more)

    def schedule(self, **more: Any) -> ScheduleRow:
        """A schedule of every ten seconds, whose times up to the last full minute were accounted for."""
        values: dict[str, Any] = {
            "name": "s",
            "interval_sec": 10,
            "overlap": "queue",
            "created_at": NOON,
            "last_at": NOON + timedelta(seconds=30),
        }
        row = ScheduleRow(schedule_id=uuid4(), **values | more)
        self.schedules.append(row)
        return row

    def fire(
        self,
        schedule: ScheduleRow,
        sec: int,
        outcome: str = "made",
        *,
        until: int | None = None,
        job: UUID | None = None,
    ) -> UUID | None:
        """A row for the time so many seconds after noon, with a job that succeeds if none is given."""
        fire_at = NOON + timedelta(seconds=sec)
        if job is None and outcome == "made":
            job = self.job(key=f"{schedule.name} {sec}", schedule_id=schedule.schedule_id, logical_at=fire_at)
            self.succeed(job, self.claim(job))
        self.firings.append(
            Firing(
                schedule_id=schedule.schedule_id,
                fire_at=fire_at,
                outcome=outcome,
                until=None if until is None else NOON + timedelta(seconds=until),
                job_id=job,
                made_by="clock",
                made_at=fire_at + timedelta(milliseconds=5),
            )
        )
        return job

    def load_slice(self, key: str, *, run: bool = True, **more: Any) -> UUID:
        """A job of a slice, which succeeds."""
        job = self.job("t", f"slice:t:{key}", partition_key=key, live_key=f"slice:t:{key}", **more)
        if run:
            self.succeed(job, self.claim(job))
            self.slices[key] = SliceRow(task="t", partition_key=key, state="succeeded", job_id=job, runs=1)
        return job

    def cancel(self, job_id: UUID, status: str = "running") -> None:
        self.now += 0.1
        self.responses.append(ClientResponse("canceled", self.now, str(job_id), status=status))

    def history(self, **more: Any) -> History:
        return History(
            rows=self.rows,
            events=self.events,
            run_reports=sorted(self.run_reports, key=lambda word: word.at),
            target=self.target,
            responses=self.responses,
            heartbeat_sec=0.5,
            effects=self.effects,
            wall=NOON.timestamp(),
            event_log=self.event_log,
            limit_changes=self.limit_changes,
            schedules=self.schedules,
            firings=self.firings,
            slices=list(self.slices.values()),
            looks=self.looks,
            progress=self.progress,
            **more,
        )

    def violated_rules(self, **more: Any) -> set[str]:
        return {violation.rule for violation in check(self.history(**more))}
