"""The queue over a session for tests, with plain SQL and helpers that move the times of a row."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any
from uuid import UUID, uuid4

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import quote_ident

from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.jobs.job_search import Filter, JobSearch
from dataloader.app.queue.claims import FRONT, ClaimHint, ClaimRequest, ClaimStart
from dataloader.app.queue.job import (
    ClaimedJob,
    Job,
    NewJob,
    ReapedJob,
    Released,
    ReleaseReason,
    RenewalRequest,
    RunRef,
    Settlement,
    SettleResult,
    Status,
    new_run_ids,
)
from dataloader.app.queue.jobs import JobQueue
from tests.support.databases import superuser_dsn
from tests.support.event_replay import ReplayedJob, check_invariants
from tests.support.waiting import eventually

TASKS = ("t",)


def list_jobs(queue: JobQueue) -> list[Job]:
    """All jobs, newest first."""
    jobs = (queue.get(summary.job_id) for summary in JobSearch(queue.executor).page(Filter(), limit=1000).jobs)
    return [job for job in jobs if job is not None]


class LastingSession(Session):
    """A session of several tests, one after the other."""

    _has_own_commands = False

    def execute_raw(self, sql: str) -> list[tuple[Any, ...]]:
        self._has_own_commands = True
        return super().execute_raw(sql)

    def renew(self) -> None:
        """Make it as a new one is for the next test: it is closed if the former one gave it commands of its own."""
        if self._has_own_commands:
            self.close()
            self._has_own_commands = False
        elif self.connected:
            with suppress(DatabaseUnavailable):  # it is closed: the next statement opens it again
                super().execute_raw("SELECT pg_advisory_unlock_all()")


class LastingSessions:
    """The two sessions of a queue fixture, for several tests of one database, one after the other.

    A new session reads the catalogs and plans each statement: the server needs 30 ms until it has enqueued, claimed and
    settled one job, and 2 ms for each one after that.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.session = LastingSession(dsn, application_name="queue-db")
        self.db = self._connect()

    def renew(self) -> None:
        self.session.renew()
        try:
            self.db.rollback()
            self.db.autocommit = True
            self.db.cursor().execute("DISCARD ALL")
            self.db.notifies.clear()
        except psycopg2.Error:  # a test has closed it, or ended its server process
            self.db.close()
            self.db = self._connect()

    def close(self) -> None:
        self.session.close()
        self.db.close()

    def _connect(self) -> Connection:
        connection: Connection = psycopg2.connect(self._dsn)
        connection.autocommit = True
        return connection


class QueueFixture:
    def __init__(self, dsn: str, *, schema: str = "public", sessions: LastingSessions | None = None) -> None:
        """`sessions`: of this database, left open at the end; None: it has its own."""
        self.dsn = dsn
        self.schema = schema
        self.worker_id = uuid4()  # of the process that the test is
        self._closing: list[Any] = []
        self.session = sessions.session if sessions else self.new_session(application_name="queue-db", schema=schema)
        self.queue = JobQueue(self.session)
        self.db = sessions.db if sessions else self.connect(autocommit=True)

    # ── plain SQL ───────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, *, autocommit: bool = False) -> Connection:
        """A connection of the test's own, closed at its end."""
        connection: Connection = psycopg2.connect(self.dsn)
        connection.autocommit = autocommit
        self._closing.append(connection)
        return connection

    def new_session(self, **settings: Any) -> Session:
        session = Session(self.dsn, **{"application_name": "another"} | settings)
        self._closing.append(session)
        return session

    def new_queue(self) -> JobQueue:
        """The queue as another process has it."""
        return JobQueue(self.new_session())

    def sql(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.db.cursor() as cursor:
            cursor.execute(text, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def listener(self, channel: str = "dl_jobs") -> Listener:
        return Listener(self.connect(autocommit=True), channel)

    def fetch_row(self, text: str, *parameters: Any) -> Any:
        return self.sql(text, *parameters)[0][0]

    def session_count(self, condition: str) -> int:
        """Of this database; others of the server are other tests'."""
        return int(
            self.fetch_row(f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {condition}")
        )

    def close(self) -> None:
        for thing in reversed(self._closing):
            thing.close()

    # ── a job's life ────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, key: str = "k", *, queue: str = "q", task: str = "t", **more: Any) -> UUID:
        return self.queue.enqueue(NewJob(queue=queue, task=task, lock_key=key, **more)).job_id

    def insert(self, key: str = "k", *, queue: str = "q", task: str = "t", **columns: Any) -> UUID:
        """As another service does it, which knows none of our columns."""
        columns = {"queue": queue, "task": task, "lock_key": key} | columns
        names, holes = ", ".join(columns), ", ".join(["%s"] * len(columns))
        return UUID(
            self.fetch_row(f"INSERT INTO dl_jobs ({names}) VALUES ({holes}) RETURNING job_id", *columns.values())
        )

    def claim(self, count: int = 1, *, queue: str = "q", tasks: Iterable[str] = TASKS) -> list[ClaimedJob]:
        """Claim as a worker does: repeat while the statement asks for it."""
        taken: list[ClaimedJob] = []
        while len(taken) < count:
            more, outlook = self.claim_once(count - len(taken), queue=queue, tasks=tasks)
            taken += more
            if not outlook.skipped and not more:
                break
        return taken

    def claim_once(
        self,
        count: int = 1,
        *,
        queue: str = "q",
        tasks: Iterable[str] = TASKS,
        by: JobQueue | None = None,
        start: ClaimStart = FRONT,
    ) -> tuple[list[ClaimedJob], ClaimHint]:
        return (by or self.queue).claim(queue, tasks, new_run_ids(count), "worker-1", ClaimRequest(start=start))

    def enqueue_and_claim(self, key: str = "k", **more: Any) -> ClaimedJob:
        """A job made and taken."""
        job_id = self.enqueue(key, **more)
        (run,) = self.claim(queue=more.get("queue", "q"), tasks=[more.get("task", "t")])
        assert run.id == job_id, "another job was in front"
        return run

    def settle(self, run: ClaimedJob, status: Status = Status.SUCCEEDED, **more: Any) -> SettleResult:
        if status in (Status.FAILED, Status.QUEUED):
            more.setdefault("error", "it broke")
        (fate,) = self.queue.settle([(run, Settlement(status, **more))])
        return fate

    def release(
        self,
        run: ClaimedJob,
        reason: ReleaseReason = ReleaseReason.SHUTDOWN,
        progress: Mapping[str, Any] | None = None,
    ) -> SettleResult:
        (fate,) = self.queue.release([(run, Released(reason, progress))])
        return fate

    def renew(self, run: ClaimedJob, progress: Mapping[str, Any] | None = None) -> bool | None:
        """Renew its row. Whether its cancel was asked for; None when the run is not ours any more."""
        self.queue.renew([RenewalRequest(run.id, run.run_id, progress)])
        answers = self.queue.beat(self.worker_id, [RunRef(run.id, run.run_id)])
        if not answers:
            return False
        return answers[0].cancel_requested if answers[0].is_owned else None

    def save_progress(self, run: ClaimedJob, progress: Mapping[str, Any], *, age_sec: float = 0.0) -> None:
        """As its process does, so many seconds ago."""
        self.queue.save_progress([(RunRef(run.id, run.run_id), progress)])
        self.sql("UPDATE dl_progress SET ts = ts - make_interval(secs => %s)", age_sec)

    def expire_lease(self, job_id: UUID) -> None:
        self.sql(
            "UPDATE dl_jobs SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE job_id = %s", str(job_id)
        )

    def make_due(self, *job_ids: UUID) -> None:
        """As if its time had come by itself, of all if none is named: no trigger looks at it."""
        superuser = psycopg2.connect(superuser_dsn(self.dsn))
        with closing(superuser), superuser, superuser.cursor() as cursor:
            cursor.execute(
                "SET LOCAL session_replication_role = replica;"
                f" UPDATE {quote_ident(self.schema, cursor)}.dl_jobs SET available_at = clock_timestamp()"
                " WHERE %s::uuid[] IS NULL OR job_id = ANY (%s::uuid[])",
                [[*map(str, job_ids)] or None] * 2,
            )

    def promote(self) -> int:
        """Make ready what has fallen due, in any queue; returns how many jobs that were."""
        scheduled = "SELECT count(*) FROM dl_jobs WHERE status = 'queued' AND wait_state = 'scheduled'"
        before = self.fetch_row(scheduled)
        self.sql("SELECT dl_promote_due('')")
        return int(before - self.fetch_row(scheduled))

    def reap(self, *job_ids: UUID, pause_sec: float = 0.0) -> list[ReapedJob]:
        """Settle for the dead; of all that have expired, for those."""
        found = self.queue.expired_runs()
        return self.queue.reap([run for run in found.runs if not job_ids or run[0] in job_ids], pause_sec=pause_sec)

    def lose_attempt(self, run: ClaimedJob, *, pause_sec: float = 0.0) -> ReapedJob:
        """The worker dies: its lease runs out and the reaper comes."""
        self.expire_lease(run.id)
        (reaped,) = self.reap(run.id, pause_sec=pause_sec)
        return reaped

    def lose_lease(self, job_id: UUID) -> None:
        """As `lose_attempt` where the worker lives, and may renew the lease before the reaper comes."""

        def expire_and_reap() -> list[ReapedJob]:
            self.expire_lease(job_id)
            return self.reap(job_id)

        eventually(expire_and_reap, message="the lease is lost")

    def repair_blocked(self) -> tuple[str, ...]:
        return self.queue.repair_blocked(after="").unblocked

    def job(self, job_id: UUID) -> Job:
        job = self.queue.get(job_id)
        assert job is not None
        return job

    def status(self, job_id: UUID) -> Status:
        return self.job(job_id).status

    def wait_state(self, job_id: UUID) -> str:
        return str(self.fetch_row("SELECT wait_state FROM dl_jobs WHERE job_id = %s", str(job_id)))

    def event_kinds(self, job_id: UUID) -> list[str]:
        return [event.kind for event in self.queue.events(job_id)]

    def check_invariants(self) -> dict[UUID, ReplayedJob]:
        return check_invariants(self.sql)

    # ── several at once ─────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def open_transaction(self) -> Any:
        """Hold a transaction open: `step(text, …)` runs in it; it commits at the end."""
        connection = self.connect()

        def step(text: str, *parameters: Any) -> list[tuple[Any, ...]]:
            with connection.cursor() as cursor:
                cursor.execute(text, parameters or None)
                return cursor.fetchall() if cursor.description else []

        try:
            yield step
            connection.commit()
        finally:
            connection.close()

    def lock_waiter_count(self) -> int:
        return int(
            self.fetch_row(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )

    def wait_for_lock_waiters(self, count: int = 1) -> None:
        eventually(lambda: self.lock_waiter_count() >= count, message="a session waits for a lock")


class Listener:
    """A connection that listens."""

    def __init__(self, connection: Connection, channel: str) -> None:
        self._connection = connection
        self._connection.cursor().execute(f"LISTEN {channel}")

    def payloads(self) -> list[str]:
        """All payloads that were sent up to now: the server delivers them before it answers a question."""
        self._connection.cursor().execute("SELECT 1")
        payloads = [note.payload for note in self._connection.notifies]
        self._connection.notifies.clear()
        return payloads


class BackgroundCall:
    """A call that runs in a thread of its own; `result()` gives its answer or raises what it raised."""

    def __init__(self, call: Any, *arguments: Any, **named: Any) -> None:
        self._result: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._result = call(*arguments, **named)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @property
    def is_finished(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout: float = 30) -> Any:
        self._thread.join(timeout)
        assert self.is_finished, "still not over"
        if self._error is not None:
            raise self._error
        return self._result
