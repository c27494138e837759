"""What is deleted and when; and the parts of the journal and of the logs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dataloader.app.features.retention.rows import EVENTS_TABLE, LOGS_TABLE, Retention, partition_span
from dataloader.app.queue.job import NewJob, Status
from dataloader.app.queue.job_records import LogEntry
from dataloader.app.queue.retention_periods import DAY_SEC, RetentionPeriods
from tests.support.queue_fixture import QueueFixture

WEEKS = RetentionPeriods(succeeded=14 * DAY_SEC, failed=30 * DAY_SEC, canceled=14 * DAY_SEC, lost=30 * DAY_SEC)


def ended(queue_db: QueueFixture, key: str, days: float, status: Status = Status.SUCCEEDED, **more):
    """A job that ended so many days ago."""
    run = queue_db.enqueue_and_claim(key, **more)
    queue_db.settle(run, status)
    queue_db.sql(
        "UPDATE dl_jobs SET finished_at = now() - make_interval(days => %s) WHERE job_id = %s", days, str(run.id)
    )
    return run.id


def there(queue_db: QueueFixture) -> set[str]:
    return {row[0] for row in queue_db.sql("SELECT lock_key FROM dl_jobs")}


def test_retention_by_status_and_task_spares_unfinished_jobs(queue_db):
    for key, days, status in (
        ("young", 13, Status.SUCCEEDED),
        ("old", 15, Status.SUCCEEDED),
        ("failed", 15, Status.FAILED),
        ("old failed", 31, Status.FAILED),
    ):
        ended(queue_db, key, days, status)
    ended(queue_db, "short", 2, task="short")
    ended(queue_db, "long", 31, Status.FAILED, task="long")
    queue_db.enqueue_and_claim("running")
    queue_db.enqueue("waiting")
    queue_db.sql("UPDATE dl_jobs SET created_at = '2020-01-01'")
    ages = RetentionPeriods(tasks={"short": {"succeeded": DAY_SEC}, "long": {"failed": 90 * DAY_SEC}})
    retention = Retention(queue_db.session, ages)

    result = retention.prune(dry_run=True)
    assert len(there(queue_db)) == 8, "a dry run deletes nothing"
    done = retention.prune()

    assert (
        dict(done.jobs) == dict(result.jobs) == {("succeeded", "t"): 1, ("failed", "t"): 1, ("succeeded", "short"): 1}
    )
    assert there(queue_db) == {"young", "failed", "long", "running", "waiting"}
    assert (
        queue_db.fetch_row("SELECT count(*) FROM dl_job_events WHERE job_id NOT IN (SELECT job_id FROM dl_jobs)") == 0
    )


def test_batches_are_small_and_report_whether_more_remain(queue_db):
    for n in range(5):
        ended(queue_db, f"k{n}", 20 + n)
    retention = Retention(queue_db.session, WEEKS)

    full = [retention.prune(limit=2).has_more for _ in range(3)]

    assert full == [True, True, False]
    assert there(queue_db) == set()


def test_retention_spares_locked_retried_and_parent_jobs(queue_db):
    held, retried, parent = (ended(queue_db, key, 40, Status.FAILED) for key in ("held", "retried", "parent"))
    child = queue_db.enqueue("child", parent_id=parent)
    retention = Retention(queue_db.session, WEEKS)
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(held))
        queue_db.new_queue().retry(retried)
        retention.prune()

    assert there(queue_db) == {"held", "retried", "parent", "child"}
    queue_db.queue.cancel(child)
    retention.prune()
    assert there(queue_db) == {"retried", "child"}


def test_jobs_that_may_not_go_do_not_keep_others_from_deletion(queue_db):
    (graph_id,) = queue_db.sql("INSERT INTO dl_graphs DEFAULT VALUES RETURNING graph_id")[0]
    kept = [ended(queue_db, f"kept {n}", 40) for n in range(4)]
    unfinished = [queue_db.enqueue("unfinished", queue="other", parent_id=parent) for parent in kept[2:]]
    unfinished.append(queue_db.enqueue("unfinished", queue="other"))
    of_graph = [str(job_id) for job_id in (*kept[:2], unfinished[-1])]
    queue_db.sql("UPDATE dl_jobs SET graph_id = %s WHERE job_id = ANY (%s::uuid[])", str(graph_id), of_graph)
    queue_db.sql("UPDATE dl_jobs SET finished_at = now() - interval '40 days' WHERE status = 'succeeded'")
    for n in range(3):
        ended(queue_db, f"younger {n}", 20)
    ended(queue_db, "of a later status", 40, Status.FAILED)
    retention = Retention(queue_db.session, WEEKS)

    sweep = [retention.prune(limit=2) for _ in range(5)]

    assert [sum(batch.jobs.values()) for batch in sweep] == [0, 0, 2, 2, 0]
    assert [batch.has_more for batch in sweep] == [True, True, True, True, False]
    assert there(queue_db) == {"kept 0", "kept 1", "kept 2", "kept 3", "unfinished"}

    for job_id in unfinished:
        queue_db.queue.cancel(job_id)
    assert sum(retention.prune(limit=9).jobs.values()) == 4, "the next sweep begins at the oldest"


def test_retention_spares_parents_of_other_open_graphs(queue_db):
    (graph_id,) = queue_db.sql("INSERT INTO dl_graphs DEFAULT VALUES RETURNING graph_id")[0]
    awaited = ended(queue_db, "awaited", 40)
    queue_db.sql("UPDATE dl_jobs SET graph_id = %s WHERE job_id = %s", str(graph_id), str(awaited))
    child = queue_db.enqueue("child")
    queue_db.sql("INSERT INTO dl_edges VALUES (%s, %s, 'ended', true)", str(child), str(awaited))
    retention = Retention(queue_db.session, WEEKS)

    retention.prune()
    assert there(queue_db) == {"awaited", "child"}

    queue_db.queue.cancel(child)
    retention.prune()
    assert there(queue_db) == {"child"}


def test_idempotency_key_is_free_after_its_job_is_deleted(queue_db):
    job_id = ended(queue_db, "k", 20, idempotency_key="once")
    Retention(queue_db.session, WEEKS).prune()

    again = queue_db.queue.enqueue(NewJob(queue="q", task="t", lock_key="k", idempotency_key="once"))

    assert again.created
    assert again.job_id != job_id


# ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def parts(queue_db: QueueFixture, parent: str = EVENTS_TABLE) -> list[str]:
    return [row[0] for row in queue_db.sql("SELECT part FROM dl_partitions(%s)", parent)]


def part_of(queue_db: QueueFixture, job_id: object) -> list[str]:
    return [
        row[0]
        for row in queue_db.sql(
            "SELECT tableoid::regclass::text FROM dl_job_events WHERE job_id = %s ORDER BY event_id", str(job_id)
        )
    ]


def age_all_parts(queue_db: QueueFixture, days: int) -> None:
    """As if so much time had gone by: the bounds of parts stand for times, and so do the numbers within."""
    queue_db.sql(f"UPDATE dl_job_events SET ts = ts - interval '{days} days'")
    queue_db.sql("SELECT setval('dl_job_events_event_id_seq', (SELECT max(high) FROM dl_partitions('dl_job_events')))")


def test_partition_is_created_ahead_and_used_when_due(own_queue_db):
    queue_db = own_queue_db
    before = parts(queue_db)
    now = datetime.now(UTC)
    retention = Retention(queue_db.session, RetentionPeriods())

    made = retention.create_partitions()

    assert [name for name in parts(queue_db) if name not in before] == [name for name in made if EVENTS_TABLE in name]
    assert retention.create_partitions() == [], "they reach far enough now"
    low = queue_db.fetch_row("SELECT max(low) FROM dl_partitions('dl_job_events')")
    assert datetime.fromtimestamp(low / 100_000, UTC) > now
    job_id = queue_db.enqueue()
    assert part_of(queue_db, job_id) == [before[-1]], "its time has not come"

    # A part of the present second, as if the one before had ended just now.
    queue_db.sql("DROP TABLE " + ", ".join(name for name in parts(queue_db)))
    queue_db.sql("SELECT setval('dl_job_events_event_id_seq', 1)")
    queue_db.sql("SELECT dl_create_partitions('dl_job_events', interval '1 hour', interval '1 second')")
    assert queue_db.fetch_row("SELECT dl_advance_sequence('dl_job_events')") == parts(queue_db)[0]
    assert queue_db.fetch_row("SELECT dl_advance_sequence('dl_job_events')") is None
    assert part_of(queue_db, queue_db.enqueue("later")) == [parts(queue_db)[0]]


def test_insert_needs_no_existing_partition(own_queue_db):
    queue_db = own_queue_db
    queue_db.sql("DROP TABLE " + ", ".join(parts(queue_db)))

    job_id = queue_db.enqueue()

    assert part_of(queue_db, job_id) == ["dl_job_events_default"]
    assert queue_db.event_kinds(job_id) == ["queued"]


def test_old_partition_is_dropped_but_never_the_current_one(own_queue_db):
    queue_db = own_queue_db
    retention = Retention(queue_db.session, RetentionPeriods())
    retention.create_partitions()
    first = parts(queue_db)[0]
    kept = ended(queue_db, "kept", 1, Status.FAILED)
    assert set(part_of(queue_db, kept)) == {first}
    assert retention.drop_partitions() == []

    age_all_parts(queue_db, 29)
    assert retention.drop_partitions() == []
    age_all_parts(queue_db, 2)
    assert retention.drop_partitions(dry_run=True)[0] == first
    assert retention.drop_partitions() == [first]

    assert queue_db.event_kinds(kept) == []
    assert first not in parts(queue_db)
    assert set(part_of(queue_db, queue_db.enqueue("new"))) == {"dl_job_events_default"}, (
        "the parts were used up by hand"
    )


def test_open_transaction_keeps_events_across_rollover_and_drop(own_queue_db):
    queue_db = own_queue_db
    retention = Retention(queue_db.session, RetentionPeriods())
    retention.create_partitions()
    first = parts(queue_db)[0]
    queue_db.enqueue("old")
    with queue_db.open_transaction() as step:
        step("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'open')")
        age_all_parts(queue_db, 40)
        assert retention.drop_partitions() == [], "a session writes to it"
        new = queue_db.enqueue("new")

    open_job = queue_db.fetch_row("SELECT job_id FROM dl_jobs WHERE lock_key = 'open'")
    assert part_of(queue_db, open_job) == [first]
    assert part_of(queue_db, new) != [first]
    assert retention.drop_partitions() == [], "its last event is young"


def test_partition_is_created_while_jobs_are_inserted(own_queue_db):
    queue_db = own_queue_db
    with queue_db.open_transaction() as step:
        step("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'open')")
        assert any(EVENTS_TABLE in name for name in Retention(queue_db.session, RetentionPeriods()).create_partitions())


def test_partition_creation_gives_up_soon_under_long_read(own_queue_db):
    queue_db = own_queue_db
    before = parts(queue_db)
    with queue_db.open_transaction() as step:
        step("SELECT count(*) FROM dl_job_events")
        assert [
            name for name in Retention(queue_db.session, RetentionPeriods()).create_partitions() if EVENTS_TABLE in name
        ] == []

    assert parts(queue_db) == before
    assert any(EVENTS_TABLE in name for name in Retention(queue_db.session, RetentionPeriods()).create_partitions())


def test_logs_are_dropped_by_the_part_too(own_queue_db):
    queue_db = own_queue_db
    retention = Retention(queue_db.session, RetentionPeriods(logs=3 * DAY_SEC))
    retention.create_partitions()
    first = parts(queue_db, LOGS_TABLE)[0]
    job_id = queue_db.enqueue()
    queue_db.queue.write_logs([LogEntry(job_id, 1, 4 * DAY_SEC, "INFO", "log", "long ago")])
    queue_db.sql("SELECT setval('dl_job_logs_log_id_seq', (SELECT high FROM dl_partitions('dl_job_logs') LIMIT 1))")
    queue_db.queue.write_logs([LogEntry(job_id, 1, 0.0, "INFO", "log", "just now")])

    assert first in retention.drop_partitions()
    assert [line.line for line in queue_db.queue.logs(job_id).lines] == ["just now"]


@pytest.mark.parametrize(
    ("keep", "span"),
    [
        (30 * DAY_SEC, 6 * DAY_SEC),
        (365 * DAY_SEC, 7 * DAY_SEC),
        (14 * DAY_SEC, 2 * DAY_SEC),
        (DAY_SEC, DAY_SEC // 5),
        (864, 172.0),
    ],
)
def test_a_part_is_a_fifth_of_the_time_that_things_are_kept(keep, span):
    assert partition_span(keep) == span


def test_a_time_zone_moves_no_bound(own_queue_db):
    queue_db = own_queue_db
    queue_db.sql("SET timezone = 'Asia/Tokyo'")
    low = queue_db.fetch_row("SELECT min(low) FROM dl_partitions('dl_job_events')")

    assert datetime.fromtimestamp(low / 100_000, UTC).time() == datetime.min.time()
    assert datetime.now(UTC) - datetime.fromtimestamp(low / 100_000, UTC) < timedelta(days=2)
