"""What a request costs: trigger, status and health, against a Flask that does nothing.

Takes about 5 minutes.

gunicorn serves, with 1, 2 and 3 processes of 8 threads: a Flask app with one route that answers a constant; the same
with one plain INSERT of a job, which is the least that a trigger can do; and the API as it is shipped, without workers
in its processes, its log lines going to a file. A worker process lives in the database, idle, on another queue: where
none lives at all each insert rings, and commits that ring go to the disk one by one. All servers of a round are up; one
of them is asked at a time, by wrk where there is one, else by a client of our own that takes more of the machine from
the server it asks.

A ratio is requests a second over those of the Flask that does nothing, in the same rounds.
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
from benchmarks.place import ask, cpu_of, environment, fresh_database, some_server
from benchmarks.rounds import Cell, in_turn, median, options, table, times

THREADS = 8
JOB = {"queue": "bench", "task": "elsewhere", "lock_key": "bench", "args": {"date": "2026-01-31", "rows": [1, 2, 3]}}
WANTED = 0.55  # of the Flask that does nothing, for a trigger at 2 × 8
ROOT = Path(__file__).parent.parent
PATIENCE = 30.0


@dataclass(frozen=True)
class Question:
    """What is asked of which server."""

    name: str
    server: str
    method: str
    path: str
    body: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json"} if self.body else {}


@dataclass(frozen=True)
class Heard:
    a_second: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Taken:
    """What was heard, and what it cost both sides of the database connection, in microseconds of CPU a request."""

    heard: Heard
    python: float
    server: float | None  # None: the server is not ours to look at


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__name__, rounds=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="for which each question is asked in each round")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 3], help="of gunicorn (default 1 2 3)")
    parser.add_argument("--client", choices=["wrk", "own"], default="wrk" if shutil.which("wrk") else "own")
    parser.add_argument("--files", action="store_true", help="with the metrics file and the audit file switched on")
    asked = parser.parse_args(argv)
    client = asked_by_wrk if asked.client == "wrk" else asked_by_us
    with some_server() as (server_dsn, server):
        print(environment(server_dsn))
        rows: list[Sequence[Cell]] = []
        for processes in asked.processes:
            with fresh_database(server_dsn) as dsn, servers(dsn, processes, files=asked.files) as up:
                sides = {
                    one.name: partial(
                        taken,
                        partial(client, one, up[one.server].port, processes * THREADS, asked.seconds),
                        up[one.server].process,
                        server,
                    )
                    for one in questions(dsn)
                }
                all_taken = in_turn(sides, asked.rounds, warm_up=1, tell=lambda _, one: f"{one.heard.a_second:,.0f}/s")
                check(dsn)
            rows += lines(processes, all_taken)
    print(f"asked by {asked.client}, {asked.rounds} rounds in turn of {asked.seconds:g} s, medians")
    headings = ["requests/s", "of no-op", "p50 ms", "p99 ms", "CPU µs: Python", "PostgreSQL"]
    print(table(["processes × threads, question", *headings], rows))
    print(f"\nwanted: a trigger at 2 × {THREADS} is at least {WANTED} of the no-op")


def questions(dsn: str) -> list[Question]:
    ((job_id,),) = ask(
        dsn, "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('looked at', 'elsewhere', 'k') RETURNING job_id::text"
    )
    body = json.dumps(JOB).encode()
    return [
        Question("Flask, no-op", "noop", "GET", "/noop"),
        Question("Flask, one INSERT", "noop", "POST", "/insert", body),
        Question("POST trigger", "ours", "POST", "/api/v1/jobs/trigger", body),
        Question("GET status", "ours", "GET", f"/api/v1/jobs/{job_id}/status"),
        Question("GET /health", "ours", "GET", "/health"),
    ]


def check(dsn: str) -> None:
    """Every answer was a job."""
    ((queued, journal),) = ask(
        dsn, "SELECT (SELECT count(*) FROM dl_jobs), (SELECT count(*) FROM dl_job_events WHERE kind = 'queued')"
    )
    assert queued > 1, "no job came into the queue"
    assert journal == queued, f"{queued} jobs and {journal} lines of journal"


def taken(ask_it: Callable[[], Heard], process: psutil.Process, server: psutil.Process | None) -> Taken:
    before = cpu_of(process), cpu_of(server) if server else 0.0
    began = time.perf_counter()
    heard = ask_it()
    requests = heard.a_second * (time.perf_counter() - began)
    python = (cpu_of(process) - before[0]) / requests * 1e6
    return Taken(heard, python, (cpu_of(server) - before[1]) / requests * 1e6 if server else None)


def lines(processes: int, rounds: dict[str, list[Taken]]) -> Iterator[Sequence[Cell]]:
    yardstick = median([one.heard.a_second for one in rounds["Flask, no-op"]])
    for name, all_taken in rounds.items():
        speed, p50, p99 = (
            median(values)
            for values in zip(*((t.heard.a_second, t.heard.p50_ms, t.heard.p99_ms) for t in all_taken), strict=True)
        )
        servers_share = [one.server for one in all_taken if one.server is not None]
        yield (
            f"{processes} × {THREADS}, {name}", speed, times(speed / yardstick), p50, p99,
            round(median([one.python for one in all_taken])),
            round(median(servers_share)) if servers_share else None,
        )  # fmt: skip


# ── the servers ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Up:
    port: int
    process: psutil.Process


@contextmanager
def servers(dsn: str, processes: int, *, files: bool) -> Iterator[dict[str, Up]]:
    """By name."""
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
            "noop": ([*plain, *shape, "benchmarks.http:noop()"], {"BENCH_DSN": dsn}),
            "ours": ([*shape, "wsgi:app"], ours),
        }
        idle = worker(dsn)
        ends.callback(end, idle)
        up: dict[str, Up] = {}
        for name, (arguments, extra) in commands.items():
            port = free_port()
            command = [sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}", *arguments]
            log = ends.enter_context((folder / f"{name}.log").open("wb"))
            environ = {name: value for name, value in os.environ.items() if not name.startswith("DL_")} | extra
            started = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
            ends.callback(end, started)
            until_up(port, "/noop" if name == "noop" else "/status", started, folder / f"{name}.log")
            up[name] = Up(port, psutil.Process(started.pid))
        yield up


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def until_up(port: int, path: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
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
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def noop() -> Flask:
    """The yardstick, made by gunicorn in each of its processes."""
    app = Flask("noop")
    pool = ThreadSafeConnectionPool(maxconn=THREADS, minconn=0, dsn=os.environ["BENCH_DSN"])

    @app.get("/noop")
    def nothing() -> dict[str, str]:
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


def asked_by_wrk(question: Question, port: int, connections: int, seconds: float) -> Heard:
    with tempfile.TemporaryDirectory(prefix="dl-bench-wrk-") as folder:
        script = Path(folder) / "ask.lua"
        headers = "".join(f'wrk.headers["{name}"] = "{value}"\n' for name, value in question.headers.items())
        script.write_text(
            f'wrk.method = "{question.method}"\n{headers}'
            + (f"wrk.body = [==[{question.body.decode()}]==]\n" if question.body else "")
            + 'done = function(s, l, r) io.write(string.format("HEARD %d %d %f %f %d\\n", s.requests, s.duration,'
            " l:percentile(50), l:percentile(99), s.errors.status + s.errors.connect + s.errors.read"
            " + s.errors.write + s.errors.timeout)) end\n"
        )
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(script)]
        told = subprocess.run(
            [*command, f"http://127.0.0.1:{port}{question.path}"],
            capture_output=True, text=True, check=True, timeout=seconds + PATIENCE,
        )  # fmt: skip
    found = re.search(r"HEARD (\d+) (\d+) ([\d.]+) ([\d.]+) (\d+)", told.stdout)
    assert found, f"wrk said nothing of use: {told.stdout}{told.stderr}"
    assert found[5] == "0", f"{question.name}: {found[5]} of {found[1]} requests failed"
    return Heard(int(found[1]) / int(found[2]) * 1e6, float(found[3]) / 1000, float(found[4]) / 1000)


def asked_by_us(question: Question, port: int, connections: int, seconds: float) -> Heard:
    """One thread, many connections, each with one request under way."""
    head = "".join(f"{name}: {value}\r\n" for name, value in question.headers.items())
    first = f"{question.method} {question.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(question.body)}\r\n"
    message = f"{first}{head}\r\n".encode() + question.body
    latencies: list[float] = []
    with ExitStack() as ends:
        ready = ends.enter_context(selectors.DefaultSelector())
        sent: dict[socket.socket, float] = {}
        for _ in range(connections):
            one = ends.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
            ready.register(one, selectors.EVENT_READ, bytearray())
            sent[one] = time.perf_counter()
            one.sendall(message)
        began = time.perf_counter()
        until = began + seconds
        while time.perf_counter() < until or not latencies:
            answers = ready.select(timeout=PATIENCE)
            assert answers, f"{question.name}: no answer within {PATIENCE:.0f} s"
            for key, _ in answers:
                one = key.fileobj  # type: ignore[assignment]
                key.data.extend(one.recv(65_536))
                if not whole(key.data, question.name):
                    continue
                key.data.clear()
                now = time.perf_counter()
                latencies.append((now - sent[one]) * 1000)
                sent[one] = now
                one.sendall(message)
        took = time.perf_counter() - began
    latencies.sort()
    return Heard(len(latencies) / took, median(latencies), latencies[int(len(latencies) * 0.99)])


def whole(received: bytearray, name: str) -> bool:
    head, gap, body = bytes(received).partition(b"\r\n\r\n")
    if not gap:
        assert received, f"{name}: the server closed the connection"
        return False
    assert head.startswith(b"HTTP/1.1 200"), f"{name}: {head[:200]!r} {body[:500]!r}"
    length = re.search(rb"^content-length: (\d+)", head, re.IGNORECASE | re.MULTILINE)
    assert length, f"{name}: an answer without a length: {head!r}"
    return len(body) >= int(length[1])


if __name__ == "__main__":
    main()
