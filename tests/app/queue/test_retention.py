"""What is deleted and when; and the parts of the journal and of the logs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from app.errors import IdempotencyConflict, InvalidJob
from app.queue.job import NewJob, Said, Status
from app.queue.retention import DAY, JOURNAL, LOGS, Ages, Retention, part_span
from tests.support.desk import Aside, Desk

WEEKS = Ages(succeeded=14 * DAY, failed=30 * DAY, canceled=14 * DAY, lost=30 * DAY)


def ended(desk: Desk, key: str, days: float, status: Status = Status.SUCCEEDED, **more):
    """A job that ended so many days ago."""
    run = desk.claimed(key, **more)
    desk.settle(run, status)
    desk.sql("UPDATE dl_jobs SET finished_at = now() - make_interval(days => %s) WHERE job_id = %s", days, str(run.id))
    return run.id


def there(desk: Desk) -> set[str]:
    return {row[0] for row in desk.sql("SELECT lock_key FROM dl_jobs")}


def test_each_status_and_task_has_its_age_and_what_has_not_ended_none(desk):
    for key, days, status in (
        ("young", 13, Status.SUCCEEDED),
        ("old", 15, Status.SUCCEEDED),
        ("failed", 15, Status.FAILED),
        ("old failed", 31, Status.FAILED),
    ):
        ended(desk, key, days, status)
    ended(desk, "short", 2, task="short")
    ended(desk, "long", 31, Status.FAILED, task="long")
    desk.claimed("running")
    desk.enqueue("waiting")
    desk.sql("UPDATE dl_jobs SET created_at = '2020-01-01'")
    ages = Ages(tasks={"short": {"succeeded": DAY}, "long": {"failed": 90 * DAY}})
    retention = Retention(desk.session, ages)

    told = retention.prune(dry=True)
    assert len(there(desk)) == 8, "a dry run deletes nothing"
    done = retention.prune()

    assert dict(done.jobs) == dict(told.jobs) == {("succeeded", "t"): 1, ("failed", "t"): 1, ("succeeded", "short"): 1}
    assert there(desk) == {"young", "failed", "long", "running", "waiting"}
    assert desk.one("SELECT count(*) FROM dl_job_events WHERE job_id NOT IN (SELECT job_id FROM dl_jobs)") == 0


def test_batches_are_small_and_tell_whether_there_may_be_more(desk):
    for n in range(5):
        ended(desk, f"k{n}", 20 + n)
    retention = Retention(desk.session, WEEKS)

    full = [retention.prune(most=2).full for _ in range(3)]

    assert full == [True, True, False]
    assert there(desk) == set()


def test_a_job_that_is_held_or_was_retried_or_has_children_that_wait_stays(desk):
    held, retried, parent = (ended(desk, key, 40, Status.FAILED) for key in ("held", "retried", "parent"))
    child = desk.enqueue("child", parent_id=parent)
    retention = Retention(desk.session, WEEKS)
    with desk.held() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(held))
        desk.another().retry(retried)
        retention.prune()

    assert there(desk) == {"held", "retried", "parent", "child"}
    desk.queue.cancel(child)
    retention.prune()
    assert there(desk) == {"retried", "child"}


# ── a key is for ever ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_key_of_a_deleted_job_still_finds_it_or_is_in_conflict(desk):
    job_id = ended(desk, "k", 20, idempotency_key="once")
    assert Retention(desk.session, WEEKS).prune().keys == 1
    assert desk.queue.get(job_id) is None

    again = desk.queue.enqueue(NewJob(queue="q", task="t", lock_key="k", idempotency_key="once"))

    assert (again.job_id, again.status, again.created) == (job_id, Status.SUCCEEDED, False)
    with pytest.raises(IdempotencyConflict):
        desk.queue.enqueue(NewJob(queue="q", task="other", lock_key="k", idempotency_key="once"))
    with pytest.raises(Exception, match="belongs to a job that was deleted"):
        desk.insert(idempotency_key="once")
    assert there(desk) == set()


def test_a_key_of_a_job_that_another_service_made_is_kept_with_what_it_asked_for(desk):
    job_id = desk.insert(idempotency_key="theirs", args='{"n": 1}')
    (run,) = desk.claim()
    desk.settle(run)
    desk.sql("UPDATE dl_jobs SET finished_at = '2020-01-01'")
    Retention(desk.session, WEEKS).prune()

    same = NewJob(queue="q", task="t", lock_key="k", idempotency_key="theirs", args={"n": 1})

    assert desk.queue.enqueue(same).job_id == job_id


def test_an_enqueue_that_waited_for_the_deletion_makes_no_second_job(desk):
    job_id = ended(desk, "k", 20, idempotency_key="once")
    retention = Retention(desk.session, WEEKS)
    with desk.held() as step:
        step("DELETE FROM dl_jobs WHERE job_id = %s", str(job_id))
        asking = Aside(desk.another().enqueue, NewJob(queue="q", task="t", lock_key="k", idempotency_key="once"))
        desk.until_blocked()  # it has found no retired key, and waits for the row of the old one
        desk.sql(
            "INSERT INTO dl_retired_keys (key_hash, job_id, status, request_hash)"
            " VALUES (dl_key_hash('once'), %s, 'succeeded', dl_request_hash('q', 't', '{}'))",
            str(job_id),
        )

    assert (asking.result().job_id, asking.result().created) == (job_id, False)
    assert retention.prune().jobs == {}
    assert there(desk) == set()


def test_keys_end_only_where_somebody_has_said_when(desk):
    ended(desk, "k", 20, idempotency_key="once")
    Retention(desk.session, WEEKS).prune()
    desk.sql("UPDATE dl_retired_keys SET retired_at = now() - interval '100 days'")

    assert Retention(desk.session, WEEKS).forget_keys() == 0
    assert Retention(desk.session, Ages(keys=99 * DAY)).forget_keys() == 1
    assert desk.queue.enqueue(NewJob(queue="q", task="t", lock_key="k", idempotency_key="once")).created


# ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def parts(desk: Desk, parent: str = JOURNAL) -> list[str]:
    return [row[0] for row in desk.sql("SELECT part FROM dl_parts(%s)", parent)]


def part_of(desk: Desk, job_id: object) -> list[str]:
    return [
        row[0]
        for row in desk.sql(
            "SELECT tableoid::regclass::text FROM dl_job_events WHERE job_id = %s ORDER BY event_id", str(job_id)
        )
    ]


def age_all_parts(desk: Desk, days: int) -> None:
    """As if so much time had gone by: the bounds of parts stand for times, and so do the numbers within."""
    desk.sql(f"UPDATE dl_job_events SET ts = ts - interval '{days} days'")
    desk.sql("SELECT setval('dl_job_events_event_id_seq', (SELECT max(high) FROM dl_parts('dl_job_events')))")


def test_a_new_part_is_made_ahead_of_its_time_and_written_to_when_that_comes(own_desk):
    desk = own_desk
    before = parts(desk)
    now = datetime.now(UTC)
    retention = Retention(desk.session, Ages())

    made = retention.keep_parts()

    assert [name for name in parts(desk) if name not in before] == [name for name in made if JOURNAL in name]
    assert retention.keep_parts() == [], "they reach far enough now"
    low = desk.one("SELECT max(low) FROM dl_parts('dl_job_events')")
    assert datetime.fromtimestamp(low / 100_000, UTC) > now
    job_id = desk.enqueue()
    assert part_of(desk, job_id) == [before[-1]], "its time has not come"

    # A part of the present second, as if the one before had ended just now.
    desk.sql("DROP TABLE " + ", ".join(name for name in parts(desk)))
    desk.sql("SELECT setval('dl_job_events_event_id_seq', 1)")
    desk.sql("SELECT dl_make_parts('dl_job_events', interval '1 hour', interval '1 second')")
    assert desk.one("SELECT dl_move_on('dl_job_events')") == parts(desk)[0]
    assert desk.one("SELECT dl_move_on('dl_job_events')") is None
    assert part_of(desk, desk.enqueue("later")) == [parts(desk)[0]]


def test_an_insert_needs_nobody_who_makes_parts(own_desk):
    desk = own_desk
    desk.sql("DROP TABLE " + ", ".join(parts(desk)))

    job_id = desk.enqueue()

    assert part_of(desk, job_id) == ["dl_job_events_default"]
    assert desk.kinds(job_id) == ["queued"]


def test_a_part_whose_rows_are_all_too_old_is_dropped_and_the_present_one_never(own_desk):
    desk = own_desk
    retention = Retention(desk.session, Ages())
    retention.keep_parts()
    first = parts(desk)[0]
    kept = ended(desk, "kept", 1, Status.FAILED)
    assert set(part_of(desk, kept)) == {first}
    assert retention.drop_parts() == []

    age_all_parts(desk, 29)
    assert retention.drop_parts() == []
    age_all_parts(desk, 2)
    assert retention.drop_parts(dry=True)[0] == first
    assert retention.drop_parts() == [first]

    assert desk.kinds(kept) == []
    assert first not in parts(desk)
    assert set(part_of(desk, desk.enqueue("new"))) == {"dl_job_events_default"}, "the parts were used up by hand"


def test_no_event_of_an_open_transaction_is_lost_to_a_rollover_or_a_drop(own_desk):
    desk = own_desk
    retention = Retention(desk.session, Ages())
    retention.keep_parts()
    first = parts(desk)[0]
    desk.enqueue("old")
    with desk.held() as step:
        step("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'open')")
        age_all_parts(desk, 40)
        assert retention.drop_parts() == [], "somebody writes to it"
        new = desk.enqueue("new")

    open_job = desk.one("SELECT job_id FROM dl_jobs WHERE lock_key = 'open'")
    assert part_of(desk, open_job) == [first]
    assert part_of(desk, new) != [first]
    assert retention.drop_parts() == [], "its last event is young"


def test_a_part_is_made_while_somebody_writes_jobs(own_desk):
    desk = own_desk
    with desk.held() as step:
        step("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'open')")
        assert any(JOURNAL in name for name in Retention(desk.session, Ages()).keep_parts())


def test_making_a_part_gives_up_soon_where_somebody_reads_the_whole_journal_and_holds_nobody_up(own_desk):
    desk = own_desk
    before = parts(desk)
    with desk.held() as step:
        step("SELECT count(*) FROM dl_job_events")
        assert [name for name in Retention(desk.session, Ages()).keep_parts() if JOURNAL in name] == []

    assert parts(desk) == before
    assert any(JOURNAL in name for name in Retention(desk.session, Ages()).keep_parts())


def test_logs_are_dropped_by_the_part_too(own_desk):
    desk = own_desk
    retention = Retention(desk.session, Ages(logs=3 * DAY))
    retention.keep_parts()
    first = parts(desk, LOGS)[0]
    job_id = desk.enqueue()
    desk.queue.write_logs([Said(job_id, 1, 4 * DAY, "INFO", "log", "long ago")])
    desk.sql("SELECT setval('dl_job_logs_log_id_seq', (SELECT high FROM dl_parts('dl_job_logs') LIMIT 1))")
    desk.queue.write_logs([Said(job_id, 1, 0.0, "INFO", "log", "just now")])

    assert first in retention.drop_parts()
    assert [line.line for line in desk.queue.logs(job_id).lines] == ["just now"]


@pytest.mark.parametrize(
    ("keep", "span"), [(30 * DAY, 6 * DAY), (365 * DAY, 7 * DAY), (14 * DAY, 2 * DAY), (DAY, DAY // 5), (864, 172.0)]
)
def test_a_part_is_a_fifth_of_the_time_that_things_are_kept(keep, span):
    assert part_span(keep) == span


def test_a_time_zone_moves_no_bound(own_desk):
    desk = own_desk
    desk.sql("SET timezone = 'Asia/Tokyo'")
    low = desk.one("SELECT min(low) FROM dl_parts('dl_job_events')")

    assert datetime.fromtimestamp(low / 100_000, UTC).time() == datetime.min.time()
    assert datetime.now(UTC) - datetime.fromtimestamp(low / 100_000, UTC) < timedelta(days=2)


def test_a_value_that_is_refused_is_no_retired_key(desk):
    with pytest.raises(InvalidJob):
        desk.queue.enqueue(NewJob(queue="q", task="t", lock_key="k", args={"x": "\0"}))
