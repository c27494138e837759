"""Measures how soon a job of a killed worker gets its next attempt, at default settings.

Takes about 4 minutes.

Each round kills the worker process that runs a job with `kill -9`. The time ends with the claim of the next attempt by
the database's clock, so the server must run on this machine. In the first part another worker is alive. In the second
part a new worker is started at once with the same DL_WORKER_NAME; as root each worker has its own pid namespace, so
that the name alone proves the death, else the kernel's process table does too. The time until the new worker listens is
included, and also shown separately. Each round has a new job, since a second death delays a job.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import format_table, make_parser, quantile

WORKERS = '[{"queue":"bench","concurrency":1}]'
DEADLINE_SEC = 120.0
T = TypeVar("T")
INSERT = "INSERT INTO dl_jobs (queue, task, lock_key, args) VALUES ('bench', 'noop', %s, %s) RETURNING job_id"
ARGS = '{"sleep1": 3}'
ATTEMPT = "SELECT ts FROM dl_job_events WHERE job_id = %s AND kind = 'picked' AND (payload ->> 'attempt')::int = %s"
OWNER = "SELECT w.pid FROM dl_jobs j JOIN dl_workers w USING (worker_id) WHERE j.job_id = %s AND j.status = 'running'"


class Workers:
    """Starts and kills worker processes."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn, self._folder = dsn, folder
        self._started = 0
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *, name: str | None = None, in_namespace: bool = False) -> float:
        """Start a worker and wait until it listens; return the seconds that this took."""
        began = time.time()
        self._started += 1
        output = self._folder / f"worker-{self._started}.log"
        env = {key: value for key, value in os.environ.items() if not key.startswith(("DL_", "PG", "APP_"))}
        env |= {"DL_DB_DSN": self._dsn, "WORKERS_JSON": WORKERS, "DL_LOG_FORMAT": "json"}
        if name is not None:
            env["DL_WORKER_NAME"] = name
        argv = [sys.executable, "-m", "app", "worker"]
        if in_namespace:
            argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *argv]
        with output.open("wb") as file:
            self.processes.append(
                subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
            )
        wait_for(lambda: b"listener.connected" in output.read_bytes())
        return time.time() - began

    def kill(self, process: subprocess.Popen[bytes]) -> float:
        """Kill a worker; return the time of the signal."""
        at = time.time()
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.processes.remove(process)
        return at

    def close(self) -> None:
        for process in list(self.processes):
            self.kill(process)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--kills", type=int, default=20, help="kills with another worker alive")
    parser.add_argument("--restarts", type=int, default=10, help="restarts of one worker under its name")
    options = parser.parse_args(argv)
    with benchmark_server() as (server_dsn, _), tempfile.TemporaryDirectory(prefix="dl-bench-") as folder:
        with fresh_database(server_dsn) as dsn:
            print(describe_environment(dsn))
            with_live_worker = measure_kills(dsn, Path(folder), options.kills)
        with fresh_database(server_dsn) as dsn:
            restarted, starts = measure_restarts(dsn, Path(folder), options.restarts)
    rows = [
        table_row("with a live worker", with_live_worker),
        table_row("restart under the same name", restarted),
        table_row("of which until the new process listens", starts),
    ]
    print(format_table(["seconds from kill -9 to the next attempt", "p50", "p95", "worst", "samples"], rows))


def measure_kills(dsn: str, folder: Path, count: int) -> list[float]:
    workers, times = Workers(dsn, folder), []
    try:
        workers.start()
        for n in range(count):
            workers.start()
            job = begin_job(dsn, n)
            ((pid,),) = query_value(dsn, OWNER, job)
            (owner,) = (process for process in workers.processes if process.pid == pid)
            killed_at = workers.kill(owner)
            times.append(attempt_started_at(dsn, job, 2) - killed_at)
            end_job(dsn, job)
    finally:
        workers.close()
    return times


def measure_restarts(dsn: str, folder: Path, count: int) -> tuple[list[float], list[float]]:
    workers, times, starts = Workers(dsn, folder), [], []
    in_namespace = os.geteuid() == 0 and shutil.which("unshare") is not None
    try:
        workers.start(name="bench-0", in_namespace=in_namespace)
        for n in range(count):
            job = begin_job(dsn, n)
            killed_at = workers.kill(workers.processes[0])
            starts.append(workers.start(name="bench-0", in_namespace=in_namespace))
            times.append(attempt_started_at(dsn, job, 2) - killed_at)
            end_job(dsn, job)
    finally:
        workers.close()
    return times, starts


def begin_job(dsn: str, n: int) -> str:
    job = str(query_value(dsn, INSERT, f"key {n}", ARGS)[0][0])
    attempt_started_at(dsn, job, 1)
    time.sleep(1.0)  # until the worker is registered as listening
    return job


def end_job(dsn: str, job: str) -> None:
    wait_for(lambda: query_value(dsn, "SELECT 1 FROM dl_jobs WHERE job_id = %s AND status = 'succeeded'", job))


def attempt_started_at(dsn: str, job: str, attempt: int) -> float:
    """Return when the attempt began."""
    rows = wait_for(lambda: query_value(dsn, ATTEMPT, job, attempt))
    return float(rows[0][0].timestamp())


def wait_for(probe: Callable[[], T]) -> T:
    deadline = time.monotonic() + DEADLINE_SEC
    while not (result := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)
    return result


def table_row(label: str, seconds: Sequence[float]) -> list[str | float | int | None]:
    return [label, *(quantile(seconds, n) for n in (50, 95)), max(seconds), len(seconds)]


if __name__ == "__main__":
    main()
