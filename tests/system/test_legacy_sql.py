"""SQL of code that opens its own connections ends before the next attempt of its job, or the next job of its key,
begins, whatever ends the attempt.

The legacy code writes rows by one long statement in autocommit, so a session that outlives its attempt is seen in the
table. Both kinds of legacy task run in each case: a callable of DL_TASKS, and a program. They have no connection check
unless the case is about it: within two seconds it would hide sessions that should have been ended by their name.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import migrate
from dataloader.app.queue.jobs import JobQueue
from tests.support import Databases, Process, eventually
from tests.support.real_service import RunningService, ServiceStarter, query_rows

PROGRAM = str(Path(__file__).parents[1] / "support" / "legacy_loads.py")
TASKS: dict[str, dict[str, Any]] = {
    "call": {"call": "tests.support.legacy_loads:write_rows"},
    "program": {"command": [sys.executable, PROGRAM, "{dsn}", "{load}", "{seconds}"]},
}
KINDS = tuple(TASKS)
STOP_STEP_SEC = 0.3
LEASE_SEC = 3
RETRY = {"kind": "fixed", "seconds": 0.1}
CHECKED = {f"checked {kind}": {**task, "retry": RETRY} for kind, task in TASKS.items()}
UNCHECKED = {kind: {**task, "retry": RETRY, "connection_check": False} for kind, task in TASKS.items()}
SETTINGS = {
    "DL_TASKS": json.dumps(CHECKED | UNCHECKED),
    "DL_PIPELINES": "dataloader.pipelines.noop",
    "DL_HEARTBEAT_SEC": "0.5",
    "DL_STOP_STEP_SEC": str(STOP_STEP_SEC),
    "DL_SHUTDOWN_GRACE_SEC": "0.2",
    "DL_CLAIM_BACKOFF_SEC": "1",
}
ROWS_TABLE = """
    CREATE TABLE legacy_rows (
        load text NOT NULL, session int NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())"""


class Service:
    """Workers on one database, and what the legacy code has written there."""

    def __init__(self, run: ServiceStarter, dsn: str) -> None:
        self.dsn, self._run = dsn, run
        self.queue = JobQueue(Pool(dsn))
        self._workers: list[RunningService] = []

    def worker(self) -> RunningService:
        """The only one: of those that an earlier case has left the others are ended, which run nothing any more."""
        left, *others = [w for w in self._workers if w.process.exit_code is None] or [self.start()]
        for other in others:
            other.stop()
        self._workers = [left]
        return left

    def start(self) -> RunningService:
        self._workers.append(self._run("worker", **SETTINGS).wait_until_ready())
        return self._workers[-1]

    def insert(self, task: str, load: str, *, time_limit: float | None = None) -> UUID:
        """A job whose statement takes much longer than the test. Its load is its key, too."""
        args = json.dumps({"dsn": self.dsn, "load": load, "seconds": 90})
        ((job,),) = query_rows(
            self.dsn,
            "INSERT INTO dl_jobs (queue, task, lock_key, args, lease_ttl_sec, time_limit_sec)"
            " VALUES ('q', %s, %s, %s, %s, %s) RETURNING job_id::text",
            task, load, args, LEASE_SEC, time_limit,
        )  # fmt: skip
        return UUID(job)

    def sessions(self, load: str) -> list[tuple[float, float, int]]:
        """First row, last row and number of rows of each session of a load, in the order of their beginning."""
        rows = query_rows(
            self.dsn,
            "SELECT extract(epoch FROM min(at))::float, extract(epoch FROM max(at))::float, count(*)::int"
            " FROM legacy_rows WHERE load = %s GROUP BY session ORDER BY 1",
            load,
        )
        return [(first, last, count) for first, last, count in rows]

    def until_written(self, load: str, session: int) -> None:
        """Until this session of the load, counted from 1, has written for about a second."""

        def has_written() -> bool:
            found = self.sessions(load)
            return len(found) >= session and found[session - 1][2] >= 8

        eventually(has_written, message=lambda: f"{load}: {self.sessions(load)} {self.text}", interval_sec=0.05)

    def is_written(self, load: str) -> bool:
        """Whether a session of the load still runs its statement."""
        running = "SELECT 1 FROM pg_stat_activity WHERE pid IN (SELECT session FROM legacy_rows WHERE load = %s)"
        return bool(query_rows(self.dsn, running, load))

    def check_apart(self, load: str) -> None:
        """The first session has ended before the second began, although both had the time to write."""
        self.until_written(load, 2)
        (_, last, _), (first, _, _), *_ = self.sessions(load)
        assert last < first, f"{load}: the first session wrote for {last - first:.1f} s while the second did"

    @property
    def text(self) -> str:
        return "\n".join(worker.process.text for worker in self._workers)

    def cancel(self, *jobs: UUID) -> None:
        for job in jobs:
            self.queue.cancel(job)
        for job in jobs:
            eventually(partial(self.has_ended, job), message=lambda: self.text, interval_sec=0.05)

    def has_ended(self, job_id: UUID) -> bool:
        job = self.queue.get(job_id)
        return job is not None and job.status.final


@pytest.fixture(scope="module")
def service(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One database and its workers for all cases of this file."""
    folder = tmp_path_factory.mktemp("legacy")
    with databases.fresh() as dsn, ExitStack() as running:
        migrate(dsn)
        query_rows(dsn, ROWS_TABLE)

        def start(*args: str, env: dict[str, str]) -> Process:
            output = folder / f"process-{len(list(folder.iterdir()))}.log"
            return running.enter_context(Process.dataloader(*args, output=output, env=env))

        yield Service(ServiceStarter(start, dsn), dsn)


@pytest.fixture
def loads(service: Service, request: pytest.FixtureRequest) -> Iterator[Callable[..., dict[str, UUID]]]:
    """Insert a job of each kind and wait for its first rows: jobs by load. They are canceled in the end."""
    started: list[UUID] = []

    def insert(prefix: str = "", **options: float) -> dict[str, UUID]:
        names = {f"{request.node.name} {kind}": f"{prefix}{kind}" for kind in KINDS}
        jobs = {load: service.insert(task, load, **options) for load, task in names.items()}
        started.extend(jobs.values())
        return jobs

    yield insert
    service.worker()
    service.cancel(*started)


def test_connection_check_alone_ends_sql_of_a_killed_worker(service, loads):
    doomed = service.worker()
    jobs = loads("checked ")
    for load in jobs:
        service.until_written(load, 1)

    doomed.process.kill()

    eventually(lambda: not any(map(service.is_written, jobs)), message="the sessions have ended without a reaper")


def test_killed_worker_sql_ends_before_next_attempt(service, loads):
    doomed = service.worker()
    jobs = loads()
    for load in jobs:
        service.until_written(load, 1)
    service.start()

    doomed.process.kill()

    for load in jobs:
        service.check_apart(load)


def test_lost_lease_sql_ends_before_next_attempt(service, loads):
    frozen = service.worker()
    jobs = loads()
    for load in jobs:
        service.until_written(load, 1)

    frozen.process.signal(signal.SIGSTOP)
    heir = service.start()
    eventually(lambda: len(heir.log_lines("reaper.requeued")) >= len(jobs), message=lambda: heir.process.text)
    frozen.process.signal(signal.SIGCONT)

    for load in jobs:
        service.check_apart(load)


def test_canceled_sql_ends_before_next_job_of_its_key(service, loads):
    service.worker()
    first = loads()
    for load in first:
        service.until_written(load, 1)
    second = [service.insert(load.rpartition(" ")[2], load) for load in first]

    for job in first.values():
        service.queue.cancel(job)

    for load in first:
        service.check_apart(load)
    for job in first.values():
        assert service.queue.get(job).status == "canceled"
        (end,) = [event.payload for event in service.queue.events(job) if event.kind == "canceled"]
        # Flag and query for a callable, then SIGTERM: it does not wait for the end of its statement.
        assert end["stopped_after_sec"] < 20
    service.cancel(*second)


def test_time_limit_ends_sql_before_next_attempt(service, loads):
    service.worker()
    jobs = loads(time_limit=2)

    for load in jobs:
        service.check_apart(load)


def test_shutdown_ends_sql_before_next_attempt(service, loads):
    leaving = service.worker()
    jobs = loads()
    for load in jobs:
        service.until_written(load, 1)
    service.start()

    assert leaving.stop() == 0

    for load in jobs:
        service.check_apart(load)
