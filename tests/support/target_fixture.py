"""A queue and a target database, with attempts that are run by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import psycopg2

from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import ClaimedJob, Settlement
from dataloader.pipelines.contract import Pipelines, Task
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.isolation.run import run_isolated
from tests.support import eventually
from tests.support.claimed_jobs import CapturedLines
from tests.support.queue_fixture import QueueFixture

TARGET = "warehouse"
DAYS = ["mon", "tue", "wed"]


class TargetFixture:
    """The target has a table of parts, into which attempts of the task `t` write."""

    def __init__(self, queue_db: QueueFixture, dsn: str) -> None:
        self.queue_db, self.dsn = queue_db, dsn
        self.tasks = Pipelines()
        self.captured = CapturedLines()
        self.targets: dict[str, str] = {TARGET: dsn}
        self.definitions: dict[str, Any] = {}  # of tasks of the settings
        self.sql("CREATE TABLE parts (key text, run text)")

    def sql(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(text, parameters)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def open_transaction(self) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
        """A session of another program."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:

            def step(text: str, *parameters: Any) -> list[tuple[Any, ...]]:
                cursor.execute(text, parameters)
                return cursor.fetchall() if cursor.description else []

            yield step

    def wait_for_lock_waiter(self) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        eventually(lambda: self.sql(query) == [(1,)], message="a session waits for a lock")

    @property
    def parts(self) -> list[str]:
        return [key for (key,) in self.sql("SELECT key FROM parts ORDER BY key")]

    def row(self, job_id: UUID) -> Any:
        rows = self.sql(
            "SELECT fence, run_id::text, position, result, done_at IS NOT NULL FROM dl_effects WHERE job_id = %s",
            str(job_id),
        )
        return rows[0] if rows else None

    def position(self, job_id: UUID) -> Any:
        row = self.row(job_id)
        return None if row is None else row[2]

    def lose_attempt(self, job_id: UUID) -> None:
        """The worker process of its running attempt dies."""
        ((run_id,),) = self.queue_db.sql("SELECT run_id FROM dl_jobs WHERE job_id = %s", str(job_id))
        job = self.queue_db.job(job_id)
        run = SimpleNamespace(id=job_id, run_id=run_id, lock_key=job.lock_key)
        self.queue_db.lose_attempt(cast("ClaimedJob", run))

    def enqueue(self, **more: Any) -> UUID:
        return self.queue_db.enqueue(**{"max_attempts": 9, **more})

    def claim(self) -> ClaimedJob:
        (job,) = self.queue_db.claim()
        return job

    def settings(self, **more: Any) -> AttemptSettings:
        connection = ConnectionSettings(dsn=self.queue_db.dsn, schema="public", targets=self.targets)
        return AttemptSettings(
            connection_settings=connection, run_isolated=run_isolated, tasks=self.definitions, log=self.captured, **more
        )

    def attempt(self, job: ClaimedJob | None = None) -> Attempt:
        return Attempt(job or self.claim(), claimed_at=clock(), settings=self.settings())

    def register(self, call: Callable[..., Any], *, target: str | None = TARGET, **options: Any) -> None:
        self.tasks = Pipelines()
        self.tasks.register("t", target=target, **options)(call)

    def run(
        self, call: Callable[..., Any] | None = None, *, task: Task | None = None, settle: bool = True, **options: Any
    ) -> Any:
        """Claim the job and run an attempt of it, of a registered task if one is given."""
        if call is not None:
            self.register(call, **options)
        attempt = self.attempt()
        outcome = attempt.run(task or self.tasks.get("t"))
        if settle and isinstance(outcome, Settlement):
            self.queue_db.queue.settle([(attempt.job, outcome)])
            if outcome.retry_in_sec:
                self.queue_db.make_due(attempt.job.id)
        return outcome


def write_part(connection: Any, key: str, ctx: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO parts (key, run) VALUES (%s, %s)", [key, str(ctx.job.run_id)])


def queue_checkpoint(fixture: TargetFixture, job_id: UUID) -> Any:
    return fixture.queue_db.job(job_id).checkpoint


def load_days(args: dict[str, Any], ctx: Any) -> str:
    for number, day in enumerate(DAYS):
        if ctx.resume is not None and number < ctx.resume:
            continue
        with ctx.transaction() as connection:
            write_part(connection, day, ctx)
            ctx.checkpoint(number + 1)
    return "loaded"
