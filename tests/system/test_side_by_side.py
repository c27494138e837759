"""An upgrade without a pause: the former release works on while the tables change, and beside the new one."""

from __future__ import annotations

import re
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.client import Client, Request
from app.queue.schema import SCHEMA_VERSION, migrate
from tests.support import Process, eventually, free_port
from tests.support.running import QUICK, Jobs, Runner, Running, ask

ROOT = Path(__file__).resolve().parents[2]
(WHEEL,) = (ROOT / "tests" / "releases").glob("dataloader-0.1.0-*.whl")
NAPS = QUICK | {"DL_PIPELINES": "pipelines.noop"}


@pytest.fixture
def former(tmp_path: Path, empty_dsn: str) -> Iterator[Callable[..., Running]]:
    """Start a process of the former release: `former("worker")`; its tables are in the database already."""
    code = tmp_path / "former"
    zipfile.ZipFile(WHEEL).extractall(code)
    port = str(free_port())
    with ExitStack() as running:

        def started(host: str, *options: str) -> Running:
            env = {**NAPS, "DL_DB_DSN": empty_dsn, "APP_PORT": port, "PYTHONPATH": str(code)}
            argv = [sys.executable, "-m", "app", host, *options]
            output = tmp_path / f"former-{host}.log"
            return Running(running.enter_context(Process(argv, output=output, env=env, cwd=code)), int(port), host)

        made = started("migrate")
        assert made.process.wait(60) == 0, made.process.text
        yield started


def trigger(running: Running, count: int, name: str, **args: float) -> None:
    client = Client(f"http://127.0.0.1:{running.port}")
    for n in range(count):
        client.trigger(
            Request(queue="q", task="noop", lock_key=f"{name}-{n % 7}", idempotency_key=f"{name}-{n}", args=args)
        )


def test_old_and_new_work_side_by_side_on_tables_that_change_beneath_them(
    former: Callable[..., Running], start: Callable[..., Process], empty_dsn: str, tmp_path: Path
):
    jobs, run = Jobs(empty_dsn, tmp_path), Runner(start, empty_dsn)
    old_api, old_worker = former("serve", "--no-workers").until_ready(), former("worker").until_ready()
    trigger(old_api, 60, "before", sleep1=0.05)

    migrate(empty_dsn)  # in the middle of their work
    trigger(old_api, 30, "between", sleep1=0.05)
    new_api = run("serve", "--no-workers", **NAPS).until_ready()
    new_worker = run("worker", **NAPS).until_ready()
    trigger(old_api, 30, "old", sleep1=0.05)
    trigger(new_api, 30, "new", sleep1=0.05)
    trigger(new_api, 30, "old", sleep1=0.05)  # the same requests, asked of the other: no job is made twice

    jobs.until({"succeeded": 150}, timeout=60)
    assert old_worker.stop() == 0
    assert old_api.stop() == 0
    trigger(new_api, 20, "after")
    jobs.until({"succeeded": 170}, timeout=60)
    told = jobs.check()
    assert all(it.attempt == 1 for it in told.values())
    for running in (old_api, old_worker, new_api, new_worker):
        assert "Traceback" not in running.process.text
    assert new_worker.stop() == 0


def test_jobs_of_an_old_worker_that_dies_are_finished_by_a_new_one(
    former: Callable[..., Running], start: Callable[..., Process], empty_dsn: str, tmp_path: Path
):
    jobs, run = Jobs(empty_dsn, tmp_path), Runner(start, empty_dsn)
    old_worker = former("worker").until_ready()
    long = jobs.insert("noop", sleep1=600)
    eventually(lambda: jobs.row(long[0])[0] == "running")
    migrate(empty_dsn)
    run("worker", **NAPS).until_ready()
    ask(empty_dsn, "UPDATE dl_jobs SET args = '{}'")  # for the next run alone

    old_worker.process.signal(signal.SIGKILL)
    jobs.until_taken_back()

    jobs.until({"succeeded": 1}, timeout=60)
    assert jobs.row(long[0]) == ("succeeded", 2)
    jobs.check()


def test_a_worker_at_work_holds_no_lock_for_which_a_migration_or_a_new_part_of_the_journal_waits(
    run: Runner, jobs: Jobs
):
    """It has two for as long as it lives: who does the chores, and who keeps house."""
    run("worker").until_ready()
    ours = "locktype = 'advisory' AND classid = 1684828527 AND objsubid = 2 AND granted"
    eventually(lambda: {row[0] for row in ask(jobs.dsn, f"SELECT objid FROM pg_locks WHERE {ours}")} >= {4, 5})
    ask(jobs.dsn, "UPDATE dl_schema SET fingerprint = 'of another release' RETURNING 1")

    for parent in ("dl_job_events", "dl_job_logs"):
        ask(jobs.dsn, "SET lock_timeout = '10s'; SELECT dl_move_on(%s)", parent)
    migration = migrate(jobs.dsn, lock_timeout_sec=20)

    assert migration.now == SCHEMA_VERSION
    jobs.insert(seconds=0)
    jobs.until({"succeeded": 1})


def test_each_advisory_lock_of_two_numbers_has_one_meaning():
    """The second number, by who uses it: a session's lock and a transaction's may not share one."""
    users: dict[str, set[str]] = {}
    for path in (ROOT / "schema.sql", *sorted((ROOT / "app" / "queue").glob("*.sql"))):
        for number in re.findall(r"pg_(?:try_)?advisory_(?:xact_)?lock\(1684828527, (\d+)\)", path.read_text("utf-8")):
            users.setdefault(number, set()).add(path.name)

    assert users == {
        "0": {"queries.sql"},
        "2": {"rollups.sql"},
        "3": {"schema.sql"},
        "4": {"retention.sql"},
        "5": {"queues.sql"},
    }
