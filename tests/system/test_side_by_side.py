"""An upgrade from the former release: refused while its processes run, and its processes are refused afterwards."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dataloader.app.db.schema import SCHEMA_VERSION, migrate
from dataloader.app.errors import SchemaBlocked
from tests.support import Process, eventually, free_port
from tests.support.real_service import FAST_SETTINGS, RunningService, ServiceJobs, ServiceStarter, query_rows

ROOT = Path(__file__).resolve().parents[2]
(WHEEL,) = (ROOT / "tests" / "releases").glob("dataloader-0.1.0-*.whl")


@pytest.fixture
def former(tmp_path: Path, empty_dsn: str) -> Iterator[Callable[..., RunningService]]:
    """Start a process of the former release: `former("worker")`; its tables are in the database already."""
    code = tmp_path / "former"
    zipfile.ZipFile(WHEEL).extractall(code)
    port = str(free_port())
    with ExitStack() as running:

        def started(host: str, *options: str) -> RunningService:
            env = {**FAST_SETTINGS, "DL_PIPELINES": "pipelines.noop", "DL_DB_DSN": empty_dsn}
            env |= {"APP_PORT": port, "PYTHONPATH": str(code)}
            argv = [sys.executable, "-m", "app", host, *options]
            output = tmp_path / f"former-{host}.log"
            return RunningService(
                running.enter_context(Process(argv, output=output, env=env, cwd=code)), int(port), host
            )

        made = started("migrate")
        assert made.process.wait(60) == 0, made.process.text
        yield started


def test_upgrade_needs_the_old_processes_stopped(
    former: Callable[..., RunningService], start: Callable[..., Process], empty_dsn: str, tmp_path: Path
):
    jobs, run = ServiceJobs(empty_dsn, tmp_path), ServiceStarter(start, empty_dsn)
    worker = former("worker")
    worker.process.wait_for_line("listener.listening", 60)
    waiting = jobs.insert("noop", sleep1=600)
    eventually(lambda: jobs.row(waiting[0])[0] == "running")

    with pytest.raises(SchemaBlocked, match=r"still running: worker .*, session dataloader-"):
        migrate(empty_dsn)
    assert worker.stop() == 0
    query_rows(empty_dsn, "UPDATE dl_jobs SET args = '{}'")  # for the next attempt alone
    migrate(empty_dsn)

    late = former("worker")
    assert late.process.wait(60) != 0
    assert "upgrade dataloader" in late.process.text
    run("worker", **(FAST_SETTINGS | {"DL_PIPELINES": "dataloader.pipelines.noop"})).wait_until_ready()
    jobs.wait_for_counts({"succeeded": 1}, timeout=60)
    jobs.check_invariants()


def test_busy_worker_blocks_no_migration_or_new_partition(run: ServiceStarter, jobs: ServiceJobs):
    """It holds the maintenance lock as long as it lives."""
    run("worker").wait_until_ready()
    ours = "locktype = 'advisory' AND classid = 1684828527 AND objsubid = 2 AND granted"
    eventually(lambda: {row[0] for row in query_rows(jobs.dsn, f"SELECT objid FROM pg_locks WHERE {ours}")} >= {5})
    query_rows(jobs.dsn, "UPDATE dl_schema SET fingerprint = 'of another release' RETURNING 1")

    for parent in ("dl_job_events", "dl_job_logs"):
        query_rows(jobs.dsn, "SET lock_timeout = '10s'; SELECT dl_advance_sequence(%s)", parent)
    migration = migrate(jobs.dsn, lock_wait_sec=20)

    assert migration.to_version == SCHEMA_VERSION
    jobs.insert(seconds=0)
    jobs.wait_for_counts({"succeeded": 1})


def test_each_advisory_lock_of_two_numbers_has_one_meaning():
    """The second number, by who uses it: a session's lock and a transaction's may not share one."""
    users: dict[str, set[str]] = {}
    for path in (ROOT / "schema.sql", *sorted((ROOT / "app").rglob("*.sql"))):
        for number in re.findall(r"pg_(?:try_)?advisory_(?:xact_)?lock\(1684828527, (\d+)\)", path.read_text("utf-8")):
            users.setdefault(number, set()).add(path.relative_to(ROOT).as_posix())

    assert users == {
        "0": {"app/queue/upkeep.sql"},
        "2": {"app/features/statistics/rows.sql"},
        "3": {"app/db/migrations/0003.sql", "app/db/migrations/0004.sql", "app/queue/schema.sql", "schema.sql"},
        "5": {"app/queue/queues.sql"},
        "8": {"app/features/limits/rows.sql"},
        "9": {"app/features/graphs/rows.sql"},
    }
