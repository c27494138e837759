"""Queues and workers: how they do, and what people rule about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from app.errors import WorkerNotFound
from app.queue.counts import Counts
from app.queue.jobqueue import Source, as_uuid
from app.queue.rollups import Happened, Rollups
from app.queue.values import array, checked_text

MOST_QUEUES = 500
FEW = 1_000  # ready jobs of a queue that are counted one by one


class QueueState(StrEnum):
    OPEN = "open"
    PAUSED = "paused"  # nothing is claimed
    DRAINING = "draining"  # nor are new jobs taken


@dataclass(frozen=True)
class Rule:
    """What people have ruled about a queue."""

    queue: str
    state: QueueState = QueueState.OPEN
    concurrency: int | None = None  # jobs at once in all processes together
    per_worker: int | None = None  # jobs at once in each process
    note: str | None = None
    changed_by: str | None = None
    changed_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class QueueLine:
    """How a queue does."""

    queue: str
    rule: Rule
    ready: int
    ready_exact: bool
    timed: int  # not due yet, at `looked_at`
    parked: int  # their key is busy, likewise
    running: int
    workers: int  # live processes that work on it
    oldest_ready_sec: float | None
    looked_at: datetime | None  # when the keeper last counted what is not due or parked
    happened: Happened  # in the last hour

    @property
    def drained(self) -> bool:
        """It is closed, and nothing of it runs any more."""
        return self.rule.state is not QueueState.OPEN and self.running == 0


@dataclass(frozen=True, kw_only=True)
class WorkerRun:
    """A job in the hands of a worker process."""

    job_id: UUID
    queue: str
    task: str
    attempt: int
    started_at: datetime
    heartbeat_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class WorkerLine:
    """A worker process as it registered itself, and what it runs."""

    id: UUID
    name: str
    version: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    threads: int
    started_at: datetime
    seen_at: datetime
    alive: bool
    draining: bool
    listener: str | None
    rss_bytes: int | None
    running: tuple[WorkerRun, ...]


@dataclass(frozen=True)
class LiveWorker:
    """What one or more live worker processes serve."""

    queues: frozenset[str]
    tasks: frozenset[str]
    claims: bool = True  # not drained, not shutting down


class Queues:
    def __init__(self, source: Source) -> None:
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask
        self._counts, self._rollups = Counts(source), Rollups(source)

    def lines(self, *, queue: str | None = None) -> list[QueueLine]:
        """Every queue that is known of, by name."""
        names = [row[0] for row in self._ask("queue_names", {"queue": queue, "most": MOST_QUEUES})]
        if not names:
            return []
        oldest = self._counts.oldest_ready()
        happened = self._rollups.by_queue("1h", queue=queue)
        rows = self._ask("queue_depths", {"queues": array(names), "bound": FEW})
        return [_line(row, oldest.get(row[0]), happened.get(row[0], Happened())) for row in rows]

    def rules(self) -> dict[str, Rule]:
        """What was ruled, by queue; one without a rule is open and has no limit."""
        return {row[0]: _rule(row) for row in self._ask("queue_rules")}

    def rule(
        self,
        queue: str,
        *,
        state: QueueState | None = None,
        concurrency: int | None = None,
        per_worker: int | None = None,
        unlimit: Iterable[str] = (),
        note: str | None = None,
        by: str | None = None,
    ) -> Rule:
        """Rule something about a queue; what is not given stays. It holds for the next claim of any worker.

        `unlimit` names limits that go: concurrency, per_worker.
        """
        asked = {
            "queue": checked_text("queue", queue),
            "state": state and state.value,
            "concurrency": concurrency,
            "per_worker": per_worker,
            "unlimit": array(unlimit),
            "note": None if note is None else checked_text("note", note),
            "by": by,
        }
        return _rule(self._ask("rule_queue", asked)[0])

    def live_workers(self) -> list[LiveWorker]:
        """What the live worker processes serve."""
        return [LiveWorker(frozenset(row[0]), frozenset(row[1]), row[2]) for row in self._ask("live_workers")]

    def workers(self) -> list[WorkerLine]:
        """The worker processes that were seen of late, the living first."""
        return [_worker(row) for row in self._ask("worker_lines")]

    def worker(self, worker_id: UUID) -> WorkerLine:
        found = next((line for line in self.workers() if line.id == worker_id), None)
        if found is None:
            raise WorkerNotFound(worker_id)
        return found

    def drain_worker(self, worker_id: UUID, *, draining: bool) -> WorkerLine:
        """Tell a worker process to claim nothing more, or to claim again. What it runs goes on."""
        if not self._ask("drain_worker", {"worker_id": str(worker_id), "draining": draining}):
            raise WorkerNotFound(worker_id)
        return self.worker(worker_id)

    # ── by workers ──────────────────────────────────────────────────────────────────────────────────────────────

    def told(
        self,
        worker_id: UUID,
        queues: Mapping[str, int],
        *,
        listener: str,
        rss_bytes: int | None,
        doing: Any,
        stopping: bool = False,
    ) -> tuple[dict[str, Rule], bool]:
        """What is ruled about these queues, and whether this worker is to claim nothing more.

        `queues` has the number of threads of each. `doing` describes its runs; with None nothing is written.
        """
        asked = {
            "worker_id": str(worker_id),
            "queues": array(queues),
            "queue_threads": json.dumps(dict(queues)),
            "stopping": stopping,
            "listener": listener,
            "rss_bytes": rss_bytes,
            "doing": None if doing is None else json.dumps(doing),
        }
        rules: dict[str, Rule] = {}
        draining = False
        for queue, state, concurrency, per_worker, drains in self._ask("worker_rules", asked):
            if queue is None:
                draining = drains
            else:
                rules[queue] = Rule(queue, QueueState(state), concurrency, per_worker)
        return rules, draining

    def is_led(self) -> bool:
        """Whether some process does the chores that one of all must do."""
        return bool(self._ask("led")[0][0])

    def lead(self) -> bool:
        """Be that process for as long as this session lasts; False: another one is."""
        return bool(self._ask("lead")[0][0])


def _rule(row: tuple[Any, ...]) -> Rule:
    queue, state, *rest = row[:7]
    return Rule(queue, QueueState(state), *rest)


def _line(row: tuple[Any, ...], oldest: float | None, happened: Happened) -> QueueLine:
    queue, ready, more, running, timed, parked, counted, looked_at, workers, *ruled = row
    return QueueLine(
        queue=queue,
        rule=_rule((queue, *ruled)),
        ready=max(ready, counted or 0) if more else ready,
        ready_exact=not more,
        timed=timed,
        parked=parked,
        running=running,
        workers=workers,
        oldest_ready_sec=oldest,
        looked_at=looked_at,
        happened=happened,
    )


def _worker(row: tuple[Any, ...]) -> WorkerLine:
    worker_id, name, version, queues, tasks, threads, started, seen, alive, draining, listener, rss, runs = row
    return WorkerLine(
        id=as_uuid(worker_id),
        name=name,
        version=version,
        queues=tuple(queues),
        tasks=tuple(tasks),
        threads=threads,
        started_at=started,
        seen_at=seen,
        alive=alive,
        draining=draining,
        listener=listener,
        rss_bytes=rss,
        running=tuple(_run(run) for run in json.loads(runs)),
    )


def _run(said: dict[str, Any]) -> WorkerRun:
    return WorkerRun(
        job_id=UUID(said["job_id"]),
        queue=said["queue"],
        task=said["task"],
        attempt=said["attempt"],
        started_at=datetime.fromisoformat(said["started_at"]),
        heartbeat_at=datetime.fromisoformat(said["heartbeat_at"]) if said["heartbeat_at"] else None,
    )
