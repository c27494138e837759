"""Measures trigger, status and health requests, compared with a Flask app that does nothing.

Takes about 5 minutes.

gunicorn serves with 1, 2 and 3 processes of 8 threads each: a Flask app with one constant route; the same app with one
plain INSERT of a job, the minimum that a trigger must do; and the API as shipped, without workers in its processes and
with its log in a file. An idle worker process serves another queue: without any live worker each INSERT sends a
notification, and such commits are serialised. All servers of a round run; one of them is loaded at a time, by wrk if
installed, else by a client of this benchmark, which takes more CPU from the server.

A ratio is requests per second divided by those of the empty Flask app in the same rounds.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from flask import Flask
from psycopg2.extras import Json
from psycopg2_pool import ThreadSafeConnectionPool

from benchmarks.enqueue import worker
from benchmarks.place import benchmark_server, cpu_sec_of, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, median, run_rounds

THREADS = 8
JOB = {"queue": "bench", "task": "elsewhere", "lock_key": "bench", "args": {"date": "2026-01-31", "rows": [1, 2, 3]}}
MIN_INSERT_RATIO = 0.6  # of a Flask with one INSERT, for a trigger at 2 × 8
ROOT = Path(__file__).parent.parent
STARTUP_TIMEOUT_SEC = 30.0


@dataclass(frozen=True)
class Request:
    """An HTTP request to one of the servers."""

    name: str
    server: str
    method: str
    path: str
    body: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json"} if self.body else {}


@dataclass(frozen=True)
class LoadResult:
    per_sec: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class RequestCosts:
    """The rate of one measurement, and its CPU time per request on both sides of the database connection."""

    load: LoadResult
    python_cpu_us: float
    server_cpu_us: float | None  # None: the server runs elsewhere


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each request's load in a round")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[1, 2, 3], help="gunicorn processes (default 1 2 3)"
    )
    parser.add_argument("--client", choices=["wrk", "own"], default="wrk" if shutil.which("wrk") else "own")
    parser.add_argument("--files", action="store_true", help="write the metrics and audit files")
    options = parser.parse_args(argv)
    client = run_wrk if options.client == "wrk" else run_own_client
    with benchmark_server() as (server_dsn, server):
        print(describe_environment(server_dsn))
        rows: list[Sequence[Cell]] = []
        for processes in options.processes:
            with fresh_database(server_dsn) as dsn, servers(dsn, processes, files=options.files) as up:
                sides = {
                    request.name: partial(
                        measure,
                        partial(client, request, up[request.server].port, processes * THREADS, options.seconds),
                        up[request.server].process,
                        server,
                    )
                    for request in all_requests(dsn)
                }
                all_taken = run_rounds(
                    sides, options.rounds, warm_up=1, log=lambda _, cost: f"{cost.load.per_sec:,.0f}/s"
                )
                check_jobs_inserted(dsn)
            rows += table_rows(processes, all_taken)
    print(f"client {options.client}, {options.rounds} rounds in turn of {options.seconds:g} s, medians")
    headings = ["requests/s", "of no-op", "p50 ms", "p99 ms", "CPU µs: Python", "PostgreSQL"]
    print(format_table(["processes × threads, request", *headings], rows))
    print(f"\ngoal: a trigger at 2 × {THREADS} has at least {MIN_INSERT_RATIO} × the rate of the Flask with one INSERT")


def all_requests(dsn: str) -> list[Request]:
    ((job_id,),) = query_value(
        dsn, "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('looked at', 'elsewhere', 'k') RETURNING job_id::text"
    )
    body = json.dumps(JOB).encode()
    return [
        Request("Flask, no-op", "noop", "GET", "/noop"),
        Request("Flask, one INSERT", "noop", "POST", "/insert", body),
        Request("POST trigger", "ours", "POST", "/api/v1/jobs/trigger", body),
        Request("GET status", "ours", "GET", f"/api/v1/jobs/{job_id}/status"),
        Request("GET /health", "ours", "GET", "/health"),
    ]


def check_jobs_inserted(dsn: str) -> None:
    """Check that every trigger stored a job with its event."""
    ((queued, events),) = query_value(
        dsn, "SELECT (SELECT count(*) FROM dl_jobs), (SELECT count(*) FROM dl_job_events WHERE kind = 'queued')"
    )
    assert queued > 1, "no job was enqueued"
    assert events == queued, f"{queued} jobs and {events} queued events"


def measure(run_load: Callable[[], LoadResult], process: psutil.Process, server: psutil.Process | None) -> RequestCosts:
    before = cpu_sec_of(process), cpu_sec_of(server) if server else 0.0
    began = time.perf_counter()
    load = run_load()
    requests = load.per_sec * (time.perf_counter() - began)
    python = (cpu_sec_of(process) - before[0]) / requests * 1e6
    return RequestCosts(load, python, (cpu_sec_of(server) - before[1]) / requests * 1e6 if server else None)


def table_rows(processes: int, rounds: dict[str, list[RequestCosts]]) -> Iterator[Sequence[Cell]]:
    yardstick = median([cost.load.per_sec for cost in rounds["Flask, no-op"]])
    for name, all_taken in rounds.items():
        speed, p50, p99 = (
            median(values)
            for values in zip(*((t.load.per_sec, t.load.p50_ms, t.load.p99_ms) for t in all_taken), strict=True)
        )
        servers_share = [cost.server_cpu_us for cost in all_taken if cost.server_cpu_us is not None]
        yield (
            f"{processes} × {THREADS}, {name}", speed, format_ratio(speed / yardstick), p50, p99,
            round(median([cost.python_cpu_us for cost in all_taken])),
            round(median(servers_share)) if servers_share else None,
        )  # fmt: skip


# ── the servers ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RunningServer:
    port: int
    process: psutil.Process


@contextmanager
def servers(dsn: str, processes: int, *, files: bool) -> Iterator[dict[str, RunningServer]]:
    """Start all servers of a round; yield them by name."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="dl-bench-http-")))
        (folder / "no.conf.py").touch()
        ours = {"DL_DB_DSN": dsn, "WORKERS_JSON": "[]", "DL_LOG_FORMAT": "json"}
        if files:
            ours |= {"METRIC_PATH": str(folder), "AUDIT_LOG_PATH": str(folder)}
        shape = ["--workers", str(processes), "--threads", str(THREADS), "--worker-connections", "1000"]
        plain = [
            "--config",
            str(folder / "no.conf.py"),
            "--worker-class",
            "gthread",
            "--keep-alive",
            "5",
            "--no-control-socket",
        ]
        commands = {
            "noop": ([*plain, *shape, "benchmarks.http:make_noop_app()"], {"BENCH_DSN": dsn}),
            "ours": ([*shape, "wsgi:app"], ours),
        }
        idle = worker(dsn)
        ends.callback(end, idle)
        up: dict[str, RunningServer] = {}
        for name, (options, extra) in commands.items():
            port = free_port()
            command = [sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}", *options]
            log = ends.enter_context((folder / f"{name}.log").open("wb"))
            environ = {name: value for name, value in os.environ.items() if not name.startswith("DL_")} | extra
            started = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
            ends.callback(end, started)
            wait_until_up(port, "/noop" if name == "noop" else "/status", started, folder / f"{name}.log")
            up[name] = RunningServer(port, psutil.Process(started.pid))
        yield up


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_until_up(port: int, path: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + STARTUP_TIMEOUT_SEC
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not come up:\n{log.read_text()[-2000:]}") from None
            time.sleep(0.05)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STARTUP_TIMEOUT_SEC)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def make_noop_app() -> Flask:
    """Return the baseline app; gunicorn calls this in each of its processes."""
    app = Flask("noop")
    pool = ThreadSafeConnectionPool(maxconn=THREADS, minconn=0, dsn=os.environ["BENCH_DSN"])

    @app.get("/noop")
    def respond_empty() -> dict[str, str]:
        return {"status": "healthy"}

    @app.post("/insert")
    def insert() -> dict[str, str]:
        connection = pool.getconn()
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO dl_jobs (queue, task, lock_key, args) VALUES (%s, %s, %s, %s) RETURNING job_id::text",
                    (JOB["queue"], JOB["task"], JOB["lock_key"], Json(JOB["args"])),
                )
                row = cursor.fetchone()
                return {"job_id": row[0] if row else "", "status": "queued"}
        finally:
            pool.putconn(connection)

    return app


# ── the clients ─────────────────────────────────────────────────────────────────────────────────────────────────────


def run_wrk(request: Request, port: int, connections: int, seconds: float) -> LoadResult:
    with tempfile.TemporaryDirectory(prefix="dl-bench-wrk-") as folder:
        script = Path(folder) / "request.lua"
        headers = "".join(f'wrk.headers["{name}"] = "{value}"\n' for name, value in request.headers.items())
        script.write_text(
            f'wrk.method = "{request.method}"\n{headers}'
            + (f"wrk.body = [==[{request.body.decode()}]==]\n" if request.body else "")
            + 'done = function(s, l, r) io.write(string.format("RESULT %d %d %f %f %d\\n", s.requests, s.duration,'
            " l:percentile(50), l:percentile(99), s.errors.status + s.errors.connect + s.errors.read"
            " + s.errors.write + s.errors.timeout)) end\n"
        )
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(script)]
        completed = subprocess.run(
            [*command, f"http://127.0.0.1:{port}{request.path}"],
            capture_output=True, text=True, check=True, timeout=seconds + STARTUP_TIMEOUT_SEC,
        )  # fmt: skip
    result = re.search(r"RESULT (\d+) (\d+) ([\d.]+) ([\d.]+) (\d+)", completed.stdout)
    assert result, f"wrk printed no result: {completed.stdout}{completed.stderr}"
    assert result[5] == "0", f"{request.name}: {result[5]} of {result[1]} requests failed"
    return LoadResult(int(result[1]) / int(result[2]) * 1e6, float(result[3]) / 1000, float(result[4]) / 1000)


def run_own_client(request: Request, port: int, connections: int, seconds: float) -> LoadResult:
    """Load the server from one thread, with one request in flight per connection."""
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    first = f"{request.method} {request.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(request.body)}\r\n"
    message = f"{first}{head}\r\n".encode() + request.body
    latencies: list[float] = []
    with ExitStack() as ends:
        ready = ends.enter_context(selectors.DefaultSelector())
        sent: dict[socket.socket, float] = {}
        for _ in range(connections):
            client = ends.enter_context(socket.create_connection(("127.0.0.1", port), timeout=STARTUP_TIMEOUT_SEC))
            ready.register(client, selectors.EVENT_READ, bytearray())
            sent[client] = time.perf_counter()
            client.sendall(message)
        began = time.perf_counter()
        until = began + seconds
        while time.perf_counter() < until or not latencies:
            responses = ready.select(timeout=STARTUP_TIMEOUT_SEC)
            assert responses, f"{request.name}: no response within {STARTUP_TIMEOUT_SEC:.0f} s"
            for key, _ in responses:
                client = key.fileobj  # type: ignore[assignment]
                key.data.extend(client.recv(65_536))
                if not is_complete(key.data, request.name):
                    continue
                key.data.clear()
                now = time.perf_counter()
                latencies.append((now - sent[client]) * 1000)
                sent[client] = now
                client.sendall(message)
        took = time.perf_counter() - began
    latencies.sort()
    return LoadResult(len(latencies) / took, median(latencies), latencies[int(len(latencies) * 0.99)])


def is_complete(received: bytearray, name: str) -> bool:
    head, gap, body = bytes(received).partition(b"\r\n\r\n")
    if not gap:
        assert received, f"{name}: the server closed the connection"
        return False
    assert head.startswith(b"HTTP/1.1 200"), f"{name}: {head[:200]!r} {body[:500]!r}"
    length = re.search(rb"^content-length: (\d+)", head, re.IGNORECASE | re.MULTILINE)
    assert length, f"{name}: a response without a length: {head!r}"
    return len(body) >= int(length[1])


if __name__ == "__main__":
    main()
