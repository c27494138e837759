from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from dataloader.app.errors import JobChanged, JobNotFound, NotDeletable, NotEditable
from dataloader.app.features.jobs.edits import JobEditor
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.queue.job import NewJob, Status
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def edits(queue_db: QueueFixture) -> JobEditor:
    return JobEditor(queue_db.session)


def test_edit_changes_given_fields_and_records_before_and_after(queue_db, edits):
    job_id = queue_db.enqueue("k", args={"n": 1}, priority=5, time_limit_sec=9, retry={"kind": "fixed", "seconds": 1})
    before = queue_db.job(job_id)

    edits.edit(job_id, {"priority": 1, "args": {"n": 2}, "time_limit_sec": None})

    now = queue_db.job(job_id)
    assert (now.priority, now.args, now.time_limit_sec, now.retry) == (1, {"n": 2}, None, before.retry)
    (event,) = [event for event in queue_db.queue.events(job_id) if event.kind == "edited"]
    assert event.payload["before"] == {"priority": 5, "args": {"n": 1}, "time_limit_sec": 9}
    assert event.payload["after"] == {"priority": 1, "args": {"n": 2}, "time_limit_sec": None}
    queue_db.check_invariants()


def test_repeated_request_returns_edited_job(queue_db, edits):
    asked = NewJob(queue="q", task="t", lock_key="k", args={"n": 1}, idempotency_key="once")
    ours = queue_db.queue.enqueue(asked).job_id
    theirs = queue_db.insert("k2", queue="q", idempotency_key="twice", args='{"n": 1}')

    for job_id in (ours, theirs):
        edits.edit(job_id, {"args": {"n": 2}})

    assert queue_db.queue.enqueue(asked).job_id == ours
    again = NewJob(queue="q", task="t", lock_key="k2", args={"n": 1}, idempotency_key="twice")
    assert queue_db.queue.enqueue(again).job_id == theirs


def test_edit_of_available_at_delays_or_readies_job(queue_db, edits):
    job_id = queue_db.enqueue("k")
    later = datetime.now(UTC) + timedelta(hours=1)

    edits.edit(job_id, {"available_at": later})
    assert queue_db.claim() == []

    edits.edit(job_id, {"available_at": datetime.now(UTC) - timedelta(seconds=1)})
    queue_db.promote()
    assert [run.id for run in queue_db.claim()] == [job_id]


def test_only_the_version_that_was_seen_is_changed(queue_db, edits):
    job_id = queue_db.enqueue("k")
    reader = JobReader(queue_db.session)
    seen = reader.get_with_version(job_id).version

    edits.edit(job_id, {"priority": 1}, if_version=seen)

    with pytest.raises(JobChanged):
        edits.edit(job_id, {"priority": 2}, if_version=seen)
    edits.edit(job_id, {"priority": 2}, if_version=reader.get_with_version(job_id).version)
    assert queue_db.job(job_id).priority == 2


def test_only_queued_jobs_are_edited_and_only_finished_deleted(queue_db, edits):
    waiting = queue_db.enqueue("w", queue="other")
    run = queue_db.enqueue_and_claim("k")
    for job_id in (waiting, run.id):
        with pytest.raises(NotDeletable):
            edits.delete(job_id)
    with pytest.raises(NotEditable):
        edits.edit(run.id, {"priority": 1})
    with pytest.raises(JobNotFound):
        edits.edit(uuid4(), {"priority": 1})


def test_a_finished_job_goes_with_its_journal_and_its_log(queue_db, edits):
    run = queue_db.enqueue_and_claim("k")
    queue_db.settle(run, Status.FAILED)
    queue_db.sql("INSERT INTO dl_job_logs VALUES (default, %s, 1, now(), 'INFO', 'log', 'said')", str(run.id))
    with pytest.raises(JobChanged):
        edits.delete(run.id, if_version="1")

    edits.delete(run.id)

    assert queue_db.queue.get(run.id) is None
    assert queue_db.fetch_row("SELECT count(*) FROM dl_job_events WHERE job_id = %s", str(run.id)) == 0
    assert queue_db.fetch_row("SELECT count(*) FROM dl_job_logs WHERE job_id = %s", str(run.id)) == 0
    with pytest.raises(JobNotFound):
        edits.delete(run.id)
