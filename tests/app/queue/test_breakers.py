"""Circuit breakers: attempts that fail in a row stop their task; after a pause one job is tried, and decides."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dataloader.app.acts.reasons import ReasonCode
from dataloader.app.errors import BreakerNotFound
from dataloader.app.features.alerts.rows import Alerts, RuleKind
from dataloader.app.features.limits.breakers import Breakers, BreakerState
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.why.explain import JobExplainer
from dataloader.app.queue.job import Settlement, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Breaker, Pipelines

FAILURE = Settlement(Status.FAILED, error="the partner is down\nand more")


@pytest.fixture
def breakers(queue_db) -> Breakers:
    return Breakers(queue_db.session)


def enqueue(queue_db, count: int) -> list:
    return [queue_db.enqueue(f"k{n}") for n in range(count)]


def fail(queue_db, runs) -> None:
    queue_db.queue.settle([(run, FAILURE) for run in runs])


def trip(queue_db, breakers, failures: int = 2) -> None:
    breakers.set("t", failures=failures, resume_sec=60)
    enqueue(queue_db, failures)
    fail(queue_db, queue_db.claim(failures))


def probe(queue_db, breakers):
    queue_db.sql("UPDATE dl_breakers SET probe_at = now() - interval '1 s' WHERE state = 'open'")
    return breakers.probe()


def wait_states(queue_db) -> list[str]:
    return [
        state
        for (state,) in queue_db.sql("SELECT wait_state::text FROM dl_jobs WHERE status = 'queued' ORDER BY job_id")
    ]


def test_failures_in_a_row_open_it_and_no_job_starts(queue_db, breakers):
    trip(queue_db, breakers)
    other = queue_db.enqueue("other", task="other")
    (job, _) = enqueue(queue_db, 2)

    assert [run.id for run in queue_db.claim(5, tasks=["t", "other"])] == [other]

    breaker = breakers.status("t")
    assert (breaker.state, breaker.failed_in_row, breaker.waiting) == (BreakerState.OPEN, 2, 2)
    assert breaker.reason == "2 attempts failed in a row; the last: the partner is down"
    assert wait_states(queue_db) == ["limited", "limited"]
    (reason,) = JobExplainer(queue_db.session, FEATURES).explain(job).reasons[:1]
    assert reason.code is ReasonCode.BREAKER_OPEN
    assert "has been open since" in reason.message
    assert "one job is tried at" in reason.message


def test_one_job_is_tried_and_its_success_closes_it(queue_db, breakers):
    trip(queue_db, breakers)
    enqueue(queue_db, 4)
    queue_db.claim(4)

    assert probe(queue_db, breakers).tasks == ["t"]
    (run,) = queue_db.claim(4)
    assert breakers.status("t").state is BreakerState.HALF_OPEN
    queue_db.settle(run)

    breaker = breakers.status("t")
    assert (breaker.state, breaker.failed_in_row, breaker.reason, breaker.opened_at) == (
        BreakerState.CLOSED,
        0,
        None,
        None,
    )
    assert len(queue_db.claim(4)) == 3


def test_a_failed_try_doubles_the_pause_up_to_an_hour(queue_db, breakers):
    trip(queue_db, breakers)
    pauses = []
    for n in range(8):
        queue_db.enqueue(f"try {n}")
        queue_db.claim()
        assert probe(queue_db, breakers).tasks == ["t"]
        fail(queue_db, queue_db.claim(3))
        pauses.append(queue_db.fetch_row("SELECT round(extract(epoch FROM probe_at - now()) / 60) FROM dl_breakers"))

    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]


def test_a_success_and_a_pause_end_the_row(queue_db, breakers):
    breakers.set("t", failures=2, window_sec=60)
    enqueue(queue_db, 5)
    runs = queue_db.claim(5)
    fail(queue_db, runs[:1])
    queue_db.settle(runs[1])
    fail(queue_db, runs[2:3])
    assert (breakers.status("t").state, breakers.status("t").failed_in_row) == (BreakerState.CLOSED, 1)

    queue_db.sql("UPDATE dl_breakers SET failed_at = now() - interval '61 s'")
    fail(queue_db, runs[3:4])
    assert breakers.status("t").state is BreakerState.CLOSED
    fail(queue_db, runs[4:])
    assert breakers.status("t").state is BreakerState.OPEN


def test_retries_count_and_what_is_no_failure_does_not(queue_db, breakers):
    breakers.set("t", failures=2)
    enqueue(queue_db, 4)
    runs = queue_db.claim(4)
    queue_db.settle(runs[0], Status.QUEUED, refund_attempt=True)  # Snooze
    queue_db.release(runs[1])
    queue_db.queue.cancel(runs[2].id)
    queue_db.settle(runs[2], Status.FAILED)  # canceled, since that was asked for
    assert breakers.status("t").failed_in_row == 0

    queue_db.settle(runs[3], Status.QUEUED)
    assert breakers.status("t").failed_in_row == 1


def test_a_group_of_settlements_counts_in_its_order(queue_db, breakers):
    breakers.set("t", failures=3)
    enqueue(queue_db, 6)
    runs = sorted(queue_db.claim(6), key=lambda run: run.id)
    success = Settlement(Status.SUCCEEDED)
    queue_db.queue.settle(list(zip(runs, [FAILURE, FAILURE, success, FAILURE, FAILURE, FAILURE], strict=True)))
    assert breakers.status("t").state is BreakerState.OPEN


def test_settlements_at_the_same_time_lose_no_failure(queue_db, breakers):
    breakers.set("t", failures=1000)
    enqueue(queue_db, 40)
    runs = queue_db.claim(40)

    def settle(run) -> None:
        JobQueue(queue_db.new_session()).settle([(run, FAILURE)])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(settle, runs))

    assert breakers.status("t").failed_in_row == 40


def test_a_person_pauses_and_resumes_a_task(queue_db, breakers):
    breakers.set("t", state=BreakerState.OPEN, reason="maintenance", changed_by="ann")
    (job, *_) = enqueue(queue_db, 3)

    assert queue_db.claim(3) == []
    assert breakers.probe().tasks == []
    reason = JobExplainer(queue_db.session, FEATURES).explain(job).reasons[0]
    assert reason.code is ReasonCode.TASK_PAUSED
    assert "by ann: maintenance" in reason.message

    breakers.set("t", state=BreakerState.CLOSED, changed_by="ann")
    assert len(queue_db.claim(3)) == 3


def test_a_limit_of_the_task_is_kept_next_to_the_breaker(queue_db, breakers):
    Limits(queue_db.session).set("task:t", concurrency=2)
    trip(queue_db, breakers)
    enqueue(queue_db, 4)
    assert queue_db.claim(4) == []
    breakers.set("t", state=BreakerState.CLOSED)
    assert len(queue_db.claim(4)) == 2
    assert Limits(queue_db.session).status("task:t").concurrency == 2


def test_running_jobs_of_an_open_breaker_continue_and_count_as_the_try(queue_db, breakers):
    breakers.set("t", failures=1)
    enqueue(queue_db, 3)
    first, second = queue_db.claim(2)
    fail(queue_db, [first])
    queue_db.claim()
    probe(queue_db, breakers)
    assert queue_db.claim(2) == [], "the other run is the one that may"
    queue_db.settle(second)
    assert breakers.status("t").state is BreakerState.CLOSED
    assert len(queue_db.claim(2)) == 1


def test_a_declared_breaker_gives_way_to_what_a_person_set(queue_db, breakers):
    tasks = Pipelines()
    tasks.register("t", breaker=Breaker(failures=3, resume=30))(lambda args: None)
    breakers.declare(tasks.declared_breakers())
    assert (breakers.status("t").failures, breakers.status("t").is_declared) == (3, True)

    breakers.set("t", failures=7)
    breakers.declare(tasks.declared_breakers())
    assert (breakers.status("t").failures, breakers.status("t").is_declared) == (7, False)
    breakers.delete("t")
    breakers.declare(tasks.declared_breakers())
    assert breakers.status("t").failures == 3
    breakers.delete("t")
    with pytest.raises(BreakerNotFound):
        breakers.delete("t")


def test_deleting_an_open_breaker_wakes_its_jobs(queue_db, breakers):
    breakers.set("t", state=BreakerState.OPEN)
    enqueue(queue_db, 2)
    queue_db.claim(2)
    breakers.delete("t")
    assert len(queue_db.claim(2)) == 2


def test_an_alert_fires_once_and_is_resolved(queue_db, breakers):
    alerts = Alerts(queue_db.session)
    alerts.add("stopped", RuleKind.BREAKER_OPEN, 0)
    alerts.add("starved", RuleKind.LIMIT_STARVED, 60)
    trip(queue_db, breakers)
    queue_db.enqueue("waits")
    queue_db.claim()
    queue_db.sql("UPDATE dl_jobs SET created_at = now() - interval '90 s', available_at = now() - interval '90 s'")

    assert alerts.check(interval_sec=0).fired == 2
    assert alerts.check(interval_sec=0).fired == 0
    assert {alert.kind: alert.subject for alert in alerts.all()} == {"breaker_open": "t", "limit_starved": "task:t"}
    breakers.set("t", state=BreakerState.CLOSED)
    assert alerts.check(interval_sec=0).resolved == 2
    queue_db.sql("DELETE FROM dl_alert_rules; DELETE FROM dl_alerts")
