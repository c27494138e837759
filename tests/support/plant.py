"""A whole pool of workers in the test's own process, on a database of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from uuid import UUID

from app.queue.job import Job, Status
from pipelines.contract import Context, Pipelines, Stop
from tests.support.desk import Desk
from tests.support.gate import Gate
from tests.support.waiting import eventually
from workers.pool import PoolOptions, WorkerPool

ROLES = ("listen", "claim", "settle", "renew")


class Pauses:
    """Between the tries of a job: so many seconds after each."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = seconds

    def pause(self, attempt: int) -> float:
        return self._seconds[min(attempt, len(self._seconds)) - 1]

    __call__ = pause


class Plant:
    """Pools that poll so seldom that only a notification can start a job in time; they end when the test ends."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.desk = Desk(dsn)
        self.gate = Gate()  # `held` and `stubborn` wait at it
        self.ran: list[str] = []  # `quick` notes args["n"], in the order of running
        self.stopped: list[str] = []  # `held` notes why it was stopped
        self.died: list[str] = []
        self.pools: list[WorkerPool] = []
        self.pipelines = self._pipelines()
        self._lock = threading.Lock()

    def _pipelines(self) -> Pipelines:
        tasks = Pipelines()
        tasks.register("quick")(self._quick)
        tasks.register("held")(self._held)
        tasks.register("stubborn")(self._stubborn)
        tasks.register("broken")(self._broken)
        tasks.register("steps")(self._steps)
        tasks.register("waits")(self._waits)
        return tasks

    def _quick(self, args: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.ran.append(str(args.get("n", "")))
        return args

    def _held(self, args: dict[str, Any], ctx: Context) -> str:
        try:
            self.gate.pass_through(str(args.get("n", "")), ctx.check)
        except Stop as stop:
            self.stopped.append(stop.reason.value)
            raise
        return "let go"

    def _stubborn(self, args: dict[str, Any]) -> str:
        self.gate.pass_through(str(args.get("n", "")))
        return "let go"

    def _broken(self, args: dict[str, Any]) -> None:
        raise ValueError(f"no good: {args}")

    def _steps(self, args: dict[str, Any], ctx: Context) -> Iterator[dict[str, int]]:
        for done in range(1, int(args["n"]) + 1):
            yield {"processed": done}
        self.gate.pass_through("steps", ctx.check)

    async def _waits(self, args: dict[str, Any]) -> AsyncIterator[dict[str, int]]:
        self.gate.came.append("waits")
        yield {"processed": 1}
        await asyncio.Event().wait()

    # ── pools ───────────────────────────────────────────────────────────────────────────────────────────────────

    def pool(
        self,
        queues: dict[str, int] | None = None,
        *,
        pipelines: Pipelines | None = None,
        dsn: str | None = None,
        start: bool = True,
        **options: Any,
    ) -> WorkerPool:
        given = {
            "heartbeat_sec": 0.2,
            "reaper_period_sec": 0.2,
            "claim_backoff_sec": 30.0,
            "stop_sec": 5.0,
            "retry": Pauses(0.01),
            **options,
        }
        made = WorkerPool(
            pipelines or self.pipelines,
            PoolOptions(dsn=dsn or self.dsn, queues=queues or {"q": 2}, **given),
            died=self.died.append,
        )
        self.pools.append(made)
        if start:
            made.start()
        return made

    def listening(self, queues: dict[str, int] | None = None, **options: Any) -> WorkerPool:
        """A pool that has looked once and now waits to be told."""
        pool = self.pool(queues, **options)
        eventually(lambda: pool.state().listener == "listening", message="the pool listens")
        return pool

    def connections(self) -> dict[str, int]:
        """The server processes of the pools' connections, by role (of one pool)."""
        rows = self.desk.sql(
            "SELECT application_name, pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'dataloader-%%'"
            "   AND application_name NOT LIKE 'dataloader-clerk%%'"  # one process of all has it
        )
        return {name.removeprefix("dataloader-").partition(":")[0]: pid for name, pid in rows}

    def cut(self, role: str) -> None:
        """End one of the pool's connections from the server's side, and wait until it is gone."""
        pid = self.connections()[role]
        self.desk.sql("SELECT pg_terminate_backend(%s)", pid)
        eventually(lambda: self.connections().get(role) != pid, message=f"the {role} connection is gone")

    def close(self) -> None:
        self.gate.open()
        for pool in self.pools:
            pool.stop(grace=10)
        self.desk.close()

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, task: str = "quick", key: str | None = None, **more: Any) -> UUID:
        """A job of a key of its own, unless one is named."""
        with self._lock:
            self._number = getattr(self, "_number", 0) + 1
        lease = {"lease_ttl_sec": more.pop("lease_ttl_sec", 2)}
        return self.desk.enqueue(key if key is not None else f"key-{self._number}", task=task, **lease, **more)

    def until(self, job_id: UUID, status: Status, timeout: float = 60) -> Job:
        def there() -> Job | None:
            job = self.desk.job(job_id)
            return job if job.status is status else None

        found = eventually(there, timeout, lambda: f"{status}; it is {self.desk.job(job_id)}")
        assert found is not None
        return found

    def until_all(self, job_ids: Sequence[UUID], status: Status = Status.SUCCEEDED, timeout: float = 60) -> None:
        def there() -> bool:
            found = self.desk.one(
                "SELECT count(*) FROM dl_jobs WHERE job_id = ANY (%s::uuid[]) AND status = %s",
                [str(job_id) for job_id in job_ids],
                status.value,
            )
            return bool(found == len(job_ids))

        eventually(there, timeout, lambda: str(self.desk.sql("SELECT status, count(*) FROM dl_jobs GROUP BY 1")))

    def payloads(self, job_id: UUID, kind: str) -> list[dict[str, Any]]:
        return [event.payload for event in self.desk.queue.events(job_id) if event.kind == kind]
