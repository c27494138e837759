"""A pool from end to end: jobs come by notification, and every way to the end is written down."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from app.queue.job import Status
from pipelines.contract import Pipelines
from tests.support.desk import Aside
from tests.support.plant import Pauses, Plant
from tests.support.waiting import eventually
from workers import desk
from workers.joblog import JobLogs
from workers.pool import WorkerPool

SOON = 10.0  # seconds; polls come every 30, so that what starts by then was told by a notification


def test_an_idle_worker_picks_up_a_plain_insert_by_its_notification(plant: Plant):
    plant.listening()
    before = time.monotonic()

    job = plant.desk.insert(task="quick", args='{"n": 7}')

    done = plant.until(job, Status.SUCCEEDED, SOON)
    assert time.monotonic() - before < SOON
    assert done.result == {"n": 7}
    assert done.attempt == 1


def test_a_job_that_was_there_before_the_pool_is_found(plant: Plant):
    job = plant.add()

    plant.pool()

    plant.until(job, Status.SUCCEEDED, SOON)


def test_a_delayed_job_starts_when_it_is_due_and_not_before(plant: Plant):
    plant.listening()
    due = datetime.now(UTC) + timedelta(seconds=0.7)

    job = plant.add(available_at=due)

    done = plant.until(job, Status.SUCCEEDED, SOON)
    assert done.started_at is not None
    lateness = (done.started_at - due).total_seconds()
    assert 0 <= lateness < 5


@pytest.mark.parametrize("threads", [1, 4])
def test_after_all_threads_were_busy_one_of_them_has_the_lead_again_and_not_the_heartbeat(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, threads: int
):
    """The heartbeat listens while nobody can; taken again and again, the lead would be nobody's who claims."""
    pool = plant.listening({"q": threads})
    stood_in: list[float] = []
    listen = pool._heartbeat._listen

    def counted(left: float) -> bool:
        stood_in.append(left)
        return listen(left)

    monkeypatch.setattr(pool._heartbeat, "_listen", counted)
    for _ in range(3):
        begun = len(stood_in)
        jobs = [plant.add("held", key=f"busy {n}") for n in range(threads)]
        eventually(lambda: pool._desk.all_busy and len(stood_in) > begun + 1)  # noqa: B023
        for job in jobs:
            plant.desk.queue.cancel(job)
        plant.until_all(jobs, Status.CANCELED)
        before = len(stood_in)
        due = datetime.now(UTC) + timedelta(seconds=0.7)
        late = plant.until(plant.add(available_at=due), Status.SUCCEEDED, SOON)
        assert late.started_at is not None
        assert 0 <= (late.started_at - due).total_seconds() < 5
        assert len(stood_in) - before < 50, "it does not turn without a pause"


def test_a_job_that_is_overdue_when_it_comes_is_sorted_in_at_once(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    """Its transaction was open past its time. A ring alone sorts nothing in: the claim that finds it does."""
    monkeypatch.setattr(desk, "_AGAIN", 3 * SOON)  # as after many of them
    monkeypatch.setattr(desk, "_DEAF_POLL", 3 * SOON)
    plant.listening()
    plant.until(plant.add(), Status.SUCCEEDED, SOON)

    with plant.desk.held() as step:
        (job,) = step(
            "INSERT INTO dl_jobs (queue, task, lock_key, available_at)"
            " VALUES ('q', 'quick', 'k', clock_timestamp() + interval '50 ms') RETURNING job_id::text"
        )[0]
        step("SELECT pg_sleep(0.1)")

    plant.until(UUID(job), Status.SUCCEEDED, SOON)


def test_a_busy_queue_does_not_starve_another(plant: Plant):
    plant.listening({"slow": 1, "swift": 2})
    held = [plant.add("held", queue="slow") for _ in range(3)]
    plant.gate.until_inside(1)

    jobs = [plant.add(queue="swift", args={"n": n}) for n in range(20)]

    plant.until_all(jobs, timeout=SOON)
    assert plant.gate.inside == 1
    plant.gate.open()
    plant.until_all(held, timeout=SOON)
    assert plant.gate.most_inside == 1, "more than the queue's threads ran at once"


def test_each_queue_runs_as_many_jobs_at_once_as_it_was_given_threads(plant: Plant):
    pool = plant.listening({"a": 1, "b": 3})
    jobs = [plant.add("held", queue=queue) for queue in ("a", "b") for _ in range(4)]

    plant.gate.until_inside(4)

    state = pool.state()
    assert state.queues == {"a": {"threads": 1, "busy": 1}, "b": {"threads": 3, "busy": 3}}
    assert plant.desk.one("SELECT count(*) FROM dl_jobs WHERE status = 'running'") == 4
    plant.gate.open()
    plant.until_all(jobs, timeout=SOON)


def test_a_slow_job_holds_no_other_hostage_that_was_claimed_ahead(plant: Plant):
    first = plant.listening({"q": 1})
    plant.until_all([plant.add(args={"n": n}) for n in range(60)])  # tiny ones, so that it claims ahead
    assert first.state().busy == 0
    with plant.desk.held() as step:  # all become visible at once: the slow one is in front of the tiny ones
        step(
            "INSERT INTO dl_jobs (queue, task, lock_key, priority, lease_ttl_sec)"
            " SELECT 'q', CASE n WHEN 1 THEN 'held' ELSE 'quick' END, 'h' || n, n, 2 FROM generate_series(1, 4) n"
        )
    plant.gate.until_inside(1)

    plant.pool({"q": 1})

    eventually(
        lambda: plant.desk.one("SELECT count(*) FROM dl_jobs WHERE lock_key LIKE 'h%%' AND status = 'succeeded'") == 3,
        SOON,
        lambda: str(plant.desk.sql("SELECT task, status, worker FROM dl_jobs WHERE lock_key LIKE 'h%%'")),
    )
    assert plant.gate.inside == 1


def test_what_matters_more_runs_first(plant: Plant):
    for n in (3, 1, 2):
        plant.add(args={"n": n}, priority=n)

    plant.pool({"q": 1})

    eventually(lambda: len(plant.ran) == 3, SOON)
    assert plant.ran == ["1", "2", "3"]


def test_jobs_of_one_key_run_one_at_a_time_in_order_and_hold_no_others_back(plant: Plant):
    plant.gate.open()
    hot = [plant.add("held", "hot", args={"n": n}) for n in range(30)]
    others = [plant.add(args={"n": n}) for n in range(30)]

    plant.pool({"q": 4})

    plant.until_all([*hot, *others], timeout=20)
    assert plant.gate.came == [str(n) for n in range(30)]
    assert plant.gate.most_inside == 1
    assert {plant.desk.job(job).attempt for job in hot} == {1}
    assert plant.desk.one("SELECT count(*) FROM dl_job_events WHERE kind = 'picked'") == 60, "claimed and put back"


def test_a_held_key_stops_none_of_the_others(plant: Plant):
    plant.listening({"q": 2})
    first, second = plant.add("held", "hot", args={"n": 1}), plant.add("held", "hot", args={"n": 2})
    plant.gate.until_inside(1)

    plant.until_all([plant.add() for _ in range(5)], timeout=SOON)

    assert plant.desk.status(second) is Status.QUEUED
    plant.gate.open()
    plant.until_all([first, second], timeout=SOON)


def test_a_running_job_is_canceled_by_notification(plant: Plant):
    plant.listening(heartbeat_sec=30.0)
    job = plant.add("held", lease_ttl_sec=90)
    plant.gate.until_inside(1)

    plant.desk.queue.cancel(job)

    canceled = plant.until(job, Status.CANCELED, SOON)
    assert canceled.error == "canceled on request"
    assert plant.stopped == ["cancel"]


def test_a_cancel_whose_notification_was_lost_comes_with_the_heartbeat(plant: Plant):
    plant.listening()
    job = plant.add("held")
    plant.gate.until_inside(1)

    plant.desk.sql("UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s", str(job))

    plant.until(job, Status.CANCELED, SOON)


def test_a_cancel_is_heard_while_every_thread_is_busy(plant: Plant):
    plant.listening({"q": 1}, heartbeat_sec=30.0)
    job = plant.add("held", lease_ttl_sec=90)
    plant.gate.until_inside(1)

    plant.desk.queue.cancel(job)

    plant.until(job, Status.CANCELED, SOON)


def test_while_every_thread_is_busy_the_pool_goes_on_listening(plant: Plant):
    pool = plant.listening({"q": 1})
    plant.add("held")
    plant.gate.until_inside(1)
    before = pool._listener.echoed_at
    assert before is not None

    eventually(lambda: (pool._listener.echoed_at or 0) > before + 0.5, SOON)


def test_a_canceled_coroutine_ends_at_its_await(plant: Plant):
    plant.listening()
    job = plant.add("waits")
    plant.gate.until_came(1)

    plant.desk.queue.cancel(job)

    plant.until(job, Status.CANCELED, SOON)


def test_a_failing_job_is_tried_again_after_a_pause_until_its_attempts_are_used_up(plant: Plant):
    plant.listening(retry=Pauses(0.05, 0.1))

    job = plant.add("broken", max_attempts=3)

    failed = plant.until(job, Status.FAILED, SOON)
    assert failed.attempt == 3
    assert failed.error == "ValueError: no good: {}"
    assert failed.traceback is not None
    assert "_broken" in failed.traceback
    assert [event["pause_sec"] for event in plant.payloads(job, "requeue")] == [0.05, 0.1]


def test_an_unknown_task_costs_no_attempt_and_waits_for_a_worker_that_knows_it(plant: Plant):
    plant.listening()
    job = plant.add("later")
    shown = eventually(lambda: plant.desk.job(job).error, SOON)
    known = Pipelines()
    known.register("later")(lambda args: "at last")

    plant.pool(pipelines=known)

    done = plant.until(job, Status.SUCCEEDED, SOON)
    assert shown == "no live worker knows the task 'later'"
    assert done.attempt == 1
    assert done.error is None


def test_a_task_that_another_live_worker_knows_is_left_to_it(plant: Plant):
    known = Pipelines()
    known.register("later")(plant.pipelines.get("held").call)  # type: ignore[union-attr]
    plant.listening({"q": 1}, pipelines=known)
    first = plant.add("later")
    plant.gate.until_inside(1)
    plant.listening({"q": 1})

    second = plant.add("later")
    plant.until(plant.add("quick"), Status.SUCCEEDED, SOON)

    assert plant.desk.job(second).error is None
    plant.gate.open()
    plant.until_all([first, second], timeout=SOON)


@pytest.mark.parametrize("threads", [1, 12])
def test_a_pool_has_four_connections_whatever_its_threads_and_one_of_them_listens(plant: Plant, threads: int):
    plant.listening({"q": threads, "r": threads})
    jobs = [plant.add("held", queue=queue) for queue in ("q", "r") for _ in range(threads)]
    plant.gate.until_inside(2 * threads)
    eventually(lambda: plant.desk.one("SELECT count(*) FROM dl_workers") == 1)

    rows = plant.desk.sql(
        "SELECT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'dataloader-%%'"
        "   AND application_name NOT LIKE 'dataloader-clerk:%%'"  # one process of all does the chores
    )

    assert sorted(name.partition(":")[0] for (name,) in rows) == [
        f"dataloader-{role}" for role in ("claim", "listen", "renew", "settle")
    ]
    plant.gate.open()
    plant.until_all(jobs, timeout=SOON)


def test_two_pools_share_the_work_and_run_no_job_twice(plant: Plant):
    plant.pool({"q": 3})
    plant.pool({"q": 3})

    jobs = [plant.add(key=f"k{n % 40}", args={"n": n}) for n in range(150)]

    plant.until_all(jobs)
    assert sorted(plant.ran, key=int) == [str(n) for n in range(150)]


def test_progress_is_in_the_row_while_the_job_runs(plant: Plant):
    plant.listening()

    job = plant.add("steps", args={"n": 3})

    eventually(lambda: plant.desk.job(job).progress == {"processed": 3}, SOON)
    assert plant.desk.status(job) is Status.RUNNING


def test_a_lease_is_kept_for_as_long_as_the_job_runs(plant: Plant):
    plant.listening()
    job = plant.add("held", lease_ttl_sec=1)
    plant.gate.until_inside(1)
    first = plant.desk.job(job).lease_expires_at
    assert first is not None

    eventually(lambda: plant.desk.one("SELECT clock_timestamp() > %s + interval '1 second'", first), 15)

    assert plant.desk.status(job) is Status.RUNNING
    assert plant.desk.job(job).attempt == 1
    assert plant.stopped == []


# ── the state ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_state_tells_what_the_pool_does(plant: Plant):
    pool = plant.listening({"q": 2})
    job = plant.add("held")
    plant.gate.until_inside(1)

    state = pool.state()

    assert (state.ready, state.listener, state.threads, state.busy, state.dead) == (True, "listening", 2, 1, ())
    assert state.worker_id == pool.id
    assert state.running == [{"job_id": str(job), "task": "held", "queue": "q", "attempt": 1}]
    assert max(state.claim_age_sec, state.heartbeat_age_sec, state.reaper_age_sec, state.echo_age_sec or 0) < SOON


def test_a_pool_is_ready_from_its_start_to_its_stop(plant: Plant):
    pool = plant.pool(start=False)
    before = pool.state()
    pool.start()
    during = pool.state()
    pool.stop(grace=5)

    assert [before.ready, during.ready, pool.state().ready] == [False, True, False]


def test_the_state_can_be_asked_while_jobs_come_and_go(plant: Plant):
    pool = plant.listening({"q": 4})
    asked = 0

    jobs = [plant.add() for _ in range(100)]
    waiting = True
    while waiting:
        for _ in range(50):
            asked += pool.state().threads
        waiting = bool(plant.desk.one("SELECT count(*) FROM dl_jobs WHERE status <> 'succeeded'"))

    plant.until_all(jobs)
    assert asked


def test_a_live_pool_is_a_worker_in_the_table_and_a_stopped_one_is_not(plant: Plant):
    pool = plant.listening({"q": 2, "r": 1}, version="1.2.3")

    (info,) = eventually(plant.desk.queue.workers)
    pool.stop(grace=5)

    assert (info.id, info.name, info.version, info.threads) == (pool.id, pool.name, "1.2.3", 3)
    assert info.alive
    assert set(info.queues) == {"q", "r"}
    assert set(info.tasks) == set(plant.pipelines.names)
    assert plant.desk.queue.workers() == []


# ── the stop ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_lets_running_jobs_finish_and_begins_no_others(plant: Plant):
    pool = plant.listening({"q": 1})
    running, waiting = plant.add("held"), plant.add("held")
    plant.gate.until_inside(1)

    stopping = Aside(pool.stop, 30.0)
    eventually(lambda: pool._desk._stopping)
    plant.gate.open()

    assert stopping.result() is True
    assert plant.desk.status(running) is Status.SUCCEEDED
    assert plant.desk.status(waiting) is Status.QUEUED
    eventually(lambda: plant.connections() == {}, message="all connections are closed")


def test_after_the_grace_running_jobs_are_handed_back_at_no_cost(plant: Plant):
    pool = plant.listening()
    job = plant.add("held", max_attempts=1)
    plant.gate.until_inside(1)

    clean = pool.stop(grace=0.05)

    back = plant.desk.job(job)
    assert clean is True
    assert (back.status, back.attempt) == (Status.QUEUED, 0)
    assert plant.stopped == ["shutdown"]
    assert [event["reason"] for event in plant.payloads(job, "requeue")] == ["shutdown"]


def test_a_job_that_will_not_stop_is_handed_back_and_its_key_stays_locked(plant: Plant, said):
    pool = plant.listening(stop_sec=0.1)
    job = plant.add("stubborn", "its key", max_attempts=1)
    plant.gate.until_inside(1)

    clean = pool.stop(grace=0.05)

    back = plant.desk.job(job)
    assert clean is False
    assert pool.stop(grace=1) is False, "asked again, it is still not clean"
    assert (back.status, back.attempt) == (Status.QUEUED, 0)
    assert said("job.will.not.stop")
    assert plant.desk.one("SELECT pg_try_advisory_lock(hashtext('its key'))") is False
    plant.gate.open()
    eventually(lambda: not any(worker.alive for worker in pool._workers))
    assert plant.desk.status(job) is Status.QUEUED, "what it still did was written down"


def test_a_stop_may_come_twice_and_before_the_start(plant: Plant):
    idle = plant.pool(start=False)
    pool = plant.listening()

    assert idle.stop(grace=1) is True
    both = [Aside(pool.stop, 1.0) for _ in range(2)]
    assert [one.result() for one in both] == [True, True]
    pool.stop_claiming()


def test_a_stop_wakes_a_pool_that_waits(plant: Plant):
    pool = plant.listening({"q": 3, "r": 2})
    began = time.monotonic()

    assert pool.stop(grace=30) is True

    assert time.monotonic() - began < SOON


def test_a_claim_that_is_on_its_way_when_the_stop_comes_is_handed_back(plant: Plant):
    pool = plant.listening({"q": 2})
    plant.until(plant.add(), Status.SUCCEEDED)
    with plant.desk.held() as step:
        step("LOCK TABLE dl_job_events IN SHARE MODE")  # a claim that found a job waits here, before its commit
        with plant.desk.held() as other:
            other("SET LOCAL session_replication_role = replica")  # no journal, no notification
            other("INSERT INTO dl_jobs (queue, task, lock_key, max_attempts) VALUES ('q', 'quick', 'late', 1)")
        plant.desk.sql("SELECT pg_notify('dl_jobs', 'q')")
        plant.desk.until_blocked()
        stopping = Aside(pool.stop, 10.0)
        eventually(lambda: pool._desk._stopping)

    assert stopping.result() is True
    assert plant.desk.sql("SELECT status, attempt FROM dl_jobs WHERE lock_key = 'late'") == [("queued", 0)]
    plant.desk.sql("DELETE FROM dl_jobs WHERE lock_key = 'late'")  # its journal has no first line


def test_a_pool_that_is_only_just_starting_has_lost_no_thread(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    """Whoever watches it may look between the start of the first thread and that of the last."""
    starting, seen = [], []
    begin, logs = WorkerPool.start, JobLogs.start

    def watched(pool: WorkerPool) -> None:
        starting.append(pool)
        begin(pool)

    def last(self: JobLogs) -> None:
        seen.append(starting[0].state())
        logs(self)

    monkeypatch.setattr(WorkerPool, "start", watched)
    monkeypatch.setattr(JobLogs, "start", last)
    pool = plant.pool()

    assert [(state.dead, state.ready) for state in seen] == [((), False)]
    assert pool.state().ready
