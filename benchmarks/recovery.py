"""How soon a job of a killed worker is tried again, at default settings.

Takes about 4 minutes.

Each worker is a process of its own and works on a job that lasts. A round is a `kill -9` of the one that has the job,
and its time ends with the claim of the next attempt, by the database's clock; so the server must be on this machine.
Beside a live worker another one takes the job. After a restart the next worker is started at once, with the same
DL_WORKER_NAME: as root each has a pid namespace of its own, so that the name alone is proof; else the kernel's word
counts, too. Its start, until it listens, is part of the time, and is shown beside. Each round has a new job, for a
second death costs a pause.
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

from benchmarks.place import ask, environment, fresh_database, some_server
from benchmarks.rounds import options, quantile, table

WORKERS = '[{"queue":"bench","concurrency":1}]'
DEADLINE_SEC = 120.0
Found = TypeVar("Found")
INSERT = "INSERT INTO dl_jobs (queue, task, lock_key, args) VALUES ('bench', 'noop', %s, %s) RETURNING job_id"
ARGS = '{"sleep1": 3}'
ATTEMPT = "SELECT ts FROM dl_job_events WHERE job_id = %s AND kind = 'picked' AND (payload ->> 'attempt')::int = %s"
OWNER = "SELECT w.pid FROM dl_jobs j JOIN dl_workers w USING (worker_id) WHERE j.job_id = %s AND j.status = 'running'"


class Workers:
    """Worker processes, by the pid that they know themselves by."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn, self._folder = dsn, folder
        self._started = 0
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *, name: str | None = None, in_namespace: bool = False) -> float:
        """Start one and wait until it listens; return the seconds that this took."""
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
        until(lambda: b"listener.listening" in output.read_bytes())
        return time.time() - began

    def kill(self, process: subprocess.Popen[bytes]) -> float:
        """Kill one; return the time at which it was sent."""
        at = time.time()
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.processes.remove(process)
        return at

    def close(self) -> None:
        for process in list(self.processes):
            self.kill(process)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__name__)
    parser.add_argument("--kills", type=int, default=20, help="beside a live worker")
    parser.add_argument("--restarts", type=int, default=10, help="of one worker under its name")
    asked = parser.parse_args(argv)
    with some_server() as (server_dsn, _), tempfile.TemporaryDirectory(prefix="dl-bench-") as folder:
        with fresh_database(server_dsn) as dsn:
            print(environment(dsn))
            beside = kills(dsn, Path(folder), asked.kills)
        with fresh_database(server_dsn) as dsn:
            restarted, starts = restarts(dsn, Path(folder), asked.restarts)
    rows = [
        shown("beside a live worker", beside),
        shown("restart under the same name", restarted),
        shown("of it: until the new process listens", starts),
    ]
    print(table(["seconds from kill -9 to the next attempt", "p50", "p95", "worst", "samples"], rows))


def kills(dsn: str, folder: Path, count: int) -> list[float]:
    workers, times = Workers(dsn, folder), []
    try:
        workers.start()
        for n in range(count):
            workers.start()
            job = begin_job(dsn, n)
            ((pid,),) = ask(dsn, OWNER, job)
            (owner,) = (process for process in workers.processes if process.pid == pid)
            killed_at = workers.kill(owner)
            times.append(attempted(dsn, job, 2) - killed_at)
            end_job(dsn, job)
    finally:
        workers.close()
    return times


def restarts(dsn: str, folder: Path, count: int) -> tuple[list[float], list[float]]:
    workers, times, starts = Workers(dsn, folder), [], []
    in_namespace = os.geteuid() == 0 and shutil.which("unshare") is not None
    try:
        workers.start(name="bench-0", in_namespace=in_namespace)
        for n in range(count):
            job = begin_job(dsn, n)
            killed_at = workers.kill(workers.processes[0])
            starts.append(workers.start(name="bench-0", in_namespace=in_namespace))
            times.append(attempted(dsn, job, 2) - killed_at)
            end_job(dsn, job)
    finally:
        workers.close()
    return times, starts


def begin_job(dsn: str, n: int) -> str:
    job = str(ask(dsn, INSERT, f"key {n}", ARGS)[0][0])
    attempted(dsn, job, 1)
    time.sleep(1.0)  # until the worker has its row, with the mark that it listens
    return job


def end_job(dsn: str, job: str) -> None:
    until(lambda: ask(dsn, "SELECT 1 FROM dl_jobs WHERE job_id = %s AND status = 'succeeded'", job))


def attempted(dsn: str, job: str, attempt: int) -> float:
    """When the attempt began."""
    rows = until(lambda: ask(dsn, ATTEMPT, job, attempt))
    return float(rows[0][0].timestamp())


def until(look: Callable[[], Found]) -> Found:
    deadline = time.monotonic() + DEADLINE_SEC
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)
    return found


def shown(what: str, seconds: Sequence[float]) -> list[str | float | int | None]:
    return [what, *(quantile(seconds, n) for n in (50, 95)), max(seconds), len(seconds)]


if __name__ == "__main__":
    main()
