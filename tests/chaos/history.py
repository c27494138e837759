"""The evidence after a campaign: tables, events, reports of runs, responses of callers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from tests.chaos.client_log import ClientResponse
from tests.support.event_replay import Event
from tests.target_proof.site import TargetEvidence

FINAL = ("succeeded", "failed", "canceled", "lost")
Query = Callable[[str], list[tuple[Any, ...]]]
Findings = Iterator[tuple[object, str]]  # of a rule: the job, or what else is wrong, and why
PAST_QUEUE = "past"  # of jobs that had ended before the campaign began
CLOCK_SLACK_SEC = 0.05  # between the time of day, by which a server writes, and the clock of all processes


@dataclass(frozen=True, kw_only=True)
class Row:
    """A job as it is at the end."""

    job_id: UUID
    task: str
    lock_key: str
    status: str
    attempt: int
    max_attempts: int
    lease_ttl_sec: int = 2
    cancel_requested: bool = False
    run_id: UUID | None = None
    error: str | None = None
    result: Any = None
    progress: Mapping[str, Any] = field(default_factory=dict)
    parent_id: UUID | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    lease_expires_at: datetime | None = None
    finished_at: datetime | None = None
    wait_state: str = "scheduled"
    queue: str = "chaos"
    limits: Mapping[str, int] | None = None
    waits_on: str | None = None
    graph_id: UUID | None = None
    need: str | None = None
    skipped: bool | None = None
    schedule_id: UUID | None = None
    logical_at: datetime | None = None
    backfill_id: UUID | None = None
    partition_key: str = ""
    live_key: str | None = None

    @property
    def slice(self) -> tuple[str, str] | None:
        """The task and the slice that it loads."""
        is_slice = self.live_key is not None and self.live_key == f"slice:{self.task}:{self.partition_key}"
        return (self.task, self.partition_key) if is_slice else None

    @property
    def weights(self) -> Mapping[str, int]:
        """What the job counts in each limit while it runs."""
        return {**(self.limits or {}), f"queue:{self.queue}": 1, f"task:{self.task}": 1}


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """A report of a run in the witness database."""

    run_id: UUID
    job_id: UUID
    lock_key: str
    attempt: int
    task: str
    what: str  # began | acted | trusted | wrote | ended
    at: float


@dataclass(frozen=True)
class RowLook:
    """The row of a job at a moment of the campaign, by the clock of the server."""

    job_id: UUID
    run_id: UUID
    status: str
    at: datetime
    server: str  # changes with a restart
    lease_expires_at: datetime | None
    is_expired: bool  # as the row alone says
    is_reset: bool  # a person has retried the job
    progress_run: str | None  # that reported the progress which is shown
    position: float | None


@dataclass(frozen=True)
class ProgressRow:
    """Progress as it is recorded, and the run that reported it."""

    job_id: UUID
    run_id: UUID
    ts: datetime
    reported_by: str | None


@dataclass(frozen=True)
class TargetRow:
    """A row of the target."""

    job_id: UUID
    part: int
    run_id: UUID


@dataclass(frozen=True)
class Effect:
    """A row that an attempt's statement committed in a server, and when, by the clock of all processes."""

    run_id: UUID
    at: float


@dataclass(frozen=True, kw_only=True)
class LimitChange:
    """A setting of a limit, with the last event numbers given out before it was sent and after it was confirmed: claims
    up to the first did not know it, claims above the second did."""

    name: str
    concurrency: int | None = None
    rate: int | None = None
    per_sec: float | None = None
    burst: int = 1
    event_before: int
    event_after: int


@dataclass(frozen=True)
class Edge:
    """A job that waits for another one to end in a certain way."""

    child_id: UUID
    parent_id: UUID
    wants: str

    def is_met_by(self, status: str) -> bool:
        return status in {"succeeded": ("succeeded",), "failed": ("failed", "lost")}.get(self.wants, FINAL)


@dataclass(frozen=True)
class Pause:
    """What an operator had paused, a task, a schedule or a backfill: from the confirmation until it was resumed, by the
    database's clock. A canceled backfill stays so."""

    name: str
    since: datetime
    until: datetime


@dataclass(frozen=True, kw_only=True)
class ScheduleRow:
    """A schedule as it is at the end. `interval_sec`: its nominal times are the multiples of it since 1970."""

    schedule_id: UUID
    name: str
    interval_sec: int | None
    overlap: str
    created_at: datetime
    last_at: datetime | None
    datasets: Collection[str] = ()
    pending_updates: int = 0  # of datasets, that made no job yet
    stopped_at: datetime | None = None  # when an operator stopped it at the end


@dataclass(frozen=True, kw_only=True)
class Firing:
    """A nominal time, or with `until` a range of them, and what became of it."""

    schedule_id: UUID
    fire_at: datetime
    outcome: str
    until: datetime | None
    job_id: UUID | None
    made_by: str
    made_at: datetime


@dataclass(frozen=True, kw_only=True)
class BackfillRow:
    """A backfill as it is at the end. `keys`: the slices that were asked for; none: its creation was not confirmed."""

    backfill_id: UUID
    task: str
    state: str
    total: int
    made: int
    skipped: int
    keys: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class SliceRow:
    """What the table of slices says of one."""

    task: str
    partition_key: str
    state: str
    job_id: UUID
    runs: int


@dataclass(frozen=True, kw_only=True)
class OffloadRow:
    """What the tables have of work on the engine at the end."""

    name: str
    job_id: UUID
    run_id: UUID  # that submitted it
    number: int
    outcome: str | None


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What the engine knows of a name."""

    name: str
    starts: int
    had_intent: bool | None  # when it was started; None: the database did not answer
    state: str


@dataclass(frozen=True, kw_only=True)
class History:
    rows: Mapping[UUID, Row]
    events: Mapping[UUID, Sequence[Event]]
    run_reports: Sequence[RunReport]  # in the order of their moments
    target: Sequence[TargetRow]
    responses: Sequence[ClientResponse]
    heartbeat_sec: float
    effects: Sequence[Effect] = ()
    wall: float = 0.0  # what the time of day has above the clock of all processes
    sessions_unbroken: bool = False  # nothing was done that ends a connection whose client lives
    event_log: Sequence[tuple[int, Event]] = ()  # the events of all jobs with their numbers, in the order of these
    limit_changes: Sequence[LimitChange] = ()  # in their order
    pauses: Sequence[Pause] = ()
    edges: Sequence[Edge] = ()
    canceling_graphs: Collection[UUID] = ()  # in which a failure cancels the rest
    schedules: Sequence[ScheduleRow] = ()
    firings: Sequence[Firing] = ()
    backfills: Sequence[BackfillRow] = ()
    slices: Sequence[SliceRow] = ()
    producers: Collection[tuple[UUID, str]] = ()  # jobs, and the datasets that they produced
    offloads: Sequence[OffloadRow] = ()
    executions: Sequence[Execution] = ()
    looks: Sequence[RowLook] = ()  # in their order
    progress: Sequence[ProgressRow] = ()
    target_loads: Mapping[UUID, TargetEvidence] = field(default_factory=dict)  # what the target has of a job

    def settings(self, limit_name: str) -> list[LimitChange]:
        """The settings that applied to a limit: those of its own name, else the default's."""
        own = [change for change in self.limit_changes if change.name == limit_name]
        default = f"{limit_name.rpartition(':')[0]}:*"
        return own or [change for change in self.limit_changes if change.name == default]

    def reports_by_run(self) -> dict[UUID, list[RunReport]]:
        runs: dict[UUID, list[RunReport]] = defaultdict(list)
        for word in self.run_reports:
            runs[word.run_id].append(word)
        return runs


def read_history(
    queue: Query,
    observer: Query,
    responses: Sequence[ClientResponse],
    *,
    heartbeat_sec: float,
    wall: float,
    sessions_unbroken: bool = False,
    limit_changes: Sequence[LimitChange] = (),
    pauses: Sequence[Pause] = (),
    stopped_schedules: Mapping[str, datetime] | None = None,
    backfill_keys: Mapping[UUID, Sequence[str]] | None = None,
    executions: Sequence[Execution] = (),
    looks: Sequence[RowLook] = (),
    target_loads: Mapping[UUID, TargetEvidence] | None = None,
) -> History:
    """`queue` and `witness` each run a question and return its rows."""
    event_log = [
        (event_id, Event(UUID(job_id), ts, kind, payload))
        for event_id, job_id, ts, kind, payload in queue(
            "SELECT event_id, job_id, ts, kind, payload FROM dl_job_events"
            f" WHERE queue <> '{PAST_QUEUE}' ORDER BY event_id"
        )
    ]
    journal: dict[UUID, list[Event]] = defaultdict(list)
    for _, event in event_log:
        journal[event.job_id].append(event)
    return History(
        rows={row.job_id: row for row in _read_rows(queue)},
        events=journal,
        run_reports=_read_reports(observer),
        target=[
            TargetRow(UUID(job), part, UUID(run))
            for job, part, run in queue("SELECT job_id, part, run_id FROM chaos_target")
        ],
        responses=responses,
        heartbeat_sec=heartbeat_sec,
        effects=[
            Effect(UUID(run), at)
            for ask in (queue, observer)
            for run, at in ask("SELECT run_id, at FROM chaos_effects")
        ],
        wall=wall,
        sessions_unbroken=sessions_unbroken,
        event_log=event_log,
        limit_changes=limit_changes,
        pauses=pauses,
        edges=[
            Edge(UUID(child), UUID(parent), wants)
            for child, parent, wants in queue("SELECT child_id, parent_id, wants FROM dl_edges")
        ],
        canceling_graphs={UUID(i) for (i,) in queue("SELECT graph_id FROM dl_graphs WHERE on_failure = 'cancel'")},
        schedules=_read_schedules(queue, stopped_schedules or {}),
        firings=_read(queue, Firing, "dl_firings"),
        backfills=[
            replace(row, keys=(backfill_keys or {}).get(row.backfill_id, ()))
            for row in _read(queue, BackfillRow, "dl_backfills", keys="'{}'::text[]")
        ],
        slices=_read(queue, SliceRow, "dl_slices", state="state::text"),
        producers=[
            (UUID(job), dataset)
            for job, dataset in queue("SELECT job_id, dataset FROM dl_dataset_events WHERE kind = 'produced'")
        ],
        offloads=_read(queue, OffloadRow, "dl_offloads"),
        executions=executions,
        looks=looks,
        target_loads=target_loads or {},
        progress=[
            ProgressRow(UUID(job), UUID(run), ts, reported_by)
            for job, run, ts, reported_by in queue("SELECT job_id, run_id, ts, progress ->> 'run' FROM dl_progress")
        ],
    )


_TEXTS = {"status": "status::text", "wait_state": "wait_state::text"}  # the driver knows no enums
_IDS = frozenset({"job_id", "run_id", "parent_id", "graph_id", "schedule_id", "backfill_id"})
T = TypeVar("T")


def _read_rows(queue: Query) -> list[Row]:
    return _read(queue, Row, f"dl_jobs WHERE queue <> '{PAST_QUEUE}'", **_TEXTS)


def _read(queue: Query, kind: type[T], table: str, **expressions: str) -> list[T]:
    """The rows of a table; a field that is no column needs an expression."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # they are dataclasses
    rows = []
    for values in queue(f"SELECT {', '.join(expressions.get(name, name) for name in names)} FROM {table}"):
        named = dict(zip(names, values, strict=True))
        rows.append(kind(**named | {name: named[name] and UUID(named[name]) for name in _IDS & set(names)}))
    return rows


def _read_schedules(queue: Query, stopped_at: Mapping[str, datetime]) -> list[ScheduleRow]:
    applies = "(declared || overrides)"
    found = _read(
        queue,
        ScheduleRow,
        "dl_schedules s",
        interval_sec=f"CASE {applies} ->> 'kind' WHEN 'interval' THEN ({applies} ->> 'expression')::int"
        " WHEN 'dataset' THEN NULL ELSE 60 END",  # `* * * * *` is the only expression
        overlap=f"coalesce({applies} ->> 'overlap', 'queue')",
        datasets=f"ARRAY(SELECT jsonb_array_elements_text(coalesce({applies} -> 'after', '[]')))",
        pending_updates="(SELECT count(*) FROM dl_dataset_updates u WHERE u.schedule_id = s.schedule_id)::int",
        stopped_at="NULL",
    )
    return [replace(row, stopped_at=stopped_at.get(row.name)) for row in found]


def _read_reports(observer: Query) -> list[RunReport]:
    found = observer("SELECT run_id, job_id, lock_key, attempt, task, what, at FROM witness ORDER BY at, n")
    return [
        RunReport(run_id=UUID(run), job_id=UUID(job), lock_key=key, attempt=attempt, task=task, what=what, at=at)
        for run, job, key, attempt, task, what, at in found
    ]
