"""What is measured of a side: each function returns figures by name."""

from __future__ import annotations

import json
import os
import random
import select
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2

from benchmarks.http import Request, free_port, run_own_client
from benchmarks.place import cpu_sec_of, query_value
from benchmarks.release.sides import (
    HTTP_THREADS,
    Side,
    end,
    migrated_database,
    running_service,
    running_workers,
    wait_until_healthy,
)
from benchmarks.rounds import median, quantile

WORKER_THREADS = 10
BATCH_JOBS = 1_000
HTTP_PROCESSES = 2
_FILL = "INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'bench', 'empty', 'k' || n FROM generate_series(1, %s) n"
_INSERT = "INSERT INTO dl_jobs (queue, task, lock_key, args) VALUES ('bench', 'empty', %s, '{\"n\": 1}')"
_INSERT_1000 = (
    "INSERT INTO dl_jobs (queue, task, lock_key, args)"
    " SELECT 'bench', 'empty', %s || n, jsonb_build_object('n', n) FROM generate_series(1, 1000) n"
)
_ENQUEUE = "SELECT dl_enqueue('bench', 'empty', %s, '{\"n\": 1}')"
_ENQUEUE_1000 = (
    "SELECT count(*) FROM dl_enqueue_many((SELECT jsonb_agg(jsonb_build_object("
    "'queue', 'bench', 'task', 'empty', 'lock_key', %s || n, 'args', jsonb_build_object('n', n)))"
    " FROM generate_series(1, 1000) n))"
)
_JOB = {"queue": "bench", "task": "empty", "lock_key": "bench", "args": {"date": "2026-01-31", "rows": [1, 2, 3]}}

Figures = dict[str, float]


@dataclass(frozen=True)
class Scale:
    """How much is measured in a round."""

    jobs: int = 20_000
    pick_ups: int = 100
    statements: int = 400
    http_sec: float = 3.0
    idle_sec: float = 20.0


@dataclass(frozen=True)
class Place:
    """The server that both sides use."""

    dsn: str
    process: psutil.Process

    def cpu_sec(self) -> float:
        return cpu_sec_of(self.process)


# ── draining ────────────────────────────────────────────────────────────────────────────────────────────────────────


def drain(side: Side, place: Place, scale: Scale, processes: int) -> Figures:
    """Add all jobs at once to idle processes, and measure until the last one ended."""
    with (
        migrated_database(side, place.dsn) as dsn,
        running_workers(side, dsn, processes, f"bench:{WORKER_THREADS}") as workers,
        closing(_session(dsn)) as session,
        session.cursor() as cursor,
    ):
        query_value(dsn, "VACUUM ANALYZE dl_jobs")
        before = sum(map(cpu_sec_of, workers)), place.cpu_sec(), _wal_bytes(cursor)
        cursor.execute(_FILL + "; SELECT clock_timestamp()", (scale.jobs,))
        (began,) = cursor.fetchone() or (None,)
        for status in ("queued", "running"):
            probe = f"SELECT 1 FROM dl_jobs WHERE queue = 'bench' AND status = '{status}' LIMIT 1"
            while _has_row(cursor, probe):
                time.sleep(0.05)
        after = sum(map(cpu_sec_of, workers)), place.cpu_sec(), _wal_bytes(cursor)
        cursor.execute(
            "SELECT count(*), extract(epoch FROM max(finished_at) - %(began)s)::float8,"
            " extract(epoch FROM min(started_at) - %(began)s)::float8 FROM dl_jobs"
            " WHERE lock_key LIKE 'k%%' AND status = 'succeeded' AND attempt = 1",
            {"began": began},
        )
        done, seconds, first = cursor.fetchone() or (0, 1.0, 1.0)
    assert done == scale.jobs, f"{side.name}: {done} of {scale.jobs} succeeded at the first attempt"
    client, server, wal = ((b - a) / scale.jobs for a, b in zip(before, after, strict=True))
    label = f"drain, {processes} process{'es' if processes > 1 else ''}"
    return {
        f"{label}, jobs/s": scale.jobs / seconds,
        f"{label}, client µs a job": client * 1e6,
        f"{label}, server µs a job": server * 1e6,
        f"{label}, WAL bytes a job": wal,
        f"{label}, first job after ms": first * 1e3,
    }


# ── pick-up ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def pick_up(side: Side, place: Place, scale: Scale) -> Figures:
    """Insert jobs one by one for an idle process; from the INSERT's response to the first line of the task."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder, migrated_database(side, place.dsn) as dsn:
        pipe = Path(folder) / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        with (
            running_workers(side, dsn, 1, "bench:4", BENCH_PIPE=str(pipe)) as workers,
            closing(_session(dsn)) as session,
        ):
            for task, label in (("note", "no-op"), ("note_30_ms", "task of 30 ms")):
                before, waits = sum(map(cpu_sec_of, workers)) + place.cpu_sec(), []
                for number in range(scale.pick_ups):
                    time.sleep(random.uniform(0.05, 0.08))
                    waits.append(_pick_up_ms(session, reader, task, number))
                taken = sum(map(cpu_sec_of, workers)) + place.cpu_sec() - before
                figures[f"pick-up of a {label}, p50 ms"] = median(waits)
                if task == "note":
                    figures[f"pick-up of a {label}, p95 ms"] = quantile(waits, 95)
                    figures["one job that comes alone, µs CPU in all"] = taken / scale.pick_ups * 1e6
        os.close(reader)
    return figures


def _pick_up_ms(session: Any, reader: int, task: str, number: int) -> float:
    with session.cursor() as cursor:
        cursor.execute("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('bench', %s, %s)", (task, f"p{number}"))
    inserted = time.monotonic_ns()
    assert select.select([reader], [], [], 30)[0], "no job started within 30 s"
    return (int.from_bytes(os.read(reader, 8), "big") - inserted) / 1e6


# ── enqueueing by SQL ───────────────────────────────────────────────────────────────────────────────────────────────


def enqueue(side: Side, place: Place, scale: Scale) -> Figures:
    """Enqueue by SQL, next to a worker process of another queue: without any, each commit sends a notification."""
    with (
        migrated_database(side, place.dsn) as dsn,
        running_workers(side, dsn, 1, "idle:2"),
        closing(_session(dsn)) as session,
    ):
        count = scale.statements
        many = max(count // 20, 5)
        figures = {
            "INSERT of one, server µs": _server_us(session, _INSERT, count),
            "dl_enqueue, server µs": _server_us(session, _ENQUEUE, count),
        }
        for label, statement in (("INSERT of 1,000", _INSERT_1000), ("dl_enqueue_many of 1,000", _ENQUEUE_1000)):
            _server_us(session, statement, 1)
            began = time.perf_counter()
            us = _server_us(session, statement, many)
            figures[f"{label}, rows/s"] = many * 1_000 / (time.perf_counter() - began)
            figures[f"{label}, server µs a row"] = us / 1_000
    return figures


def _server_us(session: Any, statement: str, count: int) -> float:
    """The CPU time of the session's server process for one statement with its commit."""
    process = session.get_backend_pid()
    with session.cursor() as cursor:
        for number in range(max(count // 20, 1)):
            cursor.execute(statement, (f"w{time.monotonic_ns()}-{number}",))
        before = _run_ns(process)
        for number in range(count):
            cursor.execute(statement, (f"{time.monotonic_ns()}-{number}",))
        return (_run_ns(process) - before) / count / 1e3


def _run_ns(pid: int) -> int:
    """The nanoseconds that a process has run; the system's other count has steps of 10 ms."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0])


# ── HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def http(side: Side, place: Place, scale: Scale) -> Figures:
    figures: Figures = {}
    batch = json.dumps({"jobs": [_JOB | {"lock_key": f"b{n}"} for n in range(BATCH_JOBS)]}).encode()
    with (
        migrated_database(side, place.dsn) as dsn,
        running_workers(side, dsn, 1, "idle:2"),
        running_service(side, dsn, HTTP_PROCESSES) as (port, service),
    ):
        job = query_value(
            dsn, "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('x', 'empty', 'k') RETURNING job_id::text"
        )
        connections = HTTP_PROCESSES * HTTP_THREADS
        for label, jobs, request in (
            ("trigger", 1, Request("trigger", "", "POST", "/api/v1/jobs/trigger", json.dumps(_JOB).encode())),
            ("status", 1, Request("status", "", "GET", f"/api/v1/jobs/{job[0][0]}/status")),
            ("batch of 1,000", BATCH_JOBS, Request("batch", "", "POST", "/api/v1/jobs/batch", batch)),
        ):
            at_a_time = connections if jobs == 1 else HTTP_PROCESSES
            run_own_client(request, port, at_a_time, 0.5)  # connections and plans
            before, began = (cpu_sec_of(service), place.cpu_sec()), time.perf_counter()
            load = run_own_client(request, port, at_a_time, scale.http_sec)
            count = load.per_sec * (time.perf_counter() - began) * jobs
            of = "a job" if jobs > 1 else "a request"
            figures[f"{label}, {'jobs' if jobs > 1 else 'requests'}/s"] = load.per_sec * jobs
            figures[f"{label}, Python µs {of}"] = (cpu_sec_of(service) - before[0]) / count * 1e6
            figures[f"{label}, server µs {of}"] = (place.cpu_sec() - before[1]) / count * 1e6
    return figures


# ── a service with nothing to do ────────────────────────────────────────────────────────────────────────────────────


def service(side: Side, place: Place, scale: Scale) -> Figures:
    """Start `serve` with two workers, and leave it alone."""
    with migrated_database(side, place.dsn) as dsn, tempfile.TemporaryDirectory() as folder:
        port = free_port()
        workers = json.dumps([{"queue": "etl.default", "concurrency": 2}])
        began = time.perf_counter()
        process = side.start(dsn, "dataloader", "serve", folder=Path(folder), settings=_serve_settings(port, workers))
        try:
            wait_until_healthy(port, process)
            healthy = time.perf_counter() - began
            measured = psutil.Process(process.pid)
            start_cpu = cpu_sec_of(measured)
            time.sleep(5)  # what a service does once after its start
            before = cpu_sec_of(measured), place.cpu_sec(), _commits(place, dsn)
            began = time.perf_counter()
            time.sleep(scale.idle_sec)
            taken = time.perf_counter() - began
            after = cpu_sec_of(measured), place.cpu_sec(), _commits(place, dsn)
            memory = sum(p.memory_full_info().pss for p in (measured, *measured.children(recursive=True)))
        finally:
            end(process)
    own, server, commits = ((b - a) / taken for a, b in zip(before, after, strict=True))
    return {
        "start to /health, ms": healthy * 1e3,
        "start to /health, CPU ms": start_cpu * 1e3,
        "memory of an idle service, MiB": memory / 2**20,
        "idle service, commits/s": commits,
        "idle service, Python, % of a core": own * 100,
        "idle service, server, % of a core": server * 100,
    }


def _serve_settings(port: int, workers: str) -> dict[str, str]:
    return {"APP_PORT": str(port), "WORKERS_JSON": workers}


def _commits(place: Place, dsn: str) -> int:
    """Commits of the database; its sessions report them within seconds."""
    name = psycopg2.extensions.parse_dsn(dsn)["dbname"]
    return int(query_value(place.dsn, "SELECT xact_commit FROM pg_stat_database WHERE datname = %s", name)[0][0])


# ── small things ────────────────────────────────────────────────────────────────────────────────────────────────────


def _session(dsn: str) -> Any:
    session = psycopg2.connect(dsn)
    session.autocommit = True
    return session


def _has_row(cursor: Any, statement: str) -> bool:
    cursor.execute(statement)
    return cursor.fetchone() is not None


def _wal_bytes(cursor: Any) -> float:
    cursor.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8")
    return float(cursor.fetchone()[0])


MEASURES: dict[str, Callable[[Side, Place, Scale], Figures]] = {
    "drain1": lambda side, place, scale: drain(side, place, scale, 1),
    "drain2": lambda side, place, scale: drain(side, place, scale, 2),
    "pick-up": pick_up,
    "enqueue": enqueue,
    "http": http,
    "service": service,
}
