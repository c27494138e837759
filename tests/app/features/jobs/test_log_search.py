"""Lines of jobs' logs: written in batches, read by page, deleted when they are old."""

from __future__ import annotations

from uuid import uuid4

import pytest

from dataloader.app.errors import DatabaseUnavailable, JobNotFound
from dataloader.app.features.jobs.log_search import JobLogSearch, LogFilter
from dataloader.app.queue.job_records import LogEntry


@pytest.fixture
def job_id(queue_db):
    queue_db.sql("TRUNCATE dl_job_logs")
    return queue_db.enqueue("key")


def logged(job_id, *lines, attempt=1, age=0.0, level="INFO", stream="log"):
    return [LogEntry(job_id, attempt, age, level, stream, line) for line in lines]


def texts(page):
    return [line.line for line in page.lines]


def test_lines_are_returned_unchanged_and_in_order(queue_db, job_id):
    strange = ["plain", "", "NULL", '{"a", \\n \\\\ %s %(x)s}', "Привет 😀"]

    queue_db.queue.write_logs(logged(job_id, *strange) + logged(uuid4(), "of another job"))

    page = queue_db.queue.logs(job_id)
    assert texts(page) == strange
    assert [line.log_id for line in page.lines] == sorted(line.log_id for line in page.lines)
    assert (page.lines[0].attempt, page.lines[0].level, page.lines[0].stream) == (1, "INFO", "log")


def test_a_line_is_as_old_as_it_was_when_it_was_written(queue_db, job_id):
    queue_db.queue.write_logs(logged(job_id, "old", age=3600.0) + logged(job_id, "new"))

    old, new = queue_db.queue.logs(job_id).lines
    assert 3500 < (new.ts - old.ts).total_seconds() < 3700


def test_a_page_begins_after_a_line_or_ends_with_the_last(queue_db, job_id):
    queue_db.queue.write_logs(logged(job_id, *"abcde"))
    second = queue_db.queue.logs(job_id, limit=2).lines[1]

    assert texts(queue_db.queue.logs(job_id, limit=2)) == ["a", "b"]
    assert texts(queue_db.queue.logs(job_id, after=second.log_id, limit=2)) == ["c", "d"]
    assert texts(queue_db.queue.logs(job_id, tail=True, limit=2)) == ["d", "e"]
    assert texts(queue_db.queue.logs(job_id, tail=True, after=second.log_id)) == ["c", "d", "e"]


def test_lines_are_chosen_by_level_attempt_and_stream(queue_db, job_id):
    queue_db.queue.write_logs(
        logged(job_id, "first", attempt=1, level="ERROR") + logged(job_id, "second", attempt=2, stream="stdout")
    )

    assert texts(queue_db.queue.logs(job_id, levels=["ERROR", "CRITICAL"])) == ["first"]
    assert texts(queue_db.queue.logs(job_id, attempt=2)) == ["second"]
    assert texts(queue_db.queue.logs(job_id, stream="stdout")) == ["second"]
    assert texts(queue_db.queue.logs(job_id, stream="stderr", tail=True)) == []


def test_a_log_is_complete_a_moment_after_its_job_has_ended(queue_db, job_id):
    assert not queue_db.queue.logs(job_id).complete

    queue_db.queue.cancel(job_id)
    assert not queue_db.queue.logs(job_id).complete

    queue_db.sql("UPDATE dl_jobs SET finished_at = finished_at - interval '1 minute'")
    assert queue_db.queue.logs(job_id).complete


def test_an_unknown_job_has_no_log(queue_db):
    with pytest.raises(JobNotFound):
        queue_db.queue.logs(uuid4())


def test_summary_counts_lines_and_dropped_lines(queue_db, job_id):
    queue_db.queue.write_logs(
        [
            *logged(job_id, *"abc"),
            LogEntry(job_id, 1, 0.0, "WARNING", "note", "… 40 lines left out …", 40),
            LogEntry(job_id, 2, 0.0, "WARNING", "note", "… 2 lines left out …", 2),
        ]
    )

    search = JobLogSearch(queue_db.queue.executor)
    summary = search.summary(job_id)
    assert (summary.lines, summary.dropped, summary.is_exact) == ({1: 4, 2: 1}, {1: 40, 2: 2}, True)
    assert (summary.line_count, summary.dropped_count) == (5, 42)
    assert not search.summary(job_id, max_lines=3).is_exact


def test_lines_are_searched_by_text_level_attempt_and_stream(queue_db, job_id):
    queue_db.queue.write_logs(
        logged(job_id, "one", "two") + logged(job_id, "three", attempt=2, level="ERROR", stream="stderr")
    )
    search = JobLogSearch(queue_db.queue.executor)

    def found(**log_filter):
        return [line.line for line in search.lines(job_id, LogFilter(**log_filter), page_lines=1)]

    assert found() == ["one", "two", "three"]
    assert found(text="T") == ["two", "three"]
    assert found(attempt=2) == found(stream="stderr") == found(levels=("ERROR", "CRITICAL")) == ["three"]


def test_a_locked_table_does_not_hold_up_the_writer(own_queue_db):
    own_queue_db.connect().cursor().execute("LOCK TABLE dl_job_logs")

    with pytest.raises(DatabaseUnavailable, match="lock timeout"):
        own_queue_db.queue.write_logs(logged(uuid4(), "one"))
