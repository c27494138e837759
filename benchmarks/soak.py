"""How the service bears more than it was made for, and for how long: clients against the API while threads run jobs.

Real processes: `dataloader serve` with its worker pool, PostgreSQL, and clients that each ask again as soon as they
have their answer. Told at the end: requests a second, how long they took, what the answers were; whether memory grew
after the first fifth of the time; and the most connections there were, against their budget. The exit code is 1 if an
answer was neither right nor an honest 429 or 503 with Retry-After, if memory kept growing, or if a budget was passed.
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

from benchmarks.place import ask, environment, fresh_database, some_server
from benchmarks.rounds import options, quantile, table

API_CONNECTIONS = 16  # PG_POOL_SIZE + PG_MAX_OVERFLOW as they are by default
WORKER_CONNECTIONS = 8  # those of the pool's keepers, with room for the ones that are being replaced
MB = 1024 * 1024
FLAT = 30.0  # MB an hour: what the memory of a service that leaks nothing may still seem to grow in minutes
NOISE = 15.0  # MB: of the heap's own doing
_RIGHT = frozenset({200, 404, 409})
_BUSY = frozenset({429, 503})


@dataclass
class Seen:
    """What one client saw."""

    seconds: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def take(self, seconds: float, status: int, retry_after: str | None, what: str) -> None:
        self.seconds.append(seconds)
        self.answers[str(status)] += 1
        if status in _BUSY and retry_after is None:
            self.faults.append(f"{status} without Retry-After to {what}")
        elif status not in _RIGHT | _BUSY:
            self.faults.append(f"{status} to {what}")


@dataclass(frozen=True)
class Sample:
    at: float
    rss: int
    connections: int


@dataclass(frozen=True)
class Report:
    """What a soak has shown."""

    seconds: float
    seen: Seen
    samples: Sequence[Sample]
    done: int
    unfinished: Sequence[str]
    budget: int

    @property
    def slope(self) -> float:
        """MB an hour, by least squares, once everything had been used for a while."""
        late = [sample for sample in self.samples if sample.at >= self.seconds / 5]
        mean_at = sum(sample.at for sample in late) / len(late)
        mean_rss = sum(sample.rss for sample in late) / len(late)
        spread = sum((sample.at - mean_at) ** 2 for sample in late)
        joint = sum((sample.at - mean_at) * (sample.rss - mean_rss) for sample in late)
        return 3600 * joint / spread / MB if spread else 0.0

    @property
    def grown(self) -> float:
        """MB that the slope makes of the time it was measured in."""
        return self.slope * self.seconds * 4 / 5 / 3600

    @property
    def most_connections(self) -> int:
        return max(sample.connections for sample in self.samples)

    def faults(self) -> list[str]:
        found = [f"{times} × {fault}" for fault, times in Counter(self.seen.faults).most_common(10)]
        if self.slope > FLAT and self.grown > NOISE:
            found.append(f"memory grew by {self.slope:.0f} MB an hour, {self.grown:.0f} MB in all")
        if self.most_connections > self.budget:
            found.append(f"{self.most_connections} connections, and {self.budget} are their budget")
        if self.unfinished:
            found.append(f"{len(self.unfinished)} jobs did not end: {'; '.join(self.unfinished[:5])}")
        if not self.done:
            found.append("no job was done")
        return found

    def __str__(self) -> str:
        taken = sorted(self.seen.seconds)
        answers = ", ".join(f"{status}: {times:,}" for status, times in sorted(self.seen.answers.items()))
        first, last = self.samples[0], self.samples[-1]
        return table(
            ("soak", "measured"),
            [
                ("seconds", round(self.seconds, 1)),
                ("requests a second", round(len(taken) / self.seconds, 1)),
                *((f"p{percent}, ms", round(quantile(taken, percent) * 1000, 1)) for percent in (50, 95, 99)),
                ("slowest, ms", round(taken[-1] * 1000, 1)),
                ("answers", answers),
                ("RSS at the start, MB", round(first.rss / MB, 1)),
                ("RSS at the end, MB", round(last.rss / MB, 1)),
                ("RSS slope after the first fifth, MB an hour", round(self.slope, 1)),
                ("connections at most", self.most_connections),
                ("connections in the budget", self.budget),
                ("jobs done", self.done),
                ("jobs a second", round(self.done / self.seconds, 1)),
            ],
        )


class Client(threading.Thread):
    """Asks, waits for the answer, and asks again."""

    def __init__(self, port: int, seed: int, over: threading.Event) -> None:
        super().__init__(name=f"client-{seed}", daemon=True)
        self.seen = Seen()
        self._port, self._over = port, over
        self._random = random.Random(seed)
        self._jobs: list[str] = []

    def run(self) -> None:
        connection = self._connect()
        while not self._over.is_set():
            method, path, body = self._next()
            began = time.perf_counter()
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                if not self._over.is_set():
                    self.seen.faults.append(f"{type(error).__name__} from {path.partition('?')[0]}")
                connection.close()
                connection = self._connect()
                continue
            what = f"{method} {path.rpartition('/')[2].partition('?')[0]}"
            self.seen.take(time.perf_counter() - began, answer.status, answer.headers["Retry-After"], what)
            self._learn(answer.status, path, text)
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)

    def _next(self) -> tuple[str, str, str | None]:
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

    def _learn(self, status: int, path: str, text: bytes) -> None:
        if path.endswith("/trigger") and status == http.client.OK:
            self._jobs = [*self._jobs[-50:], json.loads(text)["job_id"]]


def soak(server_dsn: str, *, seconds: float, clients: int, threads: int) -> Report:
    with fresh_database(server_dsn, "soak") as dsn, _service(dsn, threads) as (port, service):
        over = threading.Event()
        crowd = [Client(port, seed, over) for seed in range(clients)]
        began = time.monotonic()
        for client in crowd:
            client.start()
        samples = list(_watched(dsn, service, began, seconds))
        over.set()
        for client in crowd:
            client.join(70)
        took = time.monotonic() - began
        unfinished = _wait_for_the_rest(dsn, 60 + seconds)
        ((done,),) = ask(dsn, "SELECT count(*) FROM dl_jobs WHERE status = 'succeeded'")
        seen = Seen()
        for client in crowd:
            seen.seconds += client.seen.seconds
            seen.answers += client.seen.answers
            seen.faults += client.seen.faults
        return Report(took, seen, samples, done, unfinished, API_CONNECTIONS + WORKER_CONNECTIONS)


@contextmanager
def _service(dsn: str, threads: int) -> Iterator[tuple[int, psutil.Process]]:
    port = _free_port()
    ours = ("PG", "DL_", "APP_", "WORKERS_", "LOG_", "METRIC_", "AUDIT_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {
        "DL_DB_DSN": dsn,
        "APP_PORT": str(port),
        "DL_PIPELINES": "pipelines.noop",
        "WORKERS_JSON": json.dumps([{"queue": "soak", "concurrency": threads}]),
    }
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, "-m", "app", "serve"], env=env, stdout=said, stderr=said)
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


def _watched(dsn: str, service: psutil.Process, began: float, seconds: float) -> Iterator[Sample]:
    """Once a second, and at least twice."""
    question = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'dataloader%'"
    )
    while True:
        at = time.monotonic() - began
        ((connections,),) = ask(dsn, question)
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


def _wait_for_the_rest(dsn: str, seconds: float) -> list[str]:
    """What has not ended by then, told so that one can see why."""
    question = (
        "SELECT concat_ws(' ', job_id, status, place, 'attempt', attempt, 'key', lock_key, 'cancel', cancel_requested,"
        " 'due in', available_at - now()) FROM dl_jobs WHERE status IN ('queued', 'running')"
    )
    deadline = time.monotonic() + seconds
    while True:
        left = [row[0] for row in ask(dsn, question)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def asked() -> argparse.Namespace:
    parser = options(__name__)
    parser.add_argument("--seconds", type=float, default=300, help="for how long (default 300)")
    parser.add_argument("--clients", type=int, default=64, help="clients at the same time (default 64)")
    parser.add_argument("--threads", type=int, default=50, help="threads that run jobs (default 50)")
    return parser.parse_args()


def main() -> int:
    wanted = asked()
    with some_server() as (dsn, _):
        print(environment(dsn), flush=True)
        report = soak(dsn, seconds=wanted.seconds, clients=wanted.clients, threads=wanted.threads)
    print(report)
    for fault in report.faults():
        print(f"FAULT: {fault}")
    return 1 if report.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
