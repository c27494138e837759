"""What is deleted and when; and the parts of the journal and of the logs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from app.admin.retention import DAY_SEC, EVENTS_TABLE, LOGS_TABLE, Retention, RetentionPeriods, partition_span
from app.queue.job import LogEntry, NewJob, Status
from tests.support.queue_fixture import QueueFixture

WEEKS = RetentionPeriods(succeeded=14 * DAY_SEC, failed=30 * DAY_SEC, canceled=14 * DAY_SEC, lost=30 * DAY_SEC)


def ended(desk: QueueFixture, key: str, days: float, status: Status = Status.SUCCEEDED, **more):
    """A job that ended so many days ago."""
    run = desk.enqueue_and_claim(key, **more)
    desk.settle(run, status)
    desk.sql("UPDATE dl_jobs SET finished_at = now() - make_interval(days => %s) WHERE job_id = %s", days, str(run.id))
    return run.id


def there(desk: QueueFixture) -> set[str]:
    return {row[0] for row in desk.sql("SELECT lock_key FROM dl_jobs")}


def test_retention_by_status_and_task_spares_unfinished_jobs(desk):
    for key, days, status in (
        ("young", 13, Status.SUCCEEDED),
        ("old", 15, Status.SUCCEEDED),
        ("failed", 15, Status.FAILED),
        ("old failed", 31, Status.FAILED),
    ):
        ended(desk, key, days, status)
    ended(desk, "short", 2, task="short")
    ended(desk, "long", 31, Status.FAILED, task="long")
    desk.enqueue_and_claim("running")
    desk.enqueue("waiting")
    desk.sql("UPDATE dl_jobs SET created_at = '2020-01-01'")
    ages = RetentionPeriods(tasks={"short": {"succeeded": DAY_SEC}, "long": {"failed": 90 * DAY_SEC}})
    retention = Retention(desk.session, ages)

    told = retention.prune(dry_run=True)
    assert len(there(desk)) == 8, "a dry run deletes nothing"
    done = retention.prune()

    assert dict(done.jobs) == dict(told.jobs) == {("succeeded", "t"): 1, ("failed", "t"): 1, ("succeeded", "short"): 1}
    assert there(desk) == {"young", "failed", "long", "running", "waiting"}
    assert desk.fetch_row("SELECT count(*) FROM dl_job_events WHERE job_id NOT IN (SELECT job_id FROM dl_jobs)") == 0


def test_batches_are_small_and_tell_whether_there_may_be_more(desk):
    for n in range(5):
        ended(desk, f"k{n}", 20 + n)
    retention = Retention(desk.session, WEEKS)

    full = [retention.prune(limit=2).has_more for _ in range(3)]

    assert full == [True, True, False]
    assert there(desk) == set()


def test_retention_spares_locked_retried_and_parent_jobs(desk):
    held, retried, parent = (ended(desk, key, 40, Status.FAILED) for key in ("held", "retried", "parent"))
    child = desk.enqueue("child", parent_id=parent)
    retention = Retention(desk.session, WEEKS)
    with desk.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(held))
        desk.new_queue().retry(retried)
        retention.prune()

    assert there(desk) == {"held", "retried", "parent", "child"}
    desk.queue.cancel(child)
    retention.prune()
    assert there(desk) == {"retried", "child"}


def test_idempotency_key_is_free_after_its_job_is_deleted(desk):
    job_id = ended(desk, "k", 20, idempotency_key="once")
    Retention(desk.session, WEEKS).prune()

    again = desk.queue.enqueue(NewJob(queue="q", task="t", lock_key="k", idempotency_key="once"))

    assert again.created
    assert again.job_id != job_id


# ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def parts(desk: QueueFixture, parent: str = EVENTS_TABLE) -> list[str]:
    return [row[0] for row in desk.sql("SELECT part FROM dl_partitions(%s)", parent)]


def part_of(desk: QueueFixture, job_id: object) -> list[str]:
    return [
        row[0]
        for row in desk.sql(
            "SELECT tableoid::regclass::text FROM dl_job_events WHERE job_id = %s ORDER BY event_id", str(job_id)
        )
    ]


def age_all_parts(desk: QueueFixture, days: int) -> None:
    """As if so much time had gone by: the bounds of parts stand for times, and so do the numbers within."""
    desk.sql(f"UPDATE dl_job_events SET ts = ts - interval '{days} days'")
    desk.sql("SELECT setval('dl_job_events_event_id_seq', (SELECT max(high) FROM dl_partitions('dl_job_events')))")


def test_partition_is_created_ahead_and_used_when_due(own_desk):
    desk = own_desk
    before = parts(desk)
    now = datetime.now(UTC)
    retention = Retention(desk.session, RetentionPeriods())

    made = retention.create_partitions()

    assert [name for name in parts(desk) if name not in before] == [name for name in made if EVENTS_TABLE in name]
    assert retention.create_partitions() == [], "they reach far enough now"
    low = desk.fetch_row("SELECT max(low) FROM dl_partitions('dl_job_events')")
    assert datetime.fromtimestamp(low / 100_000, UTC) > now
    job_id = desk.enqueue()
    assert part_of(desk, job_id) == [before[-1]], "its time has not come"

    # A part of the present second, as if the one before had ended just now.
    desk.sql("DROP TABLE " + ", ".join(name for name in parts(desk)))
    desk.sql("SELECT setval('dl_job_events_event_id_seq', 1)")
    desk.sql("SELECT dl_create_partitions('dl_job_events', interval '1 hour', interval '1 second')")
    assert desk.fetch_row("SELECT dl_advance_sequence('dl_job_events')") == parts(desk)[0]
    assert desk.fetch_row("SELECT dl_advance_sequence('dl_job_events')") is None
    assert part_of(desk, desk.enqueue("later")) == [parts(desk)[0]]


def test_an_insert_needs_nobody_who_makes_parts(own_desk):
    desk = own_desk
    desk.sql("DROP TABLE " + ", ".join(parts(desk)))

    job_id = desk.enqueue()

    assert part_of(desk, job_id) == ["dl_job_events_default"]
    assert desk.event_kinds(job_id) == ["queued"]


def test_old_partition_is_dropped_but_never_the_current_one(own_desk):
    desk = own_desk
    retention = Retention(desk.session, RetentionPeriods())
    retention.create_partitions()
    first = parts(desk)[0]
    kept = ended(desk, "kept", 1, Status.FAILED)
    assert set(part_of(desk, kept)) == {first}
    assert retention.drop_partitions() == []

    age_all_parts(desk, 29)
    assert retention.drop_partitions() == []
    age_all_parts(desk, 2)
    assert retention.drop_partitions(dry_run=True)[0] == first
    assert retention.drop_partitions() == [first]

    assert desk.event_kinds(kept) == []
    assert first not in parts(desk)
    assert set(part_of(desk, desk.enqueue("new"))) == {"dl_job_events_default"}, "the parts were used up by hand"


def test_open_transaction_keeps_events_across_rollover_and_drop(own_desk):
    desk = own_desk
    retention = Retention(desk.session, RetentionPeriods())
    retention.create_partitions()
    first = parts(desk)[0]
    desk.enqueue("old")
    with desk.open_transaction() as step:
        step("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'open')")
        age_all_parts(desk, 40)
        assert retention.drop_partitions() == [], "somebody writes to it"
        new = desk.enqueue("new")

    open_job = desk.fetch_row("SELECT job_id FROM dl_jobs WHERE lock_key = 'open'")
    assert part_of(desk, open_job) == [first]
    assert part_of(desk, new) != [first]
    assert retention.drop_partitions() == [], "its last event is young"


def test_a_part_is_made_while_somebody_writes_jobs(own_desk):
    desk = own_desk
    with desk.open_transaction() as step:
        step("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'open')")
        assert any(EVENTS_TABLE in name for name in Retention(desk.session, RetentionPeriods()).create_partitions())


def test_partition_creation_gives_up_soon_under_long_read(own_desk):
    desk = own_desk
    before = parts(desk)
    with desk.open_transaction() as step:
        step("SELECT count(*) FROM dl_job_events")
        assert [
            name for name in Retention(desk.session, RetentionPeriods()).create_partitions() if EVENTS_TABLE in name
        ] == []

    assert parts(desk) == before
    assert any(EVENTS_TABLE in name for name in Retention(desk.session, RetentionPeriods()).create_partitions())


def test_logs_are_dropped_by_the_part_too(own_desk):
    desk = own_desk
    retention = Retention(desk.session, RetentionPeriods(logs=3 * DAY_SEC))
    retention.create_partitions()
    first = parts(desk, LOGS_TABLE)[0]
    job_id = desk.enqueue()
    desk.queue.write_logs([LogEntry(job_id, 1, 4 * DAY_SEC, "INFO", "log", "long ago")])
    desk.sql("SELECT setval('dl_job_logs_log_id_seq', (SELECT high FROM dl_partitions('dl_job_logs') LIMIT 1))")
    desk.queue.write_logs([LogEntry(job_id, 1, 0.0, "INFO", "log", "just now")])

    assert first in retention.drop_partitions()
    assert [line.line for line in desk.queue.logs(job_id).lines] == ["just now"]


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


def test_a_time_zone_moves_no_bound(own_desk):
    desk = own_desk
    desk.sql("SET timezone = 'Asia/Tokyo'")
    low = desk.fetch_row("SELECT min(low) FROM dl_partitions('dl_job_events')")

    assert datetime.fromtimestamp(low / 100_000, UTC).time() == datetime.min.time()
    assert datetime.now(UTC) - datetime.fromtimestamp(low / 100_000, UTC) < timedelta(days=2)
