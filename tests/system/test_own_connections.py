"""The SQL of connections that a task's own code opens ends with a cancel, and before the next attempt if its worker is
killed: in a thread and in a process, by each driver and library."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.db.connection import Session
from dataloader.app.queue.jobs import JobQueue
from tests.support import eventually
from tests.support.own_connection_tasks import TABLES, WRITERS
from tests.support.real_service import RunningService, ServiceStarter, query_rows

ACTIVE = """SELECT application_name, query FROM pg_stat_activity
    WHERE query LIKE '%%write_slowly%%' AND state = 'active' AND pid <> pg_backend_pid()"""
# A server that does not end a session in time is named in the job's event: no statement runs on unseen.
UNREPORTED = """SELECT split_part(application_name, ':', 2) FROM pg_stat_activity
    WHERE query LIKE '%%write_slowly%%' AND state = 'active' AND pid <> pg_backend_pid()
    EXCEPT SELECT job_id::text FROM dl_job_events WHERE payload ? 'sessions_left'"""
# Rows of a first attempt that were written after the second one had started.
LATE = """SELECT j.task, count(*)
    FROM own_rows w JOIN own_starts s ON s.job = w.job AND s.attempt = w.attempt + 1 JOIN dl_jobs j ON j.job_id = w.job
    WHERE w.at > s.at GROUP BY 1"""
OPEN_JOBS = "SELECT task, status, attempt, error FROM dl_jobs WHERE status IN ('queued', 'running')"


class OwnConnectionJobs:
    """A job of each driver and isolation, with an account's own name for its connections in half of them."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.ids = dsn, dict[str, UUID]()
        query_rows(dsn, TABLES)

    def begin(self) -> None:
        query_rows(self.dsn, "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 'own.start-pool', 'start-pool')")
        self.wait_until_finished()
        for n, name in enumerate(f"own.{name}.{kind}" for name in WRITERS for kind in ("thread", "process")):
            args = {"dsn": make_dsn(self.dsn, application_name="nightly") if n % 3 == 0 else self.dsn}
            ((job,),) = query_rows(
                self.dsn,
                "INSERT INTO dl_jobs (queue, task, lock_key, args, lease_ttl_sec, max_attempts)"
                " VALUES ('q', %s, gen_random_uuid(), %s, 30, 2) RETURNING job_id",
                name, json.dumps(args),
            )  # fmt: skip
            self.ids[name] = UUID(job)
        eventually(lambda: self.writing() == len(self.ids), 60, lambda: str(query_rows(self.dsn, OPEN_JOBS)))

    def writing(self) -> int:
        ((count,),) = query_rows(self.dsn, "SELECT count(DISTINCT job) FROM own_rows WHERE attempt = 1")
        return int(count)

    def wait_until_finished(self) -> None:
        eventually(lambda: not query_rows(self.dsn, OPEN_JOBS), 90, lambda: str(query_rows(self.dsn, OPEN_JOBS)))


@pytest.fixture
def jobs(dsn: str) -> OwnConnectionJobs:
    return OwnConnectionJobs(dsn)


@pytest.fixture
def worker(run: ServiceStarter, dsn: str) -> Any:
    def started() -> RunningService:
        return run(
            "worker",
            DL_PIPELINES="tests.support.own_connection_tasks",
            DL_HEARTBEAT_SEC="0.5",
            DL_STOP_STEP_SEC="0.3",
            DL_SHUTDOWN_GRACE_SEC="0",
            WORKERS_JSON=json.dumps([{"queue": "q", "concurrency": 2 * len(WRITERS)}]),
        ).wait_until_ready()

    return started


def test_cancel_ends_sql_of_own_connections(worker: Any, jobs: OwnConnectionJobs, dsn: str):
    worker()
    jobs.begin()

    with closing(Session(dsn, application_name="test")) as session:
        for job_id in jobs.ids.values():
            JobQueue(session).cancel(job_id)

    jobs.wait_until_finished()
    ends = query_rows(dsn, "SELECT task, status, error FROM dl_jobs WHERE args ? 'dsn' AND status <> 'canceled'")
    assert ends == []
    assert query_rows(dsn, UNREPORTED) == []
    eventually(lambda: query_rows(dsn, ACTIVE) == [])  # each would write for minutes


def test_killed_worker_sql_ends_before_next_attempt(worker: Any, jobs: OwnConnectionJobs, dsn: str):
    doomed = worker()
    jobs.begin()
    worker()

    os.kill(doomed.process.pid, signal.SIGKILL)

    jobs.wait_until_finished()
    ends = "SELECT task, status, attempt FROM dl_jobs WHERE args ? 'dsn' AND (status <> 'succeeded' OR attempt <> 2)"
    assert query_rows(dsn, ends) == []
    assert query_rows(dsn, LATE) == []
