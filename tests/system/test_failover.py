"""The primary is killed under load and its synchronous standby promoted: two real servers, API and worker processes."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
import pytest

from dataloader import Client, ServiceUnavailable
from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.postgres.binaries import Choice
from dataloader.app.queue.jobs import JobQueue
from dataloader.workers.reaper import Reaper
from tests.chaos.servers import Server
from tests.support import eventually
from tests.support.real_service import ServiceJobs, ServiceStarter, query_rows
from tests.support.standby import Pair, primary_and_standby

HEARTBEAT_SEC = 3.0
ACKNOWLEDGED_BEFORE, ACKNOWLEDGED_AFTER = 100, 30  # of each producer
_SUBMIT_INTERVAL_SEC = 0.005
UNSERVED = "unserved"  # a queue whose only worker is a row of ours
INSERT = "INSERT INTO dl_jobs (job_id, queue, task, lock_key, args) VALUES (%s, 'q', 'test.nap', %s, %s)"


@pytest.fixture
def pair(run_folder: Path, postgres_binaries: Choice) -> Iterator[Pair]:
    with primary_and_standby(run_folder, postgres_binaries) as made:
        yield made


@dataclass
class Producer(ABC):
    """Submits jobs one by one until it is over, and notes which were acknowledged."""

    address: str
    trace: Path
    acknowledged: dict[str, float] = field(default_factory=dict)  # job id → when
    refused_count: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        args = {"trace": str(self.trace), "seconds": 0}
        while not self.is_over.wait(_SUBMIT_INTERVAL_SEC):
            try:
                job_id = self.submit(args)
            except (psycopg2.Error, ServiceUnavailable):
                self.refused_count += 1
            else:
                self.acknowledged[job_id] = time.monotonic()

    @abstractmethod
    def submit(self, args: dict[str, Any]) -> str:
        """Return the id of an acknowledged job."""

    def longest_gap_sec(self) -> float:
        return max(after - before for before, after in pairwise(sorted(self.acknowledged.values())))


class SqlProducer(Producer):
    """Another program: a plain INSERT and a commit for each job, on a new connection whenever one breaks."""

    _connection: Any = None

    def submit(self, args: dict[str, Any]) -> str:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg2.connect(self.address, connect_timeout=5)
            self._connection.autocommit = True
        job_id = str(uuid4())
        with self._connection.cursor() as cursor:
            cursor.execute(INSERT, (job_id, job_id, json.dumps(args)))
        return job_id


class HttpProducer(Producer):
    """A client of the API: only a 200 is an acknowledgement, and nothing is sent twice."""

    def submit(self, args: dict[str, Any]) -> str:
        client = Client(self.address, retry_timeout_sec=0)
        return str(client.trigger("test.nap", args, queue="q", lock_key=str(uuid4()))["job_id"])


class NoKeys:
    are_held = False

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
    starter = ServiceStarter(start, pair.dsn)
    worker = starter("worker", DL_HEARTBEAT_SEC=str(HEARTBEAT_SEC))
    api = starter("serve", "--no-workers").wait_until_ready()
    worker.wait_until_ready()
    long = jobs.insert("test.until", 2)
    jobs.wait_for_starts(2)
    pretend_worker_is_awake(pair.primary)
    assert not notified(pair.primary)
    producers = [SqlProducer(pair.dsn, jobs.trace), HttpProducer(f"http://127.0.0.1:{api.port}", jobs.trace)]
    with producing(producers), closing(Session(pair.dsn, application_name="reaper-of-the-test")) as session:
        eventually(lambda: all(len(producer.acknowledged) >= ACKNOWLEDGED_BEFORE for producer in producers))
        suspect, reaper = suspect_on(pair.primary), reaper_of(session)
        reaper.run_once()
        suspected_at = time.monotonic()

        pair.primary.kill()
        before = [list(producer.acknowledged) for producer in producers]
        promotion_began_at, began = time.time(), time.monotonic()
        pair.standby.promote()
        promotion_sec = time.monotonic() - began

        # What only the primary knew is gone, so that no worker is taken for one that is awake.
        assert pair.standby.query("SELECT count(*) FROM dl_notify_state WHERE queue = %s", UNSERVED) == [(0,)]
        assert notified(pair.standby)

        eventually(lambda: time.monotonic() - suspected_at > HEARTBEAT_SEC / 3)
        eventually(lambda: check_leases(reaper))
        assert pair.standby.query("SELECT status::text FROM dl_jobs WHERE job_id = %s", suspect) == [("running",)]

        for producer, earlier in zip(producers, before, strict=True):
            eventually(lambda: len(producer.acknowledged) >= len(earlier) + ACKNOWLEDGED_AFTER)  # noqa: B023
    jobs.release_jobs()

    acknowledged = [job_id for producer in producers for job_id in producer.acknowledged]
    eventually(lambda: statuses(pair.standby, acknowledged) == {"succeeded": len(acknowledged)})
    eventually(lambda: statuses(pair.standby, long) == {"succeeded": 2})
    print(f"\npromotion {promotion_sec:.2f} s")  # noqa: T201 - the figures of a failover, for pytest -s
    for producer, earlier in zip(producers, before, strict=True):
        there = sum(statuses(pair.standby, earlier).values())
        print(  # noqa: T201
            f"{type(producer).__name__}: gap {producer.longest_gap_sec():.2f} s; {len(earlier)} acknowledged before the"
            f" failover, {there} there after; {len(producer.acknowledged)} in all, {producer.refused_count} refused"
        )
        assert there == len(earlier)
    ((ended, doubled),) = pair.standby.query(
        "SELECT count(*), count(*) FILTER (WHERE dones > 1) FROM ("
        " SELECT count(*) AS dones FROM dl_job_events WHERE kind = 'done' GROUP BY job_id) jobs"
    )
    print(f"{ended} jobs ended, {doubled} of them twice")  # noqa: T201
    assert doubled == 0
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


@contextmanager
def producing(producers: list[Producer]) -> Iterator[None]:
    with ExitStack() as stack:
        for producer in producers:
            thread = threading.Thread(target=producer.run)
            thread.start()
            stack.callback(thread.join, 30)
            stack.callback(producer.is_over.set)
        yield


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
