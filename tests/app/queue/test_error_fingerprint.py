"""The column error_fingerprint: written with an error, cleared with it."""

from __future__ import annotations

import pytest

from dataloader.app.queue.job import Status


def test_waiting_attempt_keeps_it_until_the_next_one_starts(queue_db):
    run = queue_db.enqueue_and_claim("k")
    queue_db.settle(run, Status.QUEUED, error="no", error_fingerprint="KeyError a.py:b")
    assert queue_db.job(run.id).error_fingerprint == "KeyError a.py:b"

    queue_db.make_due(run.id)
    queue_db.claim_once()

    assert queue_db.job(run.id).error_fingerprint is None


def test_job_lost_by_its_worker_has_a_fixed_one(queue_db):
    run = queue_db.enqueue_and_claim("k", max_attempts=1)
    queue_db.lose_attempt(run)

    assert (queue_db.status(run.id), queue_db.job(run.id).error_fingerprint) == (Status.LOST, "lease_expired")


@pytest.mark.parametrize("bad", ["x" * 5000, "zero \x00 and \ud800"])
def test_any_name_can_be_written(queue_db, bad):
    run = queue_db.enqueue_and_claim("k")
    queue_db.settle(run, Status.FAILED, error="no", error_fingerprint=bad)

    assert len(queue_db.job(run.id).error_fingerprint) <= 200
