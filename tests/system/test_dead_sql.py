"""However an attempt ends, none of its statements is active when the next attempt or the next job of the key starts."""

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
from tests.support.dead_sql import TABLES
from tests.support.proxy import SilentProxy
from tests.support.real_service import RunningService, ServiceStarter, query_rows

KINDS = ("thread", "transaction", "process")
LEASE_SEC = 3
ACTIVE = """SELECT application_name FROM pg_stat_activity
    WHERE application_name LIKE 'dataloader:%%' AND state <> 'idle' AND datname = current_database()"""
# Rows that were written after the next attempt, or the next job of the key, had started.
LATE = """SELECT j.task, count(*) FROM written w JOIN dl_jobs j ON j.job_id = w.job
    WHERE w.at > (SELECT min(s.at) FROM starts s JOIN dl_jobs n ON n.job_id = s.job WHERE n.lock_key = j.lock_key)
    GROUP BY 1"""


class KeyedJobs:
    """A job of each kind, each with its key, and a next job of each key."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        query_rows(dsn, TABLES)
        self.first: dict[str, UUID] = {}
        self._round = 0

    def begin(self, *, time_limit: int | None = None) -> None:
        """Insert the first ones, and wait until a statement of each is active."""
        self._round += 1
        for kind in KINDS:
            self.first[kind] = self._insert(f"dead.{kind}", kind, {}, time_limit)
        eventually(
            lambda: len(query_rows(self.dsn, ACTIVE)) == len(KINDS), 30, lambda: str(query_rows(self.dsn, ACTIVE))
        )
        for kind in KINDS:
            self._insert("dead.next", kind, {"first": str(self.first[kind])}, None)

    def _insert(self, task: str, key: str, args: dict[str, Any], time_limit: int | None) -> UUID:
        ((job,),) = query_rows(
            self.dsn,
            "INSERT INTO dl_jobs (queue, task, lock_key, args, lease_ttl_sec, time_limit_sec, max_attempts)"
            " VALUES ('q', %s, %s, %s, %s, %s, %s) RETURNING job_id",
            task, f"{key} {self._round}", json.dumps(args), LEASE_SEC, time_limit, 2 if time_limit is None else 1,
        )  # fmt: skip
        return UUID(job)

    def wait_until_finished(self) -> None:
        """All have ended, and a start was noted for each key."""
        open_jobs = "SELECT task, status, attempt, error FROM dl_jobs WHERE status IN ('queued', 'running')"
        eventually(
            lambda: not query_rows(self.dsn, open_jobs),
            60,
            lambda: str(query_rows(self.dsn, open_jobs)),
            interval_sec=0.05,
        )

    def check_no_overlap(self) -> None:
        starts = query_rows(self.dsn, "SELECT active FROM starts")
        assert len(starts) >= len(KINDS) * self._round
        assert [active for (active,) in starts if active] == [], "statements of an earlier attempt were active"
        assert query_rows(self.dsn, LATE) == []
        assert query_rows(self.dsn, "SELECT count(*) > 3 FROM written") == [(True,)]


@pytest.fixture
def jobs(dsn: str) -> KeyedJobs:
    return KeyedJobs(dsn)


@pytest.fixture
def worker(run: ServiceStarter, dsn: str) -> Any:
    def started(queue_dsn: str = dsn) -> RunningService:
        return run(
            "worker",
            DL_DB_DSN=queue_dsn,
            DL_TARGETS=json.dumps({"default": make_dsn(dsn, connect_timeout=9)}),
            DL_PIPELINES="tests.support.dead_sql",
            DL_HEARTBEAT_SEC="0.5",
            PG_COMMAND_TIMEOUT="2",
            PG_CONNECT_TIMEOUT="2",
            DL_STOP_STEP_SEC="0.3",
            DL_SHUTDOWN_GRACE_SEC="0",
            WORKERS_JSON='[{"queue":"q","concurrency":3}]',
        ).wait_until_ready()

    return started


def test_killed_worker_leaves_no_active_sql(worker: Any, jobs: KeyedJobs):
    doomed = worker()
    jobs.begin()
    heir = worker()

    os.kill(doomed.process.pid, signal.SIGKILL)

    jobs.wait_until_finished()
    jobs.check_no_overlap()
    assert len(heir.log_lines("reaper.requeued")) == len(KINDS)


def test_frozen_worker_leaves_no_active_sql(worker: Any, jobs: KeyedJobs):
    frozen = worker()
    jobs.begin()
    heir = worker()

    frozen.process.signal(signal.SIGSTOP)

    eventually(lambda: len(heir.log_lines("reaper.requeued")) == len(KINDS), message=lambda: heir.process.text)
    assert query_rows(jobs.dsn, ACTIVE) == []
    frozen.process.signal(signal.SIGCONT)
    jobs.wait_until_finished()
    jobs.check_no_overlap()


def test_worker_cut_off_from_the_queue_leaves_no_active_sql(worker: Any, jobs: KeyedJobs, dsn: str):
    with SilentProxy(dsn) as proxy:
        worker(proxy.dsn)
        jobs.begin()
        worker()

        proxy.silence()

        jobs.wait_until_finished()
        jobs.check_no_overlap()


def test_stopped_attempt_leaves_no_active_sql(worker: Any, jobs: KeyedJobs, dsn: str):
    """By a cancel, then by a time limit, then by a shutdown."""
    first = worker()
    jobs.begin()
    with closing(Session(dsn, application_name="test")) as session:
        for job in jobs.first.values():
            JobQueue(session).cancel(job)
    jobs.wait_until_finished()
    jobs.check_no_overlap()

    jobs.begin(time_limit=4)  # the process of a job takes its time to start
    jobs.wait_until_finished()
    jobs.check_no_overlap()

    jobs.begin()
    worker()
    assert first.stop() == 0
    jobs.wait_until_finished()
    jobs.check_no_overlap()
