"""The core's schema without any feature's: the life of a job, by the product's own statements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg2
import pytest

from dataloader.app.db.make_schema import make_schema
from dataloader.app.db.statements import parse_statements, statements
from dataloader.app.queue.job import NewJob, ReleaseReason, Status
from dataloader.app.queue.queues import QueueControl
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support.queue_fixture import QueueFixture

_APP = Path(__file__).parents[3] / "app"
STATEMENTS = sorted(
    name
    for folder in ("queue", "db")
    for file in (_APP / folder).glob("*.sql")
    if file.name != "schema.sql"
    for name in parse_statements(file.read_text(encoding="utf-8"), "public")
)


@pytest.fixture
def core(empty_dsn: str) -> Iterator[QueueFixture]:
    """A queue whose database has the core's schema alone."""
    made = QueueFixture(empty_dsn)
    made.sql(make_schema(features=()))
    yield made
    made.close()


def test_job_inserted_by_sql_is_claimed_and_settled(core):
    job_id = core.insert(args='{"n": 1}')

    (run,) = core.claim()
    core.renew(run, {"done": 1})
    result = core.settle(run, result={"n": 1})

    assert (run.id, run.args_text, result.outcome) == (job_id, '{"n": 1}', "applied")
    assert core.event_kinds(job_id) == ["queued", "picked", "done"]
    assert core.job(job_id).result == {"n": 1}
    core.check_invariants()


def test_functions_make_jobs(core):
    one = core.fetch_row("SELECT dl_enqueue('q', 't', 'k', '{}', 'a key')")
    again = core.fetch_row("SELECT dl_enqueue('q', 't', 'k', '{}', 'a key')")
    batch = core.sql(
        "SELECT outcome, field, detail FROM dl_enqueue_many(%s)",
        '[{"queue": "q", "task": "t", "lock_key": "k"},'
        ' {"queue": "q", "task": "t", "lock_key": "k", "limits": {"api": 1}},'
        ' {"queue": "q", "task": "t", "lock_key": "k", "after": []}]',
    )

    assert one == again
    assert batch == [
        ("created", None, None),
        ("invalid", "limits", "cannot be used: this queue has no limits"),
        ("invalid", "after", "cannot be used: this queue has no graphs"),
    ]


def test_failed_attempt_is_retried_and_then_by_an_operator(core):
    job_id = core.enqueue(max_attempts=2)
    core.settle(*core.claim(), Status.QUEUED, error="first")
    core.make_due(job_id)
    core.settle(*core.claim(), Status.FAILED, error="second")

    job = core.queue.retry(job_id)

    assert (job.status, job.attempt) == (Status.QUEUED, 0)
    assert [run.id for run in core.claim()] == [job_id]


def test_jobs_are_canceled(core):
    queued, running, by_sql = core.enqueue("a"), core.enqueue("b", queue="other"), core.enqueue("c")
    (run,) = core.claim(queue="other")

    core.queue.cancel(queued)
    core.queue.cancel(running)
    core.sql("UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s", str(by_sql))
    core.settle(run, Status.FAILED, error="stopped")

    assert {core.status(job_id) for job_id in (queued, running, by_sql)} == {Status.CANCELED}


def test_expired_lease_is_reaped_and_the_blocked_job_runs(core):
    lost, blocked = core.enqueue(max_attempts=1), core.enqueue()
    (run,) = core.claim()
    core.claim()

    core.lose_attempt(run)

    assert (core.status(lost), core.wait_state(blocked)) == (Status.LOST, "ready")
    assert [run.id for run in core.claim()] == [blocked]


def test_released_and_expired_jobs(core):
    core.enqueue()
    (run,) = core.claim()

    assert core.release(run, ReleaseReason.SHUTDOWN).outcome == "applied"
    expired = core.queue.enqueue(NewJob(queue="q", task="t", lock_key="x", start_within_sec=1)).job_id
    core.sql("UPDATE dl_jobs SET expires_at = now() - interval '1 second' WHERE job_id = %s", str(expired))

    assert core.queue.expire() == 1
    assert core.status(run.id) is Status.QUEUED


def test_rows_are_deleted_with_their_events(core):
    job_id = core.enqueue()
    core.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(job_id))

    assert core.fetch_row("SELECT count(*) FROM dl_job_events") == 0


def test_heartbeat_finds_no_work_of_features(core):
    info = WorkerInfo(uuid4(), "w", "1", ("etl",), ("noop",), 2)

    heartbeat = WorkerLiveness(core.session).send_heartbeat(info, heartbeat_sec=5.0)
    known = QueueControl(core.session).known()

    assert heartbeat.is_new
    assert (heartbeat.next_schedule_in_sec, heartbeat.has_waiting_work, heartbeat.has_due_deliveries) == (
        None,
        False,
        False,
    )
    assert known.queues == {"etl"}
    assert known.tasks == {"noop"}


def test_statements_need_no_table_of_a_feature(core):
    """Each statement is prepared: the server knows its tables, functions and columns."""
    failed = {}
    for name in STATEMENTS:
        with core.db.cursor() as cursor:
            for part in statements("public")[name].parts:
                try:
                    cursor.execute(f"DEALLOCATE ALL; {part.prepare}")
                except psycopg2.Error as error:
                    failed[name] = str(error)

    assert len(STATEMENTS) > 40
    assert failed == {}
