"""A desk to work at: the queue over a session, plain SQL beside it, and hands that move a row's times."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg2
from psycopg2.extensions import connection as Connection

from app.queue.ids import draw_runs
from app.queue.job import Claimed, Fate, Handback, Job, NewJob, News, Outlook, Reaped, Release, Settlement, Status
from app.queue.jobqueue import JobQueue
from app.queue.session import Session
from tests.support.journal import Told, check_everything
from tests.support.waiting import eventually

TASKS = ("t",)


class Desk:
    def __init__(self, dsn: str, *, schema: str = "public") -> None:
        self.dsn = dsn
        self.session = Session(dsn, name="desk", schema=schema)
        self.queue = JobQueue(self.session)
        self._closing: list[Any] = [self.session]
        self.db = self.connect(autocommit=True)

    # ── plain SQL ───────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, *, autocommit: bool = False) -> Connection:
        """A connection of the test's own, closed at its end."""
        connection: Connection = psycopg2.connect(self.dsn)
        connection.autocommit = autocommit
        self._closing.append(connection)
        return connection

    def another_session(self, **settings: Any) -> Session:
        session = Session(self.dsn, name=settings.pop("name", "another"), **settings)
        self._closing.append(session)
        return session

    def another(self) -> JobQueue:
        """The queue as another process has it."""
        return JobQueue(self.another_session())

    def sql(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.db.cursor() as cursor:
            cursor.execute(text, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def listener(self, channel: str = "dl_jobs") -> Listener:
        return Listener(self.connect(autocommit=True), channel)

    def one(self, text: str, *parameters: Any) -> Any:
        return self.sql(text, *parameters)[0][0]

    def sessions(self, such: str) -> int:
        """Of this database; others of the server are other tests'."""
        return int(self.one(f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {such}"))

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
        return UUID(self.one(f"INSERT INTO dl_jobs ({names}) VALUES ({holes}) RETURNING job_id", *columns.values()))

    def claim(self, count: int = 1, *, queue: str = "q", tasks: Iterable[str] = TASKS) -> list[Claimed]:
        """As a worker does it: look again as long as it is told to."""
        taken: list[Claimed] = []
        while len(taken) < count:
            more, outlook = self.look(count - len(taken), queue=queue, tasks=tasks)
            taken += more
            if not outlook.skipped and not more:
                break
        return taken

    def look(
        self,
        count: int = 1,
        *,
        queue: str = "q",
        tasks: Iterable[str] = TASKS,
        by: JobQueue | None = None,
        after: Sequence[str] | None = None,
    ) -> tuple[list[Claimed], Outlook]:
        return (by or self.queue).claim(queue, tasks, draw_runs(count), "worker-1", after=after)

    def claimed(self, key: str = "k", **more: Any) -> Claimed:
        """A job made and taken."""
        job_id = self.enqueue(key, **more)
        (run,) = self.claim(queue=more.get("queue", "q"), tasks=[more.get("task", "t")])
        assert run.id == job_id, "another job was in front"
        return run

    def settle(
        self, run: Claimed, status: Status = Status.SUCCEEDED, *, guards: Sequence[int] = (), **more: Any
    ) -> Fate:
        if status in (Status.FAILED, Status.QUEUED):
            more.setdefault("error", "it broke")
        (fate,) = self.queue.settle([(run, Settlement(status, **more))], guards=guards)
        return fate

    def release(
        self, run: Claimed, why: Release = Release.SHUTDOWN, progress: Mapping[str, Any] | None = None, **more: Any
    ) -> Fate:
        (fate,) = self.queue.release([Handback(run, why, progress)], **more)
        return fate

    def renew(self, run: Claimed, progress: Mapping[str, Any] | None = None) -> bool | None:
        """Whether its cancel was asked for; None when the run is not ours any more."""
        (said,) = self.queue.renew([News(run.id, run.run_id, progress)], late_sec=3600)
        assert said.run_id == run.run_id
        return said.cancel_requested if said.owned else None

    def expire(self, job_id: UUID) -> None:
        self.sql(
            "UPDATE dl_jobs SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE job_id = %s", str(job_id)
        )

    def make_due(self, *job_ids: UUID) -> None:
        """As if its time had come by itself, of all if none is named: no trigger looks at it."""
        self.sql(
            "SET session_replication_role = replica;"
            " UPDATE dl_jobs SET available_at = clock_timestamp()"
            " WHERE %s::uuid[] IS NULL OR job_id = ANY (%s::uuid[]);"
            " RESET session_replication_role",
            *[[*map(str, job_ids)] or None] * 2,
        )

    def reap(self, *job_ids: UUID, pause_sec: float = 0.0) -> list[Reaped]:
        """Settle for the dead; of all that have expired, for those."""
        found = self.queue.expired()
        return self.queue.reap([run for run in found.runs if not job_ids or run[0] in job_ids], pause_sec=pause_sec)

    def lose(self, run: Claimed, *, pause_sec: float = 0.0) -> Reaped:
        """The worker dies: its lease runs out and the reaper comes."""
        self.expire(run.id)
        (reaped,) = self.reap(run.id, pause_sec=pause_sec)
        return reaped

    def sweep(self) -> tuple[str, ...]:
        return self.queue.sweep(after="", lately=()).promoted

    def job(self, job_id: UUID) -> Job:
        job = self.queue.get(job_id)
        assert job is not None
        return job

    def status(self, job_id: UUID) -> Status:
        return self.job(job_id).status

    def place(self, job_id: UUID) -> str:
        return str(self.one("SELECT place FROM dl_jobs WHERE job_id = %s", str(job_id)))

    def kinds(self, job_id: UUID) -> list[str]:
        return [event.kind for event in self.queue.events(job_id)]

    def check(self) -> dict[UUID, Told]:
        return check_everything(self.sql)

    # ── several at once ─────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def held(self) -> Any:
        """A transaction that is held open in the midst of things: `step(text, …)` runs in it; it commits at the end."""
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

    def waiting_for_a_lock(self) -> int:
        return int(
            self.one(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )

    def until_blocked(self, count: int = 1) -> None:
        eventually(lambda: self.waiting_for_a_lock() >= count, message="somebody waits for a lock")


class Listener:
    """A connection that listens."""

    def __init__(self, connection: Connection, channel: str) -> None:
        self._connection = connection
        self._connection.cursor().execute(f"LISTEN {channel}")

    def heard(self) -> list[str]:
        """All payloads that were sent up to now: the server delivers them before it answers a question."""
        self._connection.cursor().execute("SELECT 1")
        payloads = [note.payload for note in self._connection.notifies]
        self._connection.notifies.clear()
        return payloads


class Aside:
    """A call that runs in a thread of its own; `result()` gives its answer or raises what it raised."""

    def __init__(self, call: Any, *arguments: Any, **named: Any) -> None:
        self._answer: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._answer = call(*arguments, **named)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout: float = 30) -> Any:
        self._thread.join(timeout)
        assert self.over, "still not over"
        if self._error is not None:
            raise self._error
        return self._answer
