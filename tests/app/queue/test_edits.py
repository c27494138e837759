from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from app.errors import JobChanged, JobNotFound, NotDeletable, NotEditable
from app.queue.edits import Edit, Edits
from app.queue.job import NewJob, Status
from app.queue.lists import Lists
from tests.support.desk import Desk


@pytest.fixture
def edits(desk: Desk) -> Edits:
    return Edits(desk.session)


def test_a_waiting_job_gets_what_is_given_keeps_the_rest_and_the_journal_tells_before_and_after(desk, edits):
    job_id = desk.enqueue("k", args={"n": 1}, priority=5, time_limit_sec=9, retry={"kind": "fixed", "seconds": 1})
    before = desk.job(job_id)

    edits.edit(job_id, Edit(priority=1, args={"n": 2}, clear=frozenset({"time_limit_sec"})))

    now = desk.job(job_id)
    assert (now.priority, now.args, now.time_limit_sec, now.retry) == (1, {"n": 2}, None, before.retry)
    (event,) = [event for event in desk.queue.events(job_id) if event.kind == "edited"]
    assert event.payload["before"] == {"priority": 5, "args": {"n": 1}, "time_limit_sec": 9}
    assert event.payload["after"] == {"priority": 1, "args": {"n": 2}, "time_limit_sec": None}
    desk.check()


def test_a_producer_that_repeats_its_request_finds_the_edited_job(desk, edits):
    asked = NewJob(queue="q", task="t", lock_key="k", args={"n": 1}, idempotency_key="once")
    ours = desk.queue.enqueue(asked).job_id
    theirs = desk.insert("k2", queue="q", idempotency_key="twice", args='{"n": 1}')

    for job_id in (ours, theirs):
        edits.edit(job_id, Edit(args={"n": 2}))

    assert desk.queue.enqueue(asked).job_id == ours
    again = NewJob(queue="q", task="t", lock_key="k2", args={"n": 1}, idempotency_key="twice")
    assert desk.queue.enqueue(again).job_id == theirs


def test_a_later_time_puts_a_ready_job_off_and_an_earlier_one_wakes_it(desk, edits):
    job_id = desk.enqueue("k")
    later = datetime.now(UTC) + timedelta(hours=1)

    edits.edit(job_id, Edit(available_at=later))
    assert desk.claim() == []

    edits.edit(job_id, Edit(available_at=datetime.now(UTC) - timedelta(seconds=1)))
    desk.queue.promote()
    assert [run.id for run in desk.claim()] == [job_id]


def test_only_the_version_that_was_seen_is_changed(desk, edits):
    job_id = desk.enqueue("k")
    seen = Lists(desk.session).versioned(job_id).version

    after = edits.edit(job_id, Edit(priority=1), seen=seen)

    with pytest.raises(JobChanged):
        edits.edit(job_id, Edit(priority=2), seen=seen)
    assert edits.edit(job_id, Edit(priority=2), seen=after.version).job.priority == 2


def test_what_runs_or_has_ended_is_not_edited_and_what_lives_is_not_deleted(desk, edits):
    waiting = desk.enqueue("w", queue="other")
    run = desk.claimed("k")
    for job_id in (waiting, run.id):
        with pytest.raises(NotDeletable):
            edits.delete(job_id)
    with pytest.raises(NotEditable):
        edits.edit(run.id, Edit(priority=1))
    with pytest.raises(JobNotFound):
        edits.edit(uuid4(), Edit(priority=1))


def test_a_finished_job_goes_with_its_journal_and_its_log(desk, edits):
    run = desk.claimed("k")
    desk.settle(run, Status.FAILED)
    desk.sql("INSERT INTO dl_job_logs VALUES (default, %s, 1, now(), 'INFO', 'log', 'said')", str(run.id))
    with pytest.raises(JobChanged):
        edits.delete(run.id, seen="1")

    edits.delete(run.id)

    assert desk.queue.get(run.id) is None
    assert desk.one("SELECT count(*) FROM dl_job_events WHERE job_id = %s", str(run.id)) == 0
    assert desk.one("SELECT count(*) FROM dl_job_logs WHERE job_id = %s", str(run.id)) == 0
    with pytest.raises(JobNotFound):
        edits.delete(run.id)
