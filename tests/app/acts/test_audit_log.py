"""An act is in the audit log with the name of its caller, or neither is written."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg2
import pytest

from dataloader.app.acts.audit_log import AuditLog, AuditPage, Triggers
from dataloader.app.db.pool import BorrowedConnection, Pool
from dataloader.app.db.statements import AuditContext, acting_as
from dataloader.app.features.retention.rows import Retention
from dataloader.app.queue.job import NewJob
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.retention_periods import DAY_SEC, RetentionPeriods

ANNA = AuditContext(
    action="test", actor="Anna", via="key", key_id="3f9a1c22b7d0", address="192.0.2.7", request_id="r-1"
)


@pytest.fixture
def pool(dsn):
    made = Pool(dsn, size=1, overflow=0)
    yield made
    made.close()


@pytest.fixture
def audit(pool):
    return AuditLog(pool)


def do(dsn: str, sql: str, *args: object) -> None:
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(sql, args)
    finally:
        connection.close()


def job(n: int = 0) -> NewJob:
    return NewJob(queue="q", task="t", lock_key=f"k{n}", args={"password": "s3cret"})


def test_change_is_audited_only_with_an_actor(pool, audit):
    queue = JobQueue(pool)
    quiet = queue.enqueue(job()).job_id
    with acting_as(ANNA):
        queue.cancel(quiet)
        queue.get(quiet)
        queue.cancel(quiet)
    queue.retry(quiet)

    (line,) = audit.entries()
    assert (line.action, line.actor, line.via, line.key_id) == ("test", "Anna", "key", "3f9a1c22b7d0")
    assert (line.address, line.request_id, line.subject, line.subject_id) == ("192.0.2.7", "r-1", "job", str(quiet))
    assert (line.before, line.after) == (
        {"status": "queued", "cancel_requested": False}, {"status": "canceled", "cancel_requested": True},
    )  # fmt: skip
    assert line.db_user


def test_only_this_thread_acts_and_only_as_long_as_it_says(pool, audit):
    queue = JobQueue(pool)
    with pytest.raises(ZeroDivisionError), acting_as(ANNA):
        _ = 1 / 0
    queue.enqueue(job())

    assert audit.entries() == []


def test_unblocking_by_cancel_writes_no_audit_entry(pool, audit, dsn):
    queue = JobQueue(pool)
    first, second = (queue.enqueue(job()).job_id for _ in range(2))
    do(dsn, "UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(second))
    with acting_as(ANNA):
        JobQueue(pool).cancel(first)

    assert [line.subject_id for line in audit.entries()] == [str(first)]


def test_many_jobs_at_once_are_one_line_and_no_args_are_in_it(dsn, audit):
    connection = psycopg2.connect(dsn)
    try:
        with connection, acting_as(ANNA):
            source = BorrowedConnection(connection)
            JobQueue(source).enqueue(job(1))
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO dl_jobs (queue, task, lock_key, args)"
                    " SELECT 'q', 't', n::text, '{\"password\": \"s3cret\"}' FROM generate_series(1, 50) n"
                )
    finally:
        connection.close()

    many, one = audit.entries()
    assert many.after == {"jobs": 50, "queues": ["q"], "tasks": ["t"]}
    assert one.after["lock_key"] == "k1"
    assert "s3cret" not in str([many, one])


def test_what_is_rolled_back_was_not_done(dsn, audit):
    connection = psycopg2.connect(dsn)
    with acting_as(ANNA):
        JobQueue(BorrowedConnection(connection)).enqueue(job())
    connection.rollback()
    connection.close()

    assert audit.entries() == []


def test_changed_args_are_listed_by_name(pool, audit, dsn):
    job_id = str(
        JobQueue(pool).enqueue(NewJob(queue="q", task="t", lock_key="k", args={"a": 1, "b": 1, "c": 1})).job_id
    )
    with acting_as(ANNA):
        pool.execute("retry", {"job_id": job_id, "keep_time": False})  # there is nothing to retry
    do(
        dsn,
        "SELECT set_config('dl.audit_context', %s, true);"
        """UPDATE dl_jobs SET args = '{"a": 2, "c": 1, "d": 1}', priority = 7 WHERE job_id = %s""",
        '{"action": "edit", "actor": "x", "via": "y"}',
        job_id,
    )

    (line,) = audit.entries()
    assert line.before == {"args": ["a", "b"], "priority": 100}
    assert line.after == {"args": ["a", "d"], "priority": 7}


def test_a_name_that_would_break_a_statement_does_not(pool, audit):
    odd = AuditContext(action="'; DROP TABLE dl_jobs; --\0", actor='"}\ud800', via="%s %(x)s", request_id="x" * 9000)
    with acting_as(odd):
        JobQueue(pool).enqueue(job())

    (line,) = audit.entries()
    assert line.via == "%s %(x)s"
    assert len(line.request_id or "") < 1000


def test_prune_keeps_audit_entries_of_the_last_day(pool, audit, dsn):
    for age in (2, 400):
        audit.record(ANNA, "session")
        do(dsn, "UPDATE dl_audit SET at = now() - make_interval(days => %s) WHERE at > now() - interval '1 hour'", age)
    audit.record(ANNA, "session")

    assert Retention(pool, RetentionPeriods()).prune_audit() == 1
    assert Retention(pool, RetentionPeriods(audit=0)).prune_audit() == 1
    assert Retention(pool, RetentionPeriods(audit=-DAY_SEC)).prune_audit() == 0


@pytest.fixture
def busy_audit(dsn: str, audit: AuditLog) -> AuditLog:
    """Five triggers of two actors, an edit between them, and one trigger an hour earlier."""
    rows = [("11:59", "billing"), ("12:01", "billing"), ("12:02", "crm"), ("12:03", None), ("12:04", "billing")]
    do(dsn, "TRUNCATE dl_audit")
    for at, actor in [*rows, ("12:05", "billing")]:
        do(
            dsn,
            "INSERT INTO dl_audit (at, action, actor, via, subject, subject_id, before, after)"
            " VALUES (%s, %s, %s, 'key', 'job', 'x', %s, '{\"priority\": 1}')",
            f"2030-01-31T{at}Z",
            "edit_job" if actor is None else "trigger_job",
            actor or "anna",
            None if actor else '{"priority": 2}',
        )
    return audit


def shown(page: AuditPage) -> list[tuple[str, int]]:
    return [(entry.actor, entry.count) for entry in page.entries]


def test_triggers_of_an_actor_and_hour_are_folded(busy_audit):
    page = busy_audit.page(triggers=Triggers.FOLDED)

    assert shown(page) == [("billing", 3), ("anna", 1), ("crm", 1), ("billing", 1)]
    folded, *_ = page.entries
    assert (folded.first_at, folded.at) == (
        datetime(2030, 1, 31, 12, 1, tzinfo=UTC),
        datetime(2030, 1, 31, 12, 5, tzinfo=UTC),
    )
    assert (folded.subject_id, folded.after, page.next) == (None, None, None)


def test_pages_of_folded_triggers_have_each_entry_once(busy_audit):
    found, before = [], None
    while True:
        page = busy_audit.page(triggers=Triggers.FOLDED, limit=1, before=before)
        found += shown(page)
        before = page.next
        if before is None:
            break

    assert found == [("billing", 2), ("anna", 1), ("crm", 1), ("billing", 1), ("billing", 1)]


def test_a_scan_of_folded_triggers_is_bounded(busy_audit, monkeypatch):
    monkeypatch.setattr("dataloader.app.acts.audit_log.MAX_FOLDED_ENTRIES", 2)

    first = busy_audit.page(triggers=Triggers.FOLDED)
    second = busy_audit.page(triggers=Triggers.FOLDED, before=first.next)

    assert (shown(first), shown(second)) == ([("billing", 2)], [("anna", 1), ("crm", 1)])


def test_changes_are_listed_without_triggers(busy_audit):
    assert shown(busy_audit.page(triggers=Triggers.NONE)) == [("anna", 1)]
    assert shown(busy_audit.page(triggers=Triggers.ALL, actor="crm")) == [("crm", 1)]


def test_filter_values_are_those_of_the_newest_entries(busy_audit):
    values = busy_audit.values()

    assert values.actors == ["anna", "billing", "crm"]
    assert values.actions == ["edit_job", "trigger_job"]
    assert values.subjects == ["job"]
