"""Jobs by an id or a part of one."""

from __future__ import annotations

import pytest

from dataloader.app.features.jobs.job_lookup import JobLookup
from tests.support.queue_fixture import QueueFixture


@pytest.mark.parametrize("text", ["", "load", "0", "1234567", "…", "01a2…", "g" * 32, "0" * 33])
def test_text_that_is_no_id_finds_nothing(queue_db: QueueFixture, text: str):
    queue_db.enqueue()

    assert JobLookup(queue_db.session).by_id(text) == []


def test_part_of_id_finds_all_jobs_that_have_it(queue_db: QueueFixture):
    first, second = queue_db.enqueue("a", queue="lookup"), queue_db.enqueue("b", queue="lookup")
    lookup = JobLookup(queue_db.session)

    by_start = [job.job_id for job in lookup.by_id(str(second)[:8])]
    (by_ends,) = lookup.by_id(f"{str(first)[:4]}…{str(first)[-12:]}")

    assert by_start.index(second) < by_start.index(first)  # the newer one first
    assert (by_ends.job_id, by_ends.queue, by_ends.status.value) == (first, "lookup", "queued")
