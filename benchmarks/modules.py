"""Counts the files of ours that run when a job is triggered, and in its whole life: a reader must know them.

Takes about 30 seconds.

A real `dataloader serve` runs with a profile function, which notes the file of each call in the threads that serve
requests, run jobs, settle and renew. After some jobs have gone before, one job is triggered for a queue that no worker
serves: the files of that request are what a trigger passes. Then one is triggered for a served queue, runs for longer
than a heartbeat, and its status is read: the files of all these threads are its whole life. Modules that only define
data are not counted; nor are threads that would run without the job, such as those of maintenance.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from benchmarks.place import benchmark_server, fresh_database
from benchmarks.rounds import make_parser

ROOT = Path(__file__).parents[1]
WARM_UP_JOBS = 5
RUN_SEC = 2.5  # longer than two heartbeats
TIMEOUT_SEC = 60.0
# In the service: `start` starts again with each change of the file's time, and `files` is written when `stop` is there.
PROFILER = """
import os, sys, threading, time
FOLDER, ROOT = os.environ["PROFILE_FOLDER"], os.environ["PROFILE_ROOT"]
seen = set()
def note(frame, event, argument):
    if event == "call":
        seen.add((threading.current_thread().name, frame.f_code.co_filename))
def serve():
    at = None
    while True:
        time.sleep(0.02)
        if os.path.exists(f"{FOLDER}/start"):
            os.unlink(f"{FOLDER}/start"); seen.clear()
        if os.path.exists(f"{FOLDER}/stop"):
            with open(f"{FOLDER}/files.{os.getpid()}", "w") as file:
                ours = [(name, path[len(ROOT) + 1:]) for name, path in list(seen) if path.startswith(ROOT + "/")]
                file.write("\\n".join(f"{name}\\t{path}" for name, path in ours))
            os.rename(f"{FOLDER}/files.{os.getpid()}", f"{FOLDER}/files")
            os.unlink(f"{FOLDER}/stop")
def begin():
    threading.Thread(target=serve, daemon=True, name="profiler").start()
    threading.setprofile(note)
    sys.setprofile(note)
if "PROFILE_FOLDER" in os.environ and "serve" in " ".join(sys.argv + sys.orig_argv):
    os.register_at_fork(after_in_child=begin)
"""
HTTP_THREADS = ("MainThread", "ThreadPoolExecutor")
JOB_THREADS = (*HTTP_THREADS, "worker-served", "settler", "heartbeat")


class ProfiledService:
    """A `dataloader serve` whose calls are noted."""

    def __init__(self, dsn: str, folder: Path, port: int) -> None:
        self._folder, self._address = folder, f"http://127.0.0.1:{port}"
        self._session = requests.Session()
        (folder / "sitecustomize.py").write_text(PROFILER, encoding="utf-8")
        settings = {
            "DL_DB_DSN": dsn, "APP_PORT": str(port), "DL_PIPELINES": "dataloader.pipelines.noop", "DL_API_KEYS": "",
            "WORKERS_JSON": '[{"queue":"served","concurrency":2}]', "DL_HEARTBEAT_SEC": "1", "DL_MEMORY_HIGH": "0",
            "PROFILE_FOLDER": str(folder), "PROFILE_ROOT": str(ROOT / "dataloader"), "PYTHONPATH": f"{folder}:{ROOT}",
        }  # fmt: skip
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dataloader", "serve"], cwd=folder, stdout=log, stderr=log,
                env={**os.environ, **settings},
            )  # fmt: skip

    def request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        method = "GET" if body is None else "POST"
        response = self._session.request(method, self._address + path, json=body, timeout=10)
        response.raise_for_status()
        content: dict[str, Any] = response.json()
        return content

    def is_ready(self) -> bool:
        try:
            return bool(self.request("/status")["workers"]["listener"] == "listening")
        except (requests.RequestException, KeyError, TypeError):
            return False

    def trigger(self, queue: str, seconds: float = 0) -> str:
        body = {"queue": queue, "task": "noop", "args": {"sleep1": seconds}, "lock_key": f"key {time.time()}"}
        return str(self.request("/api/v1/jobs/trigger", body)["job_id"])

    def wait_for_end(self, job_id: str) -> None:
        _wait(lambda: self.request(f"/api/v1/jobs/{job_id}/status")["status"] == "succeeded")

    def calls_during(self, act: Callable[[], object]) -> list[tuple[str, str]]:
        """Return threads and files of the calls meanwhile."""
        (self._folder / "files").unlink(missing_ok=True)
        (self._folder / "start").touch()
        _wait(lambda: not (self._folder / "start").exists())
        act()
        (self._folder / "stop").touch()
        _wait((self._folder / "files").exists)
        lines = (self._folder / "files").read_text().splitlines()
        return [(name, path) for name, _, path in (line.partition("\t") for line in lines)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SEC
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the service did not get there")
        time.sleep(0.05)


def files_of(calls: list[tuple[str, str]], threads: tuple[str, ...]) -> dict[str, set[str]]:
    """Return the files that were called in these threads, with the threads' names."""
    files: dict[str, set[str]] = {}
    for thread, path in calls:
        if thread.startswith(threads):
            files.setdefault(path, set()).add(thread.rstrip("-_0123456789"))
    return files


def main() -> None:
    options = make_parser(__name__)
    options.add_argument("--list", action="store_true", help="print the files, too")
    is_listed = options.parse_args().list
    with (
        benchmark_server() as (server_dsn, _),
        fresh_database(server_dsn, "modules") as dsn,
        tempfile.TemporaryDirectory() as folder,
    ):
        service = ProfiledService(dsn, Path(folder), free_port())
        try:
            _wait(service.is_ready)
            for _ in range(WARM_UP_JOBS):
                service.wait_for_end(service.trigger("served"))
            trigger = files_of(service.calls_during(lambda: service.trigger("unserved")), HTTP_THREADS)
            life = files_of(
                service.calls_during(lambda: service.wait_for_end(service.trigger("served", RUN_SEC))), JOB_THREADS
            )
        finally:
            service.process.terminate()
            service.process.wait(TIMEOUT_SEC)
    print(f"a trigger passes {len(trigger)} files, a whole life {len(life)}")
    if is_listed:
        for path in sorted(life):
            print(f"{'trigger' if path in trigger else '':9}{path:40}{', '.join(sorted(life[path]))}")


if __name__ == "__main__":
    main()
