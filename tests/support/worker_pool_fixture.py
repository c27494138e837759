"""A whole pool of workers in the test's own process, on a database of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import fields
from typing import Any
from uuid import UUID

from dataloader.app.queue.job import Job, Status
from dataloader.pipelines.contract import Context, Pipelines, Stop
from dataloader.workers.attempt import AttemptSettings
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions
from tests.support import claimed_jobs
from tests.support.job_gate import JobGate
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually

CONNECTION_ROLES = ("claim", "listen", "renew", "settle")


class WorkerPoolFixture:
    """Pools that poll so seldom that only a notification can start a job in time; they end when the test ends."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.queue_fixture = QueueFixture(dsn)
        self.gate = JobGate()  # `held` and `stubborn` wait at it
        self.run_keys: list[str] = []  # `quick` notes args["n"], in the order of running
        self.stop_reasons: list[str] = []  # `held` notes why it was stopped
        self.crashes: list[str] = []
        self.pools: list[WorkerPool] = []
        self.pipelines = self._pipelines()
        self._lock = threading.Lock()

    def _pipelines(self) -> Pipelines:
        tasks = Pipelines()
        tasks.register("quick")(self._run_quick)
        tasks.register("held")(self._run_held)
        tasks.register("stubborn")(self._run_stubborn)
        tasks.register("broken")(self._run_broken)
        tasks.register("steps")(self._run_steps)
        tasks.register("waits")(self._run_waits)
        return tasks

    def _run_quick(self, args: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.run_keys.append(str(args.get("n", "")))
        return args

    def _run_held(self, args: dict[str, Any], ctx: Context) -> str:
        try:
            self.gate.wait_inside(str(args.get("n", "")), ctx.check)
        except Stop as stop:
            self.stop_reasons.append(stop.reason.value)
            raise
        return "let go"

    def _run_stubborn(self, args: dict[str, Any]) -> str:
        self.gate.wait_inside(str(args.get("n", "")))
        return "let go"

    def _run_broken(self, args: dict[str, Any]) -> None:
        raise ValueError(f"no good: {args}")

    def _run_steps(self, args: dict[str, Any], ctx: Context) -> Iterator[dict[str, int]]:
        for done in range(1, int(args["n"]) + 1):
            yield {"processed": done}
        self.gate.wait_inside("steps", ctx.check)

    async def _run_waits(self, args: dict[str, Any]) -> AsyncIterator[dict[str, int]]:
        self.gate.arrived.append("waits")
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
        given: dict[str, Any] = {
            "heartbeat_sec": 0.2,
            "reaper_period_sec": 0.2,
            "claim_backoff_sec": 30.0,
            "stop_wait_sec": 20.0,
            **options,
        }
        attempt_fields = {field.name for field in fields(AttemptSettings)}
        attempts = AttemptSettings(
            **{"fork_server": claimed_jobs.fork_server}
            | {name: given.pop(name) for name in list(given) if name in attempt_fields}
        )
        made = WorkerPool(
            pipelines or self.pipelines,
            PoolOptions(dsn=dsn or self.dsn, queues=queues or {"q": 2}, attempts=attempts, **given),
            on_crash=self.crashes.append,
        )
        self.pools.append(made)
        if start:
            made.start()
        return made

    def listening_pool(self, queues: dict[str, int] | None = None, **options: Any) -> WorkerPool:
        """Start a pool and wait until it is idle."""
        pool = self.pool(queues, **options)
        eventually(lambda: pool.state().listener == "listening", message="the pool listens")
        return pool

    def connections(self) -> dict[str, int]:
        """The server processes of the pools' connections, by role (of one pool)."""
        rows = self.queue_fixture.sql(
            "SELECT application_name, pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'dataloader-%%'"
            "   AND application_name NOT LIKE 'dataloader-maintenance%%'"  # only the leader has it
        )
        return {name.removeprefix("dataloader-").partition(":")[0]: pid for name, pid in rows}

    def terminate_connection(self, role: str) -> None:
        """End one of the pool's connections from the server's side, and wait until it is gone."""
        pid = self.connections()[role]
        self.queue_fixture.sql("SELECT pg_terminate_backend(%s)", pid)
        eventually(lambda: self.connections().get(role) != pid, message=f"the {role} connection is gone")

    def close(self) -> None:
        self.gate.open()
        for pool in self.pools:
            pool.stop(grace=10)
        self.queue_fixture.close()

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────

    def add_job(self, task: str = "quick", key: str | None = None, **more: Any) -> UUID:
        """A job of a key of its own, unless one is named."""
        with self._lock:
            self._number = getattr(self, "_number", 0) + 1
        values = {"lease_ttl_sec": 20, "retry": {"kind": "fixed", "seconds": 0.01}, **more}
        return self.queue_fixture.enqueue(key if key is not None else f"key-{self._number}", task=task, **values)

    def wait_for_status(self, job_id: UUID, status: Status, timeout: float = 60) -> Job:
        def has_status() -> Job | None:
            job = self.queue_fixture.job(job_id)
            return job if job.status is status else None

        found = eventually(has_status, timeout, lambda: f"{status}; it is {self.queue_fixture.job(job_id)}")
        assert found is not None
        return found

    def wait_for_all(self, job_ids: Sequence[UUID], status: Status = Status.SUCCEEDED, timeout: float = 60) -> None:
        def have_status() -> bool:
            found = self.queue_fixture.fetch_row(
                "SELECT count(*) FROM dl_jobs WHERE job_id = ANY (%s::uuid[]) AND status = %s",
                [str(job_id) for job_id in job_ids],
                status.value,
            )
            return bool(found == len(job_ids))

        eventually(
            have_status, timeout, lambda: str(self.queue_fixture.sql("SELECT status, count(*) FROM dl_jobs GROUP BY 1"))
        )

    def event_payloads(self, job_id: UUID, kind: str) -> list[dict[str, Any]]:
        return [event.payload for event in self.queue_fixture.queue.events(job_id) if event.kind == kind]
