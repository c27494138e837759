"""Commands that work on the database itself."""

from __future__ import annotations

import json
import socket
from uuid import uuid4

import pytest
from click.testing import CliRunner

from dataloader.app.cli.command import cli
from dataloader.app.queue.job import Status
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def queue_db(dsn):
    made = QueueFixture(dsn)
    for key, age in (("old", 20), ("older", 30), ("young", 1)):
        run = made.enqueue_and_claim(key)
        made.settle(run)
        made.sql("UPDATE dl_jobs SET finished_at = now() - make_interval(days => %s) WHERE lock_key = %s", age, key)
    made.settle(made.enqueue_and_claim("bad"), Status.FAILED)
    yield made
    made.close()


def pruned(queue_db: QueueFixture, *options: str) -> str:
    env = {"DL_DB_DSN": queue_db.dsn, "DL_KEEP_JOBS_DAYS": '{"failed": 20}'}
    done = CliRunner().invoke(cli, ["prune", *options], env=env)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_dry_run_lists_what_real_run_deletes(queue_db):
    assert "Would delete 2 jobs of t that ended as succeeded." in pruned(queue_db, "--dry-run")
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 4

    assert json.loads(pruned(queue_db, "--json"))["jobs"] == [{"status": "succeeded", "task": "t", "jobs": 2}]
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 2
    assert "Nothing is older than its retention period." in pruned(queue_db)


def test_partitions_are_listed_and_dropped(queue_db):
    part = queue_db.fetch_row("SELECT part FROM dl_partitions('dl_job_events') ORDER BY low LIMIT 1")
    queue_db.sql("UPDATE dl_job_events SET ts = ts - interval '40 days'")
    queue_db.sql("SELECT setval('dl_job_events_event_id_seq', (SELECT max(high) FROM dl_partitions('dl_job_events')))")

    assert f"Would drop {part}." in pruned(queue_db, "--dry-run")
    assert f"Dropped {part}." in pruned(queue_db)


def test_drain_stops_claims_of_this_host_and_waits(queue_db):
    def drain(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["drain", "--self", *options], env={"DL_DB_DSN": queue_db.dsn})
        return done.exit_code, done.stdout

    names = {"here": f"{socket.gethostname()}:1", "there": "elsewhere:1"}
    assert drain("--wait") == (0, "No live worker process is registered for this host.\n")
    for name in names.values():
        info = WorkerInfo(uuid4(), name, "1", ("q",), ("t",), 2)
        WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)
    run = queue_db.enqueue_and_claim("held")
    queue_db.sql("UPDATE dl_jobs SET worker = %s WHERE job_id = %s", names["here"], str(run.id))

    waited = drain("--wait", "--timeout", "1")
    waited_too = drain("--timeout", "1")
    queue_db.settle(run)
    ended = drain("--wait")

    assert waited == waited_too == (1, "1 worker process drained; running: 1 job.\n")
    assert ended == (0, "1 worker process drained; no job runs.\n")
    assert queue_db.sql("SELECT name FROM dl_workers WHERE draining") == [(names["here"],)]
