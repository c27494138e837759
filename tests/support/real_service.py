"""A service of real processes, and its tables read by plain SQL."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil  # type: ignore[import-untyped]
import psycopg2
from psycopg2.extensions import connection as Connection

from tests.support.event_replay import ReplayedJob, check_invariants
from tests.support.processes import Process, free_port
from tests.support.waiting import eventually

# Short times, so that a test sees in seconds what takes minutes otherwise.
FAST_SETTINGS = {
    "DL_HEARTBEAT_SEC": "0.3",
    "DL_DEFAULT_LEASE_TTL_SEC": "30",
    "DL_REAPER_PERIOD_SEC": "0.3",
    "DL_CLAIM_BACKOFF_SEC": "5",
    "DL_SHUTDOWN_GRACE_SEC": "1",
    "DL_PIPELINES": "dataloader.pipelines.noop,tests.support.etl",
    "DL_LOG_FORMAT": "json",
    "DL_MEMORY_HIGH": "0",  # the memory of the machine that runs the tests is not what they are about
    "WORKERS_JSON": '[{"queue":"q","concurrency":4}]',
}


_STATUS_COUNTS = "SELECT status::text, count(*) FROM dl_jobs GROUP BY status"


def query_rows(dsn: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """On a connection of its own, as servers come and go."""
    with closing(psycopg2.connect(dsn, connect_timeout=20)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def lasting_query(dsn: str) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
    """Yield a `query_rows` without the DSN, for what is asked again and again: a new connection for each question
    costs the server more than the answer. One that is lost is replaced."""
    open_connections: list[Connection] = []

    def query(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        try:
            return _query_autocommit(open_connections[-1], statement, parameters)
        except (IndexError, psycopg2.OperationalError, psycopg2.InterfaceError):
            open_connections.append(psycopg2.connect(dsn, connect_timeout=20))
            open_connections[-1].autocommit = True
            return _query_autocommit(open_connections[-1], statement, parameters)

    try:
        yield query
    finally:
        for connection in open_connections:
            connection.close()


def _query_autocommit(connection: Connection, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


class ServiceJobs:
    """Makes jobs as other services do, with the old columns alone, and reads how they are."""

    def __init__(self, dsn: str, folder: Path, *, lease: int = 30) -> None:
        self.dsn, self._lease = dsn, lease
        self.trace = folder / "trace.jsonl"
        self.release_file = folder / "go-on"  # what test.until and test.deaf wait for
        self._inserted = 0

    def insert(self, task: str = "test.nap", count: int = 1, *, key: str | None = None, **args: Any) -> list[str]:
        given = json.dumps({"trace": str(self.trace), "file": str(self.release_file), "seconds": 0.05, **args})
        self._inserted += 1
        rows = query_rows(
            self.dsn,
            "INSERT INTO dl_jobs (queue, task, lock_key, args, lease_ttl_sec)"
            " SELECT 'q', %s, coalesce(%s, 'key-' || %s || '-' || n), %s, %s FROM generate_series(1, %s) n"
            " RETURNING job_id",
            task, key, self._inserted, given, self._lease, count,
        )  # fmt: skip
        return [row[0] for row in rows]

    def release_jobs(self) -> None:
        self.release_file.touch()

    def row(self, job: str) -> tuple[str, int]:
        """Its status and attempt."""
        ((status, attempt),) = query_rows(self.dsn, "SELECT status, attempt FROM dl_jobs WHERE job_id = %s", job)
        return status, attempt

    def status_counts(self) -> dict[str, int]:
        return dict(query_rows(self.dsn, _STATUS_COUNTS))

    def event_kinds(self, job: str) -> list[tuple[str, str | None]]:
        """Kinds and reasons, in order."""
        return [
            (kind, reason)
            for kind, reason in query_rows(
                self.dsn,
                "SELECT kind, payload->>'reason' FROM dl_job_events WHERE job_id = %s ORDER BY event_id",
                job,
            )
            if kind != "heartbeat"
        ]

    def trace_entries(self, action: str) -> list[dict[str, Any]]:
        if not self.trace.exists():
            return []
        lines = [json.loads(line) for line in self.trace.read_text().splitlines()]
        return [line for line in lines if line["what"].startswith(action)]

    def wait_for_counts(self, counts: Mapping[str, int], timeout: float = 60) -> None:
        with lasting_query(self.dsn) as query:
            eventually(
                lambda: dict(query(_STATUS_COUNTS)) == counts,
                timeout,
                lambda: f"{counts}, found {self.status_counts()}",
                interval_sec=0.05,
            )

    def wait_for_starts(self, count: int, timeout: float = 60) -> None:
        eventually(
            lambda: len(self.trace_entries("began")) >= count,
            timeout,
            lambda: f"{count} begun: {self.trace_entries('')}",
        )

    def wait_for_reaping(self, *, attempt: int = 1) -> None:
        """Expire the leases of a killed worker's runs, and wait until the reaper has seen it."""
        end = (
            "UPDATE dl_jobs SET lease_expires_at = clock_timestamp() - interval '1 s'"
            " WHERE status = 'running' AND attempt = %s RETURNING job_id"
        )
        with lasting_query(self.dsn) as query:
            eventually(lambda: not query(end, attempt), message=lambda: f"taken back: {self.status_counts()}")

    def check_invariants(self) -> dict[UUID, ReplayedJob]:
        """Every job is in exactly one right wait state, and got there by right moves."""
        return check_invariants(lambda question: query_rows(self.dsn, question))


@dataclass
class RunningService:
    """A `serve` or `worker` and what can be done to it."""

    process: Process
    port: int
    host: str

    @property
    def worker_pid(self) -> int:
        """The pid of the process whose threads run jobs."""
        return self.process.pid if self.host == "worker" else self.children()[0]

    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body of an answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    def wait_until_ready(self, timeout: float = 60) -> RunningService:
        if self.host == "worker":
            self.process.wait_for_line("listener.connected", timeout)
        else:
            self.process.wait_for_port(self.port, timeout)
            eventually(lambda: self.get("/status")[0] == 200, timeout, lambda: self.process.text, interval_sec=0.05)
            eventually(
                lambda: self.get("/status")[1]["workers"] is None or self._is_listening(), timeout, interval_sec=0.05
            )
        return self

    def _is_listening(self) -> bool:
        return bool(self.get("/status")[1]["workers"].get("listener") == "listening")

    def log_lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.output() if line.get("event") == event]

    def output(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.process.lines if line.startswith("{")]

    def stop(self, signal_number: signal.Signals = signal.SIGTERM, timeout: float = 60) -> int:
        self.process.signal(signal_number)
        return self.process.wait(timeout)

    def check_clean_exit(self) -> bool:
        """Check that no process was killed or hung, and that the logs have no error."""
        return not any(
            bad in self.process.text for bad in ("SIGKILL", "Traceback", "WORKER TIMEOUT", "service.stop_timeout")
        )


class ServiceStarter:
    """Starts services on one database."""

    def __init__(self, start: Callable[..., Process], dsn: str | None) -> None:
        self._start, self._dsn = start, dsn

    def __call__(self, host: str, *options: str, **env: str) -> RunningService:
        port = int(env.get("APP_PORT", free_port()))
        where = {} if self._dsn is None else {"DL_DB_DSN": self._dsn}
        process = self._start(host, *options, env={**FAST_SETTINGS, "APP_PORT": str(port), **where, **env})
        return RunningService(process, port, host)


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def postgres_pids_of(folder: Path) -> list[int]:
    """PostgreSQL main processes whose data is in the folder."""
    return [
        process.pid
        for process in psutil.process_iter(["name", "cmdline"])
        if "postgres" in (process.info["name"] or "") and str(folder) in " ".join(process.info["cmdline"] or [])
    ]


def wait_for_end_of_postgres(folder: Path) -> None:
    """What stops a server waits for its pid file to go, which it removes before it ends."""
    eventually(lambda: not postgres_pids_of(folder), message=lambda: str(postgres_pids_of(folder)))


def signal_all(pids: Sequence[int], signal_number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        os.kill(pid, signal_number)
