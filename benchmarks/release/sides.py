"""Two installed wheels and how their programs start: that of the last release, and that of this checkout.

Both are used as a user uses them: by their commands, over HTTP, and by SQL. So one program measures both.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from psycopg2.extensions import make_dsn

from benchmarks.http import free_port
from benchmarks.place import fresh_database, query_value
from tests.field.ground import FORMER_RELEASE, Wheels

TIMEOUT_SEC = 60.0
HTTP_THREADS = 8
_TASKS = """
import os, time
try:
    from pipelines.contract import register
except ImportError:
    from dataloader.pipelines.contract import register

_pipe = os.open(os.environ["BENCH_PIPE"], os.O_WRONLY) if "BENCH_PIPE" in os.environ else None

@register("empty")
def empty():
    pass

@register("note")
def note():
    os.write(_pipe, time.monotonic_ns().to_bytes(8, "big"))

@register("note_30_ms")
def note_30_ms():
    os.write(_pipe, time.monotonic_ns().to_bytes(8, "big"))
    time.sleep(0.03)
"""
# Release 0.2.0 had a second way for triggers alone, and wrote in one statement those that came together; decision 45
# removed both. The first is closed when the app is wrapped.
_ORDINARY_WSGI = """
from app.queue.together import Together
from wsgi import app

Together.enqueue = lambda together, job: together._queue.enqueue(job)

_wrapped = app.wsgi_app
app.wsgi_app = lambda environ, start_response: _wrapped(environ, start_response)
"""
_CANARY = "INSERT INTO dl_jobs (queue, task, lock_key) VALUES (%s, 'empty', 'canary') RETURNING job_id::text"


@dataclass(frozen=True)
class Side:
    """An installed wheel."""

    name: str
    programs: Path
    wsgi: tuple[str, ...]  # gunicorn's words that name the service
    tasks: Path  # the folder of the module with the benchmark's tasks

    def start(
        self, dsn: str, *words: str, settings: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start one of its programs with only these settings."""
        environment = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "PYTHONPATH": str(self.tasks),
            "DL_DB_DSN": dsn,
            "DL_PIPELINES": "release_tasks",
            **(settings or {}),
        }
        program, *rest = words
        return subprocess.Popen(
            [str(self.programs / program), *rest],
            cwd=folder or self.tasks, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=(self.tasks / f"{self.name}.log").open("ab"),
        )  # fmt: skip


@contextmanager
def both_sides(folder: Path) -> Iterator[tuple[Side, Side]]:
    """Install both wheels into the folder, or use what an earlier call has installed there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "release_tasks.py").write_text(_TASKS, encoding="utf-8")
    (folder / "ordinary_wsgi.py").write_text(_ORDINARY_WSGI, encoding="utf-8")
    wheels = Wheels(folder)
    for built in wheels.folder.glob("current*/"):  # of the checkout as it was
        shutil.rmtree(built)
    former, current = wheels.former(), wheels.current()
    (site,) = former.parent.glob("lib/python*/site-packages")
    yield (
        Side(
            f"release {FORMER_RELEASE}",
            former,
            ("--config", str(site / "gunicorn.conf.py"), "ordinary_wsgi:app"),
            folder,
        ),
        Side("checkout", current, ("--config", "python:dataloader.gunicorn_conf", "dataloader.wsgi:app"), folder),
    )


@contextmanager
def migrated_database(side: Side, server_dsn: str) -> Iterator[str]:
    with fresh_database(server_dsn, empty=True) as dsn:
        process = side.start(dsn, "dataloader", "migrate")
        assert process.wait(TIMEOUT_SEC) == 0, f"{side.name}: migrate failed; see {side.tasks / side.name}.log"
        yield str(make_dsn(dsn))


@contextmanager
def running_workers(side: Side, dsn: str, count: int, queue: str, **settings: str) -> Iterator[list[psutil.Process]]:
    """Start worker processes, one after the other, and wait until each has run a job."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(count):
            started.append(side.start(dsn, "dataloader", "worker", "--queue", queue, settings=settings))
            wait_until(partial(_has_workers, dsn, number + 1), started[-1])
            for job in [query_value(dsn, _CANARY, queue.partition(":")[0])[0][0] for _ in range(20)]:
                wait_until(partial(_has_ended, dsn, job), started[-1])
        yield [psutil.Process(process.pid) for process in started]
    finally:
        for process in started:
            end(process)


@contextmanager
def running_service(side: Side, dsn: str, processes: int) -> Iterator[tuple[int, psutil.Process]]:
    """Start gunicorn with the API and without workers; yield its port and its main process."""
    port = free_port()
    shape = ("--workers", str(processes), "--threads", str(HTTP_THREADS), "--worker-connections", "1000")
    process = side.start(
        dsn, "gunicorn", *shape, "--bind", f"127.0.0.1:{port}", *side.wsgi,
        settings={"WORKERS_JSON": "[]", "DL_LOG_FORMAT": "json"},
    )  # fmt: skip
    try:
        wait_until_healthy(port, process)
        yield port, psutil.Process(process.pid)
    finally:
        end(process)


def wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    def is_healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return True
        except OSError:
            return False

    wait_until(is_healthy, process, every_sec=0.005)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], *, every_sec: float = 0.02) -> None:
    deadline = time.monotonic() + TIMEOUT_SEC
    while not condition():
        assert process.poll() is None, (
            f"{process.args!r} ended with {process.returncode}; see the log next to the wheels"
        )
        assert time.monotonic() < deadline, f"{process.args!r}: not reached within {TIMEOUT_SEC:.0f} s"
        time.sleep(every_sec)


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(TIMEOUT_SEC)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _has_workers(dsn: str, count: int) -> bool:
    return bool(query_value(dsn, "SELECT count(*) >= %s FROM dl_workers", count)[0][0])


def _has_ended(dsn: str, job_id: str) -> bool:
    return bool(query_value(dsn, "SELECT status = 'succeeded' FROM dl_jobs WHERE job_id = %s", job_id)[0][0])
