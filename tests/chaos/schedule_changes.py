"""Schedules and backfills of a campaign: made before its first job, and changed meanwhile as an operator does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from dataloader.app.db.connection import Session
from dataloader.app.errors import BackfillEnded, ScheduleChanged, ScheduleExists
from dataloader.app.features.backfills.rows import (
    Backfill,
    BackfillMode,
    BackfillOptions,
    Backfills,
    BackfillState,
    limit_of,
)
from dataloader.app.features.schedules.rows import Schedule, Schedules, Times
from dataloader.app.queue.job import Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.partitions import Partitions, partitions_from_json
from dataloader.pipelines.schedule_definition import ScheduleDefinition, definition_from
from dataloader.pipelines.schedule_times import Timing
from tests.chaos.client_log import ClientLog
from tests.chaos.history import LimitChange, Pause
from tests.chaos.limit_changes import change_limit
from tests.chaos.operator import Operator, now
from tests.chaos.scheduled_etl import DECLARED_SCHEDULE, FIRST_SLICE
from tests.support.waiting import eventually

QUEUE, DATASET, SLICE_TASK = "chaos", "chaos.parts", "chaos.slice"
SLICES = 60  # hours
MAX_OPEN_BACKFILLS = 3
CATCH_UP_SEC = 60.0
_PAUSE_SEC = (0.3, 1.7)
_JOB: dict[str, Any] = {"queue": QUEUE, "max_attempts": 20, "lease_ttl_sec": 2}
SCHEDULES: dict[str, dict[str, Any]] = {
    "each": {"task": "chaos.short", "kind": "interval", "expression": "1", "overlap": "allow", "catch_up": "all",
             "catch_up_max": 1_000},
    "latest": {"task": "chaos.short", "kind": "interval", "expression": "1", "overlap": "allow", "grace_sec": 2},
    "one at a time": {"task": "chaos.long", "kind": "interval", "expression": "2", "overlap": "skip",
                      "args": {"seconds": 3.0}},
    "minutes": {"task": "chaos.short", "expression": "* * * * *"},
    "after a load": {"task": "chaos.long", "kind": "dataset", "after": [DATASET], "args": {"seconds": 1.0}},
}  # fmt: skip
_PAUSED = ("each", "latest", "one at a time")  # from time to time


@dataclass(frozen=True)
class CreatedBackfill:
    """A backfill whose creation was confirmed, and what it is to load."""

    backfill_id: UUID
    keys: Sequence[str]


class ScheduleOperator(Operator):
    """Pauses and resumes schedules; creates backfills, pauses and resumes them, changes their concurrency, cancels some
    and retries others."""

    def __init__(self, seed: int, dsn: Callable[[], str], client_log: ClientLog) -> None:
        super().__init__(seed, dsn, "schedules", pause_sec=_PAUSE_SEC)
        self.pauses: list[Pause] = []  # of schedules and backfills; one thread at a time
        self.limit_changes: list[LimitChange] = []
        self.created: list[CreatedBackfill] = []
        self.stopped_at: dict[str, datetime] = {}  # of each schedule, at the end
        self._client_log = client_log
        self._paused_at: dict[str, datetime] = {}  # names of schedules and ids of backfills
        self._open: list[UUID] = []
        self._concurrency: dict[UUID, int] = {}

    def create_schedules(self) -> None:
        for name, values in SCHEDULES.items():
            self.confirm(lambda session, name=name, values=values: _create(session, name, _definition(values)))  # type: ignore[misc]

    def turn(self, number: int) -> None:
        if number % 3 == 0:
            self._change_schedule(self.random.choice(_PAUSED))
        elif len(self._open) < MAX_OPEN_BACKFILLS and self.random.random() < 0.6:
            self._create_backfill()
        elif self._open:
            self._change_backfill(self.random.choice(self._open))

    def finish(self) -> None:
        """Resume what is paused, fire what has come, then pause all schedules that fire by the clock."""
        for name in _PAUSED:
            self._resume_schedule(name, catch_up=True)
        for backfill_id in list(self._open):
            self._set_state(backfill_id, BackfillState.OPEN)
            self._set_concurrency(backfill_id, 8)
        self.pauses += [Pause(name, since, datetime.max.replace(tzinfo=UTC)) for name, since in self._paused_at.items()]
        for name in (*SCHEDULES, DECLARED_SCHEDULE):
            if SCHEDULES.get(name, {}).get("kind") != "dataset":
                self._stop_schedule(name)

    # ── schedules ───────────────────────────────────────────────────────────────────────────────────────────────

    def _change_schedule(self, name: str) -> None:
        if name in self._paused_at:
            self._resume_schedule(name, catch_up=self.random.random() < 0.5)
        elif (since := self._pause_schedule(name)) is not None:
            self._paused_at[name] = since

    def _pause_schedule(self, name: str) -> datetime | None:
        def pause(session: Session) -> datetime:
            Schedules(session).pause(name, changed_by="chaos")
            return now(session)

        return self.confirm(pause)

    def _resume_schedule(self, name: str, *, catch_up: bool) -> None:
        def resume(session: Session) -> None:
            schedules = Schedules(session)
            schedule = schedules.get(name)
            self._end_pause(name, now(session))
            if schedule.paused_at is None:
                return
            times, skipped = _times_after_pause(schedule, schedules.now(), catch_up=catch_up)
            try:
                schedules.resume(schedule, times, skipped=skipped, keep_updates=catch_up, changed_by="chaos")
            except ScheduleChanged:  # by our own earlier try
                return

        self.confirm(resume)

    def _stop_schedule(self, name: str) -> None:
        """Pause it once it has fired what came before."""
        began = self.confirm(now)
        if began is None:
            return

        def is_up_to_date() -> bool:
            schedule = self.confirm(lambda session: Schedules(session).get(name))
            return schedule is None or schedule.next_at is None or schedule.next_at > began

        with suppress(AssertionError):  # the checker finds what was not fired
            eventually(is_up_to_date, CATCH_UP_SEC, interval_sec=0.1)
        if (stopped := self._pause_schedule(name)) is not None:
            self.stopped_at[name] = stopped

    def _end_pause(self, name: str, until: datetime) -> None:
        since = self._paused_at.pop(name, None)
        if since is not None:
            self.pauses.append(Pause(name, since, until))

    # ── backfills ───────────────────────────────────────────────────────────────────────────────────────────────

    def _create_backfill(self) -> None:
        slices = self._some_slices()
        options = BackfillOptions(
            mode=self.random.choice((BackfillMode.ALL, BackfillMode.UNFINISHED)),
            newest_first=self.random.random() < 0.5,
            concurrency=self.random.choice((1, 2, 3)),
        )
        template = {"args": {"seconds": self.random.choice((0.2, 0.6))}, "max_attempts": 3, "lease_ttl_sec": 2}

        def create(session: Session) -> Backfill:
            backfill, _ = Backfills(session).create(
                SLICE_TASK,
                queue=QUEUE,
                slices=slices.to_json(),
                total=slices.count(),
                template=template,
                options=options,
            )
            return backfill

        found: list[Backfill] = []
        change = change_limit(
            self, "", {"concurrency": options.concurrency}, lambda session: found.append(create(session))
        )
        if found and change is not None:
            backfill_id = found[-1].backfill_id
            self.limit_changes.append(replace(change, name=limit_of(backfill_id)))
            self.created.append(CreatedBackfill(backfill_id, [part.key for part in slices.slices()]))
            self._open.append(backfill_id)
            self._concurrency[backfill_id] = options.concurrency

    def _some_slices(self) -> Partitions:
        first = self.random.randrange(SLICES - 5)
        last = self.random.randrange(first + 4, SLICES)
        begin = datetime.fromisoformat(FIRST_SLICE).replace(tzinfo=UTC)
        keys = [f"{begin + timedelta(hours=hour):%Y-%m-%dT%H}" for hour in (first, last)]
        return partitions_from_json({"unit": "hour", "zone": "UTC", "start": keys[0], "end": keys[1]})

    def _change_backfill(self, backfill_id: UUID) -> None:
        kind = self.random.choice(("pause", "concurrency", "cancel"))
        state = self.confirm(lambda session: Backfills(session).get(backfill_id).state)
        if state is BackfillState.DONE:
            self._retry(backfill_id)
            self._forget(backfill_id)
        elif str(backfill_id) in self._paused_at:
            self._set_state(backfill_id, BackfillState.OPEN)
        elif kind == "pause":
            self._set_state(backfill_id, BackfillState.PAUSED)
        elif kind == "concurrency":
            self._set_concurrency(backfill_id, self.random.choice((1, 2, 4)))
        else:
            self._cancel(backfill_id)

    def _set_state(self, backfill_id: UUID, state: BackfillState) -> None:
        name = str(backfill_id)

        def change(session: Session) -> None:
            self._end_pause(name, now(session))
            try:
                Backfills(session).change(backfill_id, state=state, changed_by="chaos")
            except BackfillEnded:
                self._forget(backfill_id)
                return
            if state is not BackfillState.OPEN:
                self._paused_at[name] = now(session)

        allowed = 0 if state is BackfillState.PAUSED else self._concurrency.get(backfill_id)
        self._record_limit(backfill_id, allowed, change)

    def _set_concurrency(self, backfill_id: UUID, concurrency: int) -> None:
        def change(session: Session) -> None:
            try:
                Backfills(session).change(backfill_id, concurrency=concurrency, changed_by="chaos")
            except BackfillEnded:
                self._forget(backfill_id)

        self._record_limit(backfill_id, concurrency, change)
        self._concurrency[backfill_id] = concurrency

    def _cancel(self, backfill_id: UUID) -> None:
        """Make no further job, and cancel those that wait."""
        name = str(backfill_id)

        def cancel(session: Session) -> None:
            try:
                Backfills(session).change(backfill_id, state=BackfillState.CANCELED, changed_by="chaos")
            except BackfillEnded:
                if Backfills(session).get(backfill_id).state is not BackfillState.CANCELED:
                    return
            self._paused_at[name] = now(session)  # for ever
            queue = JobQueue(session)
            for job_id in Backfills(session).jobs(backfill_id, [Status.QUEUED], limit=SLICES):
                self._client_log.canceled(str(job_id), queue.cancel(job_id).status.value)

        self._record_limit(backfill_id, self._concurrency.get(backfill_id), cancel)
        self._forget(backfill_id)

    def _retry(self, backfill_id: UUID) -> None:
        """Load again what ended badly."""

        def retry(session: Session) -> None:
            if Backfills(session).get(backfill_id).state is BackfillState.DONE:
                self._end_pause(str(backfill_id), now(session))  # it was paused when its last job had ended
                Backfills(session).retry(backfill_id, changed_by="chaos")

        self._record_limit(backfill_id, self._concurrency.get(backfill_id), retry)

    def _record_limit(self, backfill_id: UUID, concurrency: int | None, action: Callable[[Session], object]) -> None:
        """None: any number, for its concurrency is not known."""
        change = change_limit(self, limit_of(backfill_id), {"concurrency": concurrency}, action)
        if change is not None:
            self.limit_changes.append(change)

    def _forget(self, backfill_id: UUID) -> None:
        if backfill_id in self._open:
            self._open.remove(backfill_id)


def _definition(values: dict[str, Any]) -> ScheduleDefinition:
    return definition_from({**_JOB, **values}, zone="UTC")


def _create(session: Session, name: str, definition: ScheduleDefinition) -> None:
    stored = definition.to_json()
    stored.pop("task")
    begin = now(session)
    next_at = None if definition.timing is None else begin
    try:
        Schedules(session).create(name, definition.task, stored, Times(begin, next_at), changed_by="chaos")
    except ScheduleExists:  # our own earlier try
        return


def _times_after_pause(
    schedule: Schedule, moment: datetime, *, catch_up: bool
) -> tuple[Times, tuple[datetime, datetime] | None]:
    """From when on it fires again, and the times of the pause that it does not fire."""
    timing: Timing | None = definition_from({**schedule.effective_definition, "task": schedule.task}, zone="UTC").timing
    assert timing is not None
    assert schedule.last_at is not None
    last_at, skipped = schedule.last_at, None
    if not catch_up:
        first = timing.next_after(last_at)
        if first is not None and first.at <= moment:
            skipped = (first.at, timing.previous(moment) or first.at)
        last_at = moment
    following = timing.next_after(last_at)
    return Times(last_at, following and following.at), skipped
