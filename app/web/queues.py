"""Queues and workers: how they do, and what people rule about them; and what happened over time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.errors import DataloaderError, QueueDraining
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.queue.queues import LiveWorker, QueueLine, Queues, QueueState, Rule, WorkerLine
from app.queue.rollups import Chart, Happened, Period, Rollups, Times
from app.web.auth import current_actor
from app.web.doubts import MayName, doubts
from app.web.exchange import said
from app.web.models import INT4_MAX, need_one_of, read_indexed
from app.web.operations import ANY_KEY, Subject
from app.web.options import WebOptions
from app.web.problems import Code

_DATABASE = (Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH)
_RULES_FRESH_SEC = 1.0
_DOUBTS_FRESH_SEC = 0.2
_TOO_OLD_SEC = 5.0  # after a pause without triggers
_LOOK_SEC = 0.5  # for which a trigger waits for a look, and
_FIRST_LOOK_SEC = 10.0  # for the first one, without which nothing is known
_LIMITS = ("concurrency", "per_worker")

Limit = Annotated[int, Field(ge=1, le=INT4_MAX)]


class QueuesQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: Annotated[str | None, Field(min_length=1, description="Only this one.")] = None


class QueueChange(BaseModel):
    """What shall hold for a queue; what is left out stays. Null takes a limit away."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        json_schema_extra=need_one_of(but=frozenset({"queue"}), null_counts=True),
    )

    queue: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(read_indexed)] = Field(
        description="Which queue; it need not have any job yet."
    )
    state: Annotated[QueueState, Field(strict=False)] | None = Field(
        None,
        description="open; paused: nothing is claimed from it; draining: nor are new jobs taken for it over HTTP.",
    )
    concurrency: Limit | None = Field(
        None, description="How many of its jobs may run at once, in all processes together."
    )
    per_worker: Limit | None = Field(
        None, description="How many of its jobs may run at once in each worker process; more threads are begun for it."
    )
    note: Annotated[str, Field(max_length=500)] | None = Field(None, description="Why, for whoever finds it so.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.model_fields_set <= {"queue"}:
            raise PydanticCustomError("change", "nothing is to be changed; name a field beside queue")
        return self


class ChartsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    period: Annotated[Period, Field(description="How far back: by the minute, quarter or hour.")] = "1h"
    queue: Annotated[str | None, Field(description="Only what happened in this queue.")] = None
    task: Annotated[str | None, Field(description="Only what happened to jobs of this task.")] = None


@dataclass(frozen=True)
class TimesTold:
    """How long something took, in seconds, read from a histogram: a fifth off at worst."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, times: Times) -> TimesTold:
        told = [times.mean, *(times.percentile(share) for share in (0.5, 0.95, 0.99))]
        return cls(times.count, *(None if value is None else round(value, 3) for value in told))


@dataclass(frozen=True)
class HappenedTold:
    """What happened in a time. `failure_rate`: of the jobs that came to an end of their own."""

    queued: int
    started: int
    succeeded: int
    failed: int
    canceled: int
    lost: int
    retried: int
    failure_rate: float | None
    waited: TimesTold
    ran: TimesTold

    @classmethod
    def of(cls, happened: Happened) -> HappenedTold:
        rate = happened.failure_rate
        counts = (
            happened.queued, happened.started, happened.succeeded, happened.failed, happened.canceled, happened.lost,
            happened.retried,
        )  # fmt: skip
        return cls(
            *counts,
            None if rate is None else round(rate, 4),
            TimesTold.of(happened.waited),
            TimesTold.of(happened.ran),
        )


@dataclass(frozen=True, kw_only=True)
class QueueRule:
    """What was ruled about a queue."""

    queue: str
    state: QueueState
    concurrency: int | None
    per_worker: int | None
    note: str | None
    changed_by: str | None
    changed_at: datetime | None

    @classmethod
    def told(cls, rule: Rule) -> QueueRule:
        return cls(**vars(rule))


@dataclass(frozen=True, kw_only=True)
class QueueTold(QueueRule):
    """How a queue does. `drained`: it is closed, and nothing of it runs. `ready` is exact up to a thousand; `timed`
    and `parked` are as of `looked_at`. `last_hour`: what happened in it."""

    drained: bool
    ready: int
    ready_exact: bool
    timed: int
    parked: int
    running: int
    workers: int
    oldest_ready_sec: float | None
    looked_at: datetime | None
    last_hour: HappenedTold

    @classmethod
    def of(cls, line: QueueLine) -> QueueTold:
        return cls(
            **vars(line.rule),
            drained=line.drained,
            ready=line.ready,
            ready_exact=line.ready_exact,
            timed=line.timed,
            parked=line.parked,
            running=line.running,
            workers=line.workers,
            oldest_ready_sec=None if line.oldest_ready_sec is None else round(line.oldest_ready_sec, 3),
            looked_at=line.looked_at,
            last_hour=HappenedTold.of(line.happened),
        )


@dataclass(frozen=True)
class QueueList:
    queues: list[QueueTold]


@dataclass(frozen=True)
class RunTold:
    """A job in the hands of a worker."""

    job_id: UUID
    queue: str
    task: str
    attempt: int
    started_at: datetime
    heartbeat_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class WorkerTold:
    """A worker process as it registered itself. `alive`: it was heard of within three heartbeats; `listener`: whether
    it hears notifications, or polls."""

    worker_id: UUID
    name: str
    version: str
    queues: Sequence[str]
    tasks: Sequence[str]
    threads: int
    busy: int
    started_at: datetime
    seen_at: datetime
    alive: bool
    draining: bool
    listener: str | None
    rss_bytes: int | None
    running: list[RunTold]

    @classmethod
    def of(cls, line: WorkerLine) -> WorkerTold:
        row = vars(line)
        shown = {name: row[name] for name in cls.__dataclass_fields__ if name in row}
        running = [RunTold(**vars(run)) for run in line.running]
        return cls(**{**shown, "worker_id": line.id, "busy": len(running), "running": running})


@dataclass(frozen=True)
class WorkerList:
    workers: list[WorkerTold]


@dataclass(frozen=True)
class PointTold:
    at: datetime
    happened: HappenedTold


@dataclass(frozen=True)
class DepthTold:
    at: datetime
    ready: int
    timed: int
    parked: int
    running: int
    oldest_ready_sec: float | None


@dataclass(frozen=True)
class ChartTold:
    """What happened, in spans of `span_sec`; one in which nothing happened is left out. `depths`: how many jobs stood
    where at most; not for a single task."""

    span_sec: int
    since: datetime
    until: datetime
    points: list[PointTold]
    depths: list[DepthTold]

    @classmethod
    def of(cls, chart: Chart) -> ChartTold:
        points = [PointTold(point.at, HappenedTold.of(point.happened)) for point in chart.points]
        depths = [DepthTold(**vars(depth)) for depth in chart.depths]
        return cls(chart.span_sec, chart.since, chart.until, points, depths)


class Drains:
    """What is ruled about queues and what live workers serve: known for a second, so that a trigger pays nothing for
    it. `own` is what the workers of this process serve, which are not in the database yet when it starts."""

    def __init__(self, queues: Queues, own: Callable[[], LiveWorker] | None = None) -> None:
        self._queues, self._own = queues, own
        self._lock = threading.Lock()  # held while a look is on its way
        self._rules: dict[str, Rule] = {}  # replaced whole by the look, read by anyone
        self._workers: list[LiveWorker] | None = None  # likewise; None: not known
        self._looked_at: float | None = None  # likewise
        self._began_at, self._done = 0.0, threading.Event()  # of the look that is on its way, or was the last

    def takes(self, queue: str) -> bool | None:
        """Whether a queue takes new jobs, for a caller that waits for no look: one that is due is taken aside. None:
        what is known is too old."""
        age = self._age()
        if age > _TOO_OLD_SEC:
            return None
        if age >= _RULES_FRESH_SEC:
            self._begin_look()
        rule = self._rules.get(queue)
        return rule is None or rule.state is not QueueState.DRAINING

    def refuse(self, queue: str) -> None:
        """Raises QueueDraining. With the database away nothing is refused here: the enqueue will say so."""
        age = self._age()
        if age >= _RULES_FRESH_SEC and (self._begin_look() or age == math.inf):
            self._done.wait(_FIRST_LOOK_SEC if age == math.inf else _LOOK_SEC)
        rule = self._rules.get(queue)
        if rule is not None and rule.state is QueueState.DRAINING:
            raise QueueDraining(queue, rule.note)

    def may_have_doubts(self, queue: str, task: str) -> bool:
        """By what is known already: whether there may be reason to doubt that a job will run."""
        return self._is_doubtful(queue, task)

    def doubts(self, queue: str, task: str) -> list[str]:
        """Why a job may never run. Before there is any, what is known is made new: a worker may just have started."""
        if not self._is_doubtful(queue, task):
            return []
        if self._age() >= _DOUBTS_FRESH_SEC:
            self._begin_look()
            self._done.wait(max(0.0, self._began_at + _LOOK_SEC - time.monotonic()))
        caller = current_actor()
        return self._doubts(queue, task, may_name_queue=caller.may_know_queue, may_name_task=caller.may_know)

    def _is_doubtful(self, queue: str, task: str) -> bool:
        return bool(self._doubts(queue, task, suggest=False))

    def _doubts(
        self,
        queue: str,
        task: str,
        *,
        may_name_queue: MayName = lambda _: True,
        may_name_task: MayName = lambda _: True,
        suggest: bool = True,
    ) -> list[str]:
        workers = self._workers
        if workers is None:
            return []
        if self._own is not None and not any(queue in worker.queues for worker in workers):
            workers = [*workers, self._own()]
        return doubts(
            queue,
            task,
            workers,
            self._rules.get(queue),
            may_name_queue=may_name_queue,
            may_name_task=may_name_task,
            suggest=suggest,
        )

    def _age(self) -> float:
        looked_at = self._looked_at
        return math.inf if looked_at is None else time.monotonic() - looked_at

    def _begin_look(self) -> bool:
        """Look, in a thread of its own: one that hangs holds up no trigger. False: a look is on its way already."""
        if not self._lock.acquire(blocking=False):
            return False
        self._began_at, self._done = time.monotonic(), threading.Event()
        threading.Thread(target=self._look, args=(self._done,), name="queues", daemon=True).start()
        return True

    def _look(self, done: threading.Event) -> None:
        try:
            self._rules, self._workers = self._queues.rules(), self._queues.live_workers()
        except DataloaderError:
            self._rules, self._workers = {}, None
        finally:
            self._looked_at = time.monotonic()
            self._lock.release()
            done.set()


def queues(source: Source, options: WebOptions) -> Subject:
    subject = Subject("queues", "/api/v1", options.max_json_depth)
    known, rollups = Queues(source), Rollups(source)

    @subject.get("/queues", query=QueuesQuery, answer=QueueList, problems=_DATABASE, scope=ANY_KEY)
    def queue_list(wanted: QueuesQuery) -> QueueList:
        """List queues: what stands in them, what was ruled about them, and what happened in the last hour.

        A key that may only trigger, and that into some queues, is told of these.
        """
        caller = current_actor()
        lines = known.lines(queue=wanted.queue)
        return QueueList([QueueTold.of(line) for line in lines if caller.may_know_queue(line.queue)])

    @subject.patch("/queues", body=QueueChange, answer=QueueRule, problems=_DATABASE, scope=Scope.OPERATE)
    def queue_rule(wanted: QueueChange) -> QueueRule:
        """Pause, drain or open a queue, or change how many of its jobs run at once.

        It holds for the next claim of any worker; what runs goes on. `drained` of the list tells when nothing runs any
        more. A note is kept until the state changes.
        """
        unlimit = [name for name in _LIMITS if name in wanted.model_fields_set and vars(wanted)[name] is None]
        rule = known.rule(
            wanted.queue,
            state=wanted.state,
            concurrency=wanted.concurrency,
            per_worker=wanted.per_worker,
            unlimit=unlimit,
            note=wanted.note,
            by=current_actor().name,
        )
        said("queue.rule", queue=rule.queue, state=rule.state, concurrency=rule.concurrency, per_worker=rule.per_worker)
        return QueueRule.told(rule)

    @subject.get("/workers", answer=WorkerList, problems=_DATABASE, scope=Scope.READ)
    def worker_list() -> WorkerList:
        """List worker processes, the living first, with what each of them runs."""
        return WorkerList([WorkerTold.of(line) for line in known.workers()])

    @subject.post(
        "/workers/<uuid:worker_id>/drain",
        answer=WorkerTold,
        problems=(Code.WORKER_NOT_FOUND, *_DATABASE),
        scope=Scope.OPERATE,
    )
    def worker_drain(worker_id: UUID) -> WorkerTold:
        """Tell a worker process to claim nothing more.

        What it runs goes on. When `running` is empty it can be stopped without taking anything from anybody.
        """
        said("worker.drain", worker_id=worker_id)
        return WorkerTold.of(known.drain_worker(worker_id, draining=True))

    @subject.post(
        "/workers/<uuid:worker_id>/undrain",
        answer=WorkerTold,
        problems=(Code.WORKER_NOT_FOUND, *_DATABASE),
        scope=Scope.OPERATE,
    )
    def worker_undrain(worker_id: UUID) -> WorkerTold:
        """Tell a drained worker process to claim again."""
        said("worker.undrain", worker_id=worker_id)
        return WorkerTold.of(known.drain_worker(worker_id, draining=False))

    @subject.get("/charts", query=ChartsQuery, answer=ChartTold, problems=_DATABASE, scope=Scope.READ)
    def charts(wanted: ChartsQuery) -> ChartTold:
        """Tell what happened over an hour, a day or a week.

        How many jobs there were, how long they waited and ran, what failed, and how many stood where.
        """
        return ChartTold.of(rollups.chart(wanted.period, queue=wanted.queue, task=wanted.task))

    return subject
