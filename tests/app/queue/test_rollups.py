from __future__ import annotations

from uuid import uuid4

import pytest

from app.queue.job import Status
from app.queue.rollups import Rollups, Times
from tests.support.desk import Desk


@pytest.fixture
def rollups(own_desk: Desk) -> Rollups:
    return Rollups(own_desk.session)


def fold(rollups: Rollups) -> None:
    while rollups.fold():
        pass


def ends(desk: Desk) -> None:
    """One of each kind of end, and a try that failed before."""
    first = desk.claimed("a", max_attempts=2)
    desk.settle(first, Status.QUEUED, retry_in=0)
    (again,) = desk.claim()
    desk.settle(again, Status.SUCCEEDED)
    desk.settle(desk.claimed("b"), Status.FAILED)
    desk.lose(desk.claimed("c", max_attempts=1))
    desk.queue.cancel(desk.enqueue("d"))


def test_each_event_is_counted_once_by_queue_and_task_in_every_span(own_desk, rollups):
    ends(own_desk)
    while rollups.fold(most=3):
        pass
    fold(rollups)

    for period in ("1h", "24h", "7d"):
        (told,) = rollups.by_queue(period).values()
        assert (told.queued, told.started, told.retried) == (4, 4, 1)
        assert (told.succeeded, told.failed, told.lost, told.canceled) == (1, 1, 1, 1)
        assert (told.waited.count, told.ran.count) == (4, 4)
        assert told.failure_rate == pytest.approx(2 / 3)
    assert rollups.by_queue().keys() == {"q"}
    assert rollups.by_task().keys() == {"t"}
    assert [run.outcome for run in rollups.last_runs()["t"]] == ["lost", "failed", "succeeded", "retried"]


@pytest.fixture
def late(own_desk: Desk, rollups: Rollups) -> Desk:
    """A job is inserted, not yet committed, and another one, with a later event, is there already."""
    fold(rollups)
    with own_desk.held() as step:
        step("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 'late', 'l')")
        own_desk.enqueue("early", task="early")
        for _ in range(3):
            fold(rollups)
        assert rollups.by_task().keys() == {"early"}
    return own_desk


def test_an_event_that_is_committed_late_is_counted_too(late, rollups):
    fold(rollups)

    assert {name: told.queued for name, told in rollups.by_task().items()} == {"early": 1, "late": 1}


def test_a_number_that_never_appears_is_given_up_when_nobody_is_left_to_write_it(own_desk, rollups):
    connection = own_desk.connect()
    connection.cursor().execute("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'l')")
    own_desk.enqueue("k")
    fold(rollups)
    assert own_desk.one("SELECT count(*) FROM dl_rollup_state, unnest(unread)") == 2
    connection.rollback()

    fold(rollups)
    fold(rollups)

    assert own_desk.one("SELECT count(*) FROM dl_rollup_state, unnest(unread)") == 1


def test_waiting_counts_from_when_a_job_was_due_and_running_from_its_claim(own_desk, rollups):
    job_id = own_desk.enqueue("k")
    own_desk.sql("UPDATE dl_jobs SET available_at = clock_timestamp() - interval '20 s'")
    own_desk.sql("UPDATE dl_job_events SET ts = ts - interval '100 s'")
    (run,) = own_desk.claim()
    own_desk.sql("UPDATE dl_job_events SET ts = ts - interval '5 s' WHERE kind = 'picked'")
    own_desk.settle(run)
    fold(rollups)

    told = rollups.by_task()["t"]

    assert run.id == job_id
    assert told.waited.mean == pytest.approx(15, abs=5)
    assert told.ran.mean == pytest.approx(5, abs=4)


@pytest.mark.parametrize("attempt", ['"one"', "1e99", "1.5", "-1", "null", "{}", '"99999999999"'])
def test_a_line_of_another_service_with_an_odd_attempt_is_folded_like_any(own_desk, rollups, attempt):
    job_id = own_desk.enqueue("k")
    own_desk.sql(
        "INSERT INTO dl_job_events (job_id, queue, kind, payload)"
        " VALUES (%s, 'q', 'picked', jsonb_build_object('attempt', %s::jsonb))",
        str(job_id),
        attempt,
    )

    fold(rollups)

    assert (rollups.by_task()["t"].queued, rollups.by_task()["t"].started) == (1, 1)


def test_only_one_process_folds_at_a_time(own_desk, rollups):
    with own_desk.held() as step:
        step("SELECT pg_advisory_xact_lock(1684828527, 2)")
        own_desk.enqueue("k")
        assert not rollups.fold()
        assert own_desk.one("SELECT count(*) FROM dl_rollups") == 0
    fold(rollups)
    assert own_desk.one("SELECT count(*) FROM dl_rollups WHERE span = 60") == 1


def test_depths_are_noted_once_a_minute_and_old_numbers_go(own_desk, rollups):
    own_desk.claimed("a")
    own_desk.enqueue("a")
    own_desk.look()
    own_desk.enqueue("b")
    own_desk.sql(
        "INSERT INTO dl_rollups VALUES (60, now() - interval '1 day', 'q', 't', 'queued', 0, 1, 0),"
        " (3600, now() - interval '1 day', 'q', 't', 'queued', 0, 1, 0)"
    )
    fold(rollups)
    fold(rollups)

    chart = rollups.chart("1h", queue="q")

    (depth,) = chart.depths
    assert (depth.ready, depth.parked, depth.running, depth.timed) == (1, 1, 1, 0)
    assert depth.oldest_ready_sec is not None
    assert len(chart.points) == 1
    assert chart.points[0].happened.queued == 3
    assert rollups.by_queue("1h", queue=str(uuid4())) == {}
    assert own_desk.sql("SELECT span FROM dl_rollups WHERE at < now() - interval '12 h'") == [(3600,)]


def test_a_percentile_is_a_fifth_off_at_most(own_desk):
    for seconds in (0.004, 0.03, 1.0, 7.7, 3600.0):
        bucket = own_desk.one("SELECT dl_bucket(%s::float8)", seconds)
        told = Times({bucket: 10}).percentile(0.95)
        assert told is not None
        assert told == pytest.approx(seconds, rel=0.5)
    assert Times({0: 1, 10: 98, 30: 1}).percentile(0.5) == pytest.approx(0.005 * 2**4.75, rel=0.2)
    assert Times().percentile(0.5) is None
    assert Times().mean is None
