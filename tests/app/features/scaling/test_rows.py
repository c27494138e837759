from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.scaling.rows import QueueScaling, Scaling, ScalingSignals, summarize
from dataloader.app.features.statistics.rows import StatisticsWriter
from dataloader.app.queue.queues import QueueState
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.app.state.queues import Queues
from tests.support.queue_fixture import QueueFixture


@pytest.fixture(autouse=True)
def empty_tables(queue_db: QueueFixture) -> None:
    queue_db.sql("TRUNCATE dl_queues, dl_limits, dl_workers, dl_statistics, dl_recent_runs, dl_schedules CASCADE")


def scaling(queue_db: QueueFixture, target_wait_sec: float = 60) -> Scaling:
    return summarize(ScalingSignals(queue_db.session).read(), target_wait_sec)


def queue_scaling(queue_db: QueueFixture, queue: str = "q", target_wait_sec: float = 60) -> QueueScaling:
    return next(found for found in scaling(queue_db, target_wait_sec).queues if found.queue == queue)


def worker(queue_db: QueueFixture, threads: int = 4) -> UUID:
    info = WorkerInfo(uuid4(), f"host:{threads}", "1", ("q",), ("t",), threads)
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)
    Queues(queue_db.session).report_and_fetch(info.id, {"q": threads}, listener="listening", attempts=[])
    return info.id


def run_once(queue_db: QueueFixture, *, sec: float) -> None:
    """A run of `sec` seconds, as the statistics see it."""
    run = queue_db.enqueue_and_claim("first")
    queue_db.settle(run)
    queue_db.sql("UPDATE dl_job_events SET ts = ts + make_interval(secs => %s) WHERE kind = 'done'", sec)
    while StatisticsWriter(queue_db.session).aggregate() is not None:
        pass


def test_jobs_of_busy_keys_ask_for_no_thread(queue_db):
    queue_db.enqueue_and_claim("k")
    queue_db.sql("INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'q', 't', 'k' FROM generate_series(1, 10000)")
    queue_db.promote()
    unseen = queue_scaling(queue_db)
    queue_db.sql(
        "UPDATE dl_jobs SET wait_state = 'blocked' WHERE wait_state IN ('ready', 'scheduled') AND status = 'queued'"
    )
    blocked = queue_scaling(queue_db)
    queue_db.sql("UPDATE dl_jobs SET wait_state = 'waiting' WHERE wait_state = 'blocked'")
    waiting = queue_scaling(queue_db)

    assert unseen.ready >= 1_000
    assert [found.wanted_threads for found in (unseen, blocked, waiting)] == [1, 1, 1]
    assert (blocked.ready, blocked.running) == (0, 1)


def test_jobs_of_one_free_key_ask_for_one_thread(queue_db):
    for _ in range(5):
        queue_db.enqueue("k")

    assert queue_scaling(queue_db).wanted_threads == 1


def test_ready_jobs_ask_for_what_ends_them_in_time(queue_db):
    run_once(queue_db, sec=6)
    for n in range(50):
        queue_db.enqueue(f"k{n}")

    found = queue_scaling(queue_db)
    sooner = queue_scaling(queue_db, target_wait_sec=1)

    assert found.run_median_sec == pytest.approx(6, rel=0.3)
    assert found.wanted_threads == pytest.approx(5, abs=2)
    assert (sooner.wanted_threads, sooner.ready) == (50, 50)
    assert found.wait_p95_sec is not None
    assert found.oldest_ready_sec > 0


def test_jobs_without_a_known_run_time_ask_for_a_thread_each(queue_db):
    for n in range(7):
        queue_db.enqueue(f"k{n}")

    assert queue_scaling(queue_db).wanted_threads == 7


def test_limits_bound_what_ready_jobs_ask_for(queue_db):
    limits, queues = Limits(queue_db.session), Queues(queue_db.session)
    limits.set("warehouse", concurrency=3)
    limits.set("tenant:*", concurrency=2)
    for n in range(20):
        queue_db.enqueue(f"w{n}", limits={"warehouse": 1})
        queue_db.enqueue(f"o{n}", queue="other", limits={"warehouse": 2})
        queue_db.enqueue(f"t{n}", queue="tenants", limits={f"tenant:{n % 2}": 1})
        queue_db.enqueue(f"f{n}", queue="few")
        queue_db.enqueue(f"p{n}", queue="paused")
    queues.change_settings("few", concurrency=5)
    queues.change_settings("paused", state=QueueState.PAUSED)

    found = {queue.queue: queue.wanted_threads for queue in scaling(queue_db).queues}

    # Two queues share a limit of three: one job of weight 2, and one of weight 1.
    assert found == {"few": 5, "other": 1, "paused": 0, "q": 1, "tenants": 4}


def test_due_jobs_and_schedules_are_counted_before_they_are_ready(queue_db):
    queue_db.enqueue("soon", available_at=datetime.now(UTC) + timedelta(minutes=1))
    queue_db.enqueue("later", available_at=datetime.now(UTC) + timedelta(hours=1))
    queue_db.sql(
        "INSERT INTO dl_schedules (name, source, task, overrides, next_at) VALUES"
        " ('a', 'people', 't', '{\"queue\": \"q\"}', now() + interval '1 minute'),"
        " ('b', 'people', 't', '{}', now() + interval '1 minute'),"
        " ('c', 'people', 't', '{}', now() + interval '1 hour')"
    )

    found = scaling(queue_db)

    assert {queue.queue: queue.due_soon for queue in found.queues} == {"default": 1, "q": 2}
    assert (found.due_soon, found.wanted_threads) == (3, 0)


def test_threads_of_draining_processes_are_not_idle(queue_db):
    worker(queue_db, 4)
    drained = worker(queue_db, 2)
    Queues(queue_db.session).drain_worker(drained, draining=True)
    run = queue_db.enqueue_and_claim("k")
    queue_db.sql("UPDATE dl_jobs SET worker_id = %s WHERE job_id = %s", str(drained), str(run.id))

    found = queue_scaling(queue_db)

    assert (found.busy_threads, found.idle_threads, found.draining, found.wanted_threads) == (1, 4, 1, 1)
