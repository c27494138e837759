"""The primary is killed under load and its synchronous standby promoted: two real servers, a real worker process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
import pytest

from app.db.connection import Session
from app.errors import DatabaseUnavailable
from app.postgres.binaries import Choice
from app.queue.jobs import JobQueue
from tests.chaos.servers import Server
from tests.support import eventually
from tests.support.real_service import ServiceJobs, ServiceStarter, query_rows
from tests.support.standby import Pair, primary_and_standby
from workers.reaper import Reaper

HEARTBEAT_SEC = 3.0
ACKNOWLEDGED_BEFORE, ACKNOWLEDGED_AFTER = 150, 50
UNSERVED = "unserved"  # a queue whose only worker is a row of ours
INSERT = "INSERT INTO dl_jobs (job_id, queue, task, lock_key, args) VALUES (%s, 'q', 'test.nap', %s, %s)"


@pytest.fixture
def pair(run_folder: Path, postgres_binaries: Choice) -> Iterator[Pair]:
    with primary_and_standby(run_folder, postgres_binaries) as made:
        yield made


@dataclass
class Producer:
    """Another service: a plain INSERT and a commit for each job, on a new connection whenever one breaks."""

    dsn: str
    trace: Path
    acknowledged: dict[str, float] = field(default_factory=dict)  # job id → when
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.is_over.is_set():
            try:
                with closing(psycopg2.connect(self.dsn, connect_timeout=5)) as connection:
                    connection.autocommit = True
                    self._insert_all(connection)
            except psycopg2.Error:
                self.is_over.wait(0.02)

    def _insert_all(self, connection: Any) -> None:
        args = json.dumps({"trace": str(self.trace), "seconds": 0})
        while not self.is_over.wait(0.005):
            job_id = str(uuid4())
            with connection.cursor() as cursor:
                cursor.execute(INSERT, (job_id, job_id, args))
            self.acknowledged[job_id] = time.monotonic()

    def longest_gap_sec(self) -> float:
        times = sorted(self.acknowledged.values())
        return max(after - before for before, after in pairwise(times))


class NoKeys:
    def relock_all(self) -> None: ...


def reaper_of(session: Session) -> Reaper:
    made: Any = Reaper
    reaper: Reaper = made(
        JobQueue(session), NoKeys(), interval_sec=0.1, heartbeat_sec=HEARTBEAT_SEC / 3, pause_sec=0.0,
        release_stale=lambda: None, on_crash=lambda name: None,
    )  # fmt: skip
    return reaper


def suspect_on(server: Server) -> str:
    """A run whose worker died long ago."""
    ((job_id,),) = server.query(
        "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('dead', 'test.nap', 'dead') RETURNING job_id"
    )
    server.query(
        "UPDATE dl_jobs SET status = 'running', attempt = 1, run_id = gen_random_uuid(), wait_state = 'scheduled',"
        " lease_expires_at = now() - interval '1 hour', heartbeat_at = now() - interval '2 hours' WHERE job_id = %s",
        job_id,
    )
    return str(job_id)


def notified(server: Server) -> bool:
    """Whether an INSERT into the unserved queue wakes its worker."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("LISTEN dl_jobs")
        cursor.execute("INSERT INTO dl_jobs (queue, task, lock_key) VALUES (%s, 't', gen_random_uuid())", (UNSERVED,))
        cursor.execute("SELECT 1")
        return UNSERVED in [note.payload for note in connection.notifies]


def pretend_worker_is_awake(server: Server) -> None:
    server.query(
        "WITH w AS (INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
        " VALUES (gen_random_uuid(), 'awake', '0', ARRAY[%s], '{t}', 1, 3600) RETURNING worker_id)"
        " INSERT INTO dl_notify_state SELECT %s, worker_id, false FROM w",
        UNSERVED, UNSERVED,
    )  # fmt: skip


def test_failover_to_a_synchronous_standby_loses_nothing(pair: Pair, start, tmp_path: Path):
    jobs = ServiceJobs(pair.dsn, tmp_path)
    worker = ServiceStarter(start, pair.dsn)("worker", DL_HEARTBEAT_SEC=str(HEARTBEAT_SEC)).wait_until_ready()
    long = jobs.insert("test.until", 2)
    jobs.wait_for_starts(2)
    pretend_worker_is_awake(pair.primary)
    assert not notified(pair.primary)
    producer = Producer(pair.dsn, jobs.trace)
    thread = threading.Thread(target=producer.run)
    thread.start()
    session = Session(pair.dsn, application_name="reaper-of-the-test")
    try:
        eventually(lambda: len(producer.acknowledged) >= ACKNOWLEDGED_BEFORE)
        suspect, reaper = suspect_on(pair.primary), reaper_of(session)
        reaper.run_once()
        suspected_at = time.monotonic()

        pair.primary.kill()
        before = set(producer.acknowledged)
        promotion_began_at, began = time.time(), time.monotonic()
        pair.standby.promote()
        promotion_sec = time.monotonic() - began

        # What only the primary knew is gone, so that no worker is taken for one that is awake.
        assert pair.standby.query("SELECT count(*) FROM dl_notify_state WHERE queue = %s", UNSERVED) == [(0,)]
        assert notified(pair.standby)

        eventually(lambda: time.monotonic() - suspected_at > HEARTBEAT_SEC / 3)
        eventually(lambda: check_leases(reaper))
        assert pair.standby.query("SELECT status::text FROM dl_jobs WHERE job_id = %s", suspect) == [("running",)]

        eventually(lambda: len(producer.acknowledged) >= len(before) + ACKNOWLEDGED_AFTER)
    finally:
        producer.is_over.set()
        thread.join()
        session.close()
    jobs.release_jobs()

    acknowledged = list(producer.acknowledged)
    eventually(lambda: statuses(pair.standby, acknowledged) == {"succeeded": len(acknowledged)})
    eventually(lambda: statuses(pair.standby, long) == {"succeeded": 2})
    there = sum(statuses(pair.standby, list(before)).values())
    print(  # noqa: T201 - the figures of a failover, for pytest -s
        f"\ngap {producer.longest_gap_sec():.2f} s, promotion {promotion_sec:.2f} s;"
        f" {len(before)} acknowledged before it, {there} there after; {len(acknowledged)} in all"
    )
    assert there == len(before)
    dones = pair.standby.query(
        "SELECT count(*), count(DISTINCT job_id) FROM dl_job_events WHERE kind = 'done' AND job_id = ANY (%s::uuid[])",
        acknowledged,
    )
    assert dones == [(len(acknowledged), len(acknowledged))]
    assert {jobs.row(job) for job in long} == {("succeeded", 1)}
    assert len([line for line in jobs.trace_entries("began") if line["job"] in long]) == 2

    eventually(
        lambda: query_rows(pair.dsn, "SELECT status::text FROM dl_jobs WHERE job_id = %s", suspect) == [("queued",)]
    )
    ((reaped_at,),) = pair.standby.query(
        "SELECT extract(epoch FROM ts)::float8 FROM dl_job_events"
        " WHERE job_id = %s AND payload ->> 'reason' = 'lease_expired'",
        suspect,
    )
    assert reaped_at >= promotion_began_at + HEARTBEAT_SEC
    assert worker.stop() == 0

    refuses_the_former_primary(pair)


def check_leases(reaper: Reaper) -> bool:
    """The first try may find the old connection."""
    try:
        reaper.run_once()
    except DatabaseUnavailable:
        return False
    return True


def statuses(server: Server, job_ids: list[str]) -> dict[str, int]:
    return dict(
        server.query(
            "SELECT status::text, count(*) FROM dl_jobs WHERE job_id = ANY (%s::uuid[]) GROUP BY status", job_ids
        )
    )


def refuses_the_former_primary(pair: Pair) -> None:
    pair.primary.start()
    assert pair.primary.query("SELECT pg_is_in_recovery()") == [(False,)]

    former = Session(pair.primary.dsn, application_name="former")
    with pytest.raises(DatabaseUnavailable, match="former primary: it is on timeline 1, and 2 has begun"):
        former.execute("ping")
    with closing(Session(pair.dsn, application_name="both")) as session:
        assert session.execute_raw("SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)") == [("00000002",)]
