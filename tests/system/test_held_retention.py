"""Nothing is deleted from tables that were upgraded from version 0 until DL_RETENTION_ENABLED=true asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dataloader.app.cli.command import cli
from dataloader.app.config import load_settings
from dataloader.app.runtime.commands import run_doctor
from tests.support.old_schema import BEFORE
from tests.support.processes import Process
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually

JOBS = 300
OLD_ROWS = f"""
INSERT INTO dl_jobs (queue, task, lock_key, status, idempotency_key, created_at, finished_at)
SELECT 'q', 't', 'k' || n, CASE n % 2 WHEN 0 THEN 'succeeded' ELSE 'failed' END::dl_status, 'i' || n,
       now() - interval '401 days', now() - interval '400 days'
  FROM generate_series(1, {JOBS}) n;
INSERT INTO dl_job_events (job_id, queue, kind, ts) SELECT job_id, queue, 'done', finished_at FROM dl_jobs;
"""
# A worker whose first look at retention comes at once, not half a minute after its start.
WORKER = """
from dataloader.app.features.retention import duty
duty._INTERVAL_SEC = 0.2
from dataloader.app.features.retention.rows import Retention
create_partitions = Retention.create_partitions
def create_partitions_and_print(self):
    print("retention pass", flush=True)
    return create_partitions(self)
Retention.create_partitions = create_partitions_and_print
from dataloader.app.cli.command import main
main(["worker"])
"""


@pytest.fixture
def old(empty_dsn):
    queue_db = QueueFixture(empty_dsn)
    queue_db.sql(BEFORE)
    queue_db.sql(OLD_ROWS)
    yield queue_db
    queue_db.close()


def migrate(queue_db: QueueFixture, *options: str) -> str:
    shown = CliRunner().invoke(cli, ["migrate", *options], env={"DL_DB_DSN": queue_db.dsn})
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def counts(queue_db: QueueFixture) -> tuple[int, int]:
    return queue_db.fetch_row("SELECT count(*) FROM dl_jobs"), queue_db.fetch_row(
        "SELECT count(*) FROM dl_job_events WHERE kind = 'done'"
    )


def worker(queue_db: QueueFixture, folder: Path, **env: str) -> Process:
    env = {"DL_DB_DSN": queue_db.dsn, "DL_PIPELINES": "dataloader.pipelines.noop", "DL_LOG_FORMAT": "json", **env}
    return Process.python(WORKER, output=folder / f"worker{len(env)}.log", env=env)


def findings(queue_db: QueueFixture, **env: str) -> list[str]:
    return [f.check for f in run_doctor(load_settings({"DL_DB_DSN": queue_db.dsn, **env}, dotenv=None)) if f.severity]


def test_upgrade_from_version_0_deletes_nothing_until_asked(old, tmp_path):
    shown = migrate(old)

    assert f"{JOBS} jobs and their events are older" in shown
    assert "DL_RETENTION_ENABLED=true" in shown
    assert "DL_RETENTION_ENABLED=false" in shown
    assert "retention" in findings(old)
    with worker(old, tmp_path) as held:
        held.wait_for_line("retention.on_hold")
        eventually(lambda: held.text.count("retention pass") > 2, 60, lambda: held.text)
        assert counts(old) == (JOBS, JOBS)
    migrate(old)
    assert counts(old) == (JOBS, JOBS)

    assert "retention" not in findings(old, DL_RETENTION_ENABLED="true")
    with worker(old, tmp_path, DL_RETENTION_ENABLED="true"):
        eventually(lambda: counts(old) == (0, 0), 60, lambda: str(counts(old)))


def test_migrate_as_json_has_what_is_held(old):
    shown = json.loads(migrate(old, "--json"))

    assert (shown["version_before"], shown["retention_held"], shown["jobs_held"]) == (0, True, JOBS)


def test_new_installation_is_not_held(dsn, tmp_path):
    queue_db = QueueFixture(dsn)
    queue_db.sql(OLD_ROWS)
    with worker(queue_db, tmp_path) as running:
        eventually(lambda: counts(queue_db) == (0, 0), 60, lambda: str(counts(queue_db)))
        assert "retention.on_hold" not in running.text
    assert "retention" not in findings(queue_db)
    queue_db.close()
