"""Overloads the API for minutes while threads run jobs, and checks responses, memory and connections.

Takes about 5 minutes.

Uses real processes: `dataloader serve` with its worker pool, PostgreSQL, and clients that send the next request as soon
as they have a response. Prints requests per second, latencies and status codes; the growth of memory after the first
fifth of the time; and the largest number of connections with its budget. The exit code is 1 if a response was neither
correct nor a 429 or 503 with Retry-After, if memory kept growing, or if the budget was exceeded.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

import psutil  # type: ignore[import-untyped]

from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import format_table, make_parser, quantile

API_CONNECTIONS = 16  # the defaults of PG_POOL_SIZE + PG_MAX_OVERFLOW
WORKER_CONNECTIONS = 8  # the connections of the worker pool, with room for those that are being replaced
MB = 1024 * 1024
MAX_SLOPE_MB_PER_HOUR = 30.0  # a service without a leak may show this slope over some minutes
NOISE_MB = 15.0  # fluctuation of the heap
_EXPECTED_STATUSES = frozenset({200, 404, 409})
_BUSY_STATUSES = frozenset({429, 503})


@dataclass
class ClientResults:
    """The responses of one client."""

    seconds: list[float] = field(default_factory=list)
    status_counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add_response(self, seconds: float, status: int, retry_after: str | None, request: str) -> None:
        self.seconds.append(seconds)
        self.status_counts[str(status)] += 1
        if status in _BUSY_STATUSES and retry_after is None:
            self.faults.append(f"{status} without Retry-After to {request}")
        elif status not in _EXPECTED_STATUSES | _BUSY_STATUSES:
            self.faults.append(f"{status} to {request}")


@dataclass(frozen=True)
class Sample:
    at: float
    rss: int
    connections: int


@dataclass(frozen=True)
class Report:
    """The result of a run."""

    seconds: float
    results: ClientResults
    samples: Sequence[Sample]
    finished_jobs: int
    unfinished: Sequence[str]
    budget: int

    @property
    def growth_mb_per_hour(self) -> float:
        """Return the slope by least squares, without the first fifth of the time."""
        late = [sample for sample in self.samples if sample.at >= self.seconds / 5]
        mean_at = sum(sample.at for sample in late) / len(late)
        mean_rss = sum(sample.rss for sample in late) / len(late)
        spread = sum((sample.at - mean_at) ** 2 for sample in late)
        joint = sum((sample.at - mean_at) * (sample.rss - mean_rss) for sample in late)
        return 3600 * joint / spread / MB if spread else 0.0

    @property
    def growth_mb(self) -> float:
        """Return the growth over the measured time according to the slope."""
        return self.growth_mb_per_hour * self.seconds * 4 / 5 / 3600

    @property
    def max_connections(self) -> int:
        return max(sample.connections for sample in self.samples)

    def faults(self) -> list[str]:
        messages = [f"{times} × {fault}" for fault, times in Counter(self.results.faults).most_common(10)]
        if self.growth_mb_per_hour > MAX_SLOPE_MB_PER_HOUR and self.growth_mb > NOISE_MB:
            messages.append(f"memory grew by {self.growth_mb_per_hour:.0f} MB per hour, {self.growth_mb:.0f} MB in all")
        if self.max_connections > self.budget:
            messages.append(f"{self.max_connections} connections, more than the budget of {self.budget}")
        if self.unfinished:
            messages.append(f"{len(self.unfinished)} jobs did not end: {'; '.join(self.unfinished[:5])}")
        if not self.finished_jobs:
            messages.append("no job succeeded")
        return messages

    def __str__(self) -> str:
        taken = sorted(self.results.seconds)
        answers = ", ".join(f"{status}: {times:,}" for status, times in sorted(self.results.status_counts.items()))
        first, last = self.samples[0], self.samples[-1]
        return format_table(
            ("soak", "measured"),
            [
                ("seconds", round(self.seconds, 1)),
                ("requests a second", round(len(taken) / self.seconds, 1)),
                *((f"p{percent}, ms", round(quantile(taken, percent) * 1000, 1)) for percent in (50, 95, 99)),
                ("slowest, ms", round(taken[-1] * 1000, 1)),
                ("answers", answers),
                ("RSS at the start, MB", round(first.rss / MB, 1)),
                ("RSS at the end, MB", round(last.rss / MB, 1)),
                ("RSS slope after the first fifth, MB an hour", round(self.growth_mb_per_hour, 1)),
                ("connections at most", self.max_connections),
                ("connections in the budget", self.budget),
                ("jobs done", self.finished_jobs),
                ("jobs a second", round(self.finished_jobs / self.seconds, 1)),
            ],
        )


class Client(threading.Thread):
    """Asks, waits for the answer, and asks again."""

    def __init__(self, port: int, seed: int, stopping: threading.Event) -> None:
        super().__init__(name=f"client-{seed}", daemon=True)
        self.results = ClientResults()
        self._port, self._stopping = port, stopping
        self._random = random.Random(seed)
        self._jobs: list[str] = []

    def run(self) -> None:
        connection = self._connect()
        while not self._stopping.is_set():
            method, path, body = self._next_request()
            began = time.perf_counter()
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
                response = connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                if not self._stopping.is_set():
                    self.results.faults.append(f"{type(error).__name__} from {path.partition('?')[0]}")
                connection.close()
                connection = self._connect()
                continue
            what = f"{method} {path.rpartition('/')[2].partition('?')[0]}"
            self.results.add_response(
                time.perf_counter() - began, response.status, response.headers["Retry-After"], what
            )
            self._remember_job(response.status, path, text)
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)

    def _next_request(self) -> tuple[str, str, str | None]:
        turn = self._random.random()
        if turn < 0.15 or not self._jobs:
            key = f"key-{self._random.randrange(1000)}"
            args = {"sleep1": 0.05, "sleep2": 0.05, "sleep3": 0.05, "padding": "x" * self._random.randrange(500)}
            job = {"queue": "soak", "task": "noop", "lock_key": key, "args": args}
            return "POST", "/api/v1/jobs/trigger", json.dumps(job)
        known = self._random.choice(self._jobs)
        if turn < 0.70:
            return "GET", f"/api/v1/jobs/{known}/status", None
        if turn < 0.80:
            return "GET", "/health", None
        if turn < 0.90:
            return "GET", "/api/v1/jobs?limit=20", None
        if turn < 0.95:
            return "GET", f"/api/v1/jobs/{known}/events", None
        return "POST", f"/api/v1/jobs/{known}/cancel", None

    def _remember_job(self, status: int, path: str, text: bytes) -> None:
        if path.endswith("/trigger") and status == http.client.OK:
            self._jobs = [*self._jobs[-50:], json.loads(text)["job_id"]]


def soak(server_dsn: str, *, seconds: float, clients: int, threads: int) -> Report:
    with fresh_database(server_dsn, "soak") as dsn, _service(dsn, threads) as (port, service):
        over = threading.Event()
        crowd = [Client(port, seed, over) for seed in range(clients)]
        began = time.monotonic()
        for client in crowd:
            client.start()
        samples = list(_sample_service(dsn, service, began, seconds))
        over.set()
        for client in crowd:
            client.join(70)
        took = time.monotonic() - began
        unfinished = _wait_for_unfinished(dsn, 60 + seconds)
        ((done,),) = query_value(dsn, "SELECT count(*) FROM dl_jobs WHERE status = 'succeeded'")
        seen = ClientResults()
        for client in crowd:
            seen.seconds += client.results.seconds
            seen.status_counts += client.results.status_counts
            seen.faults += client.results.faults
        return Report(took, seen, samples, done, unfinished, API_CONNECTIONS + WORKER_CONNECTIONS)


@contextmanager
def _service(dsn: str, threads: int) -> Iterator[tuple[int, psutil.Process]]:
    port = _free_port()
    ours = ("PG", "DL_", "APP_", "WORKERS_", "LOG_", "METRIC_", "AUDIT_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {
        "DL_DB_DSN": dsn,
        "APP_PORT": str(port),
        "DL_PIPELINES": "dataloader.pipelines.noop",
        "WORKERS_JSON": json.dumps([{"queue": "soak", "concurrency": threads}]),
    }
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, "-m", "app", "serve"], env=env, stdout=output, stderr=output)
        try:
            _until_ready(port, process)
            yield port, psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with (
            suppress(OSError, http.client.HTTPException),
            closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection,
        ):
            connection.request("GET", "/status")
            if connection.getresponse().status == http.client.OK:
                return
        time.sleep(0.1)
    raise SystemExit(f"the service was not ready within 60 s; its exit code is {process.poll()}")


def _sample_service(dsn: str, service: psutil.Process, started_at: float, seconds: float) -> Iterator[Sample]:
    """Sample once a second, and at least twice."""
    statement = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'dataloader%'"
    )
    while True:
        at = time.monotonic() - started_at
        ((connections,),) = query_value(dsn, statement)
        yield Sample(at, _rss(service), connections)
        if at >= seconds:
            return
        time.sleep(min(1.0, max(0.0, seconds - at) + 0.01))


def _rss(service: psutil.Process) -> int:
    total = 0
    for process in (service, *service.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def _wait_for_unfinished(dsn: str, seconds: float) -> list[str]:
    """Wait until all jobs have ended; return a description of each that has not."""
    statement = (
        "SELECT concat_ws(' ', job_id, status, wait_state, 'attempt', attempt, 'key', lock_key, 'cancel',"
        " cancel_requested, 'due in', available_at - now()) FROM dl_jobs WHERE status IN ('queued', 'running')"
    )
    deadline = time.monotonic() + seconds
    while True:
        left = [row[0] for row in query_value(dsn, statement)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__name__)
    parser.add_argument("--seconds", type=float, default=300, help="duration (default 300)")
    parser.add_argument("--clients", type=int, default=64, help="concurrent clients (default 64)")
    parser.add_argument("--threads", type=int, default=50, help="worker threads (default 50)")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    with benchmark_server() as (dsn, _):
        print(describe_environment(dsn), flush=True)
        report = soak(dsn, seconds=options.seconds, clients=options.clients, threads=options.threads)
    print(report)
    for fault in report.faults():
        print(f"FAULT: {fault}")
    return 1 if report.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
