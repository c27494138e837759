from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from app.errors import JobNotFound
from app.queue import why as module
from app.queue.job import Status, WorkerInfo
from app.queue.queues import Queues, QueueState
from app.queue.rollups import Rollups
from app.queue.why import Explanation, Why
from tests.support.desk import Desk


@pytest.fixture
def why(desk: Desk) -> Why:
    desk.sql("TRUNCATE dl_queues, dl_rollups, dl_last_runs")
    return Why(desk.session)


def worker(desk: Desk, *, tasks: tuple[str, ...] = ("t",), threads: int = 2, name: str = "worker-1") -> UUID:
    info = WorkerInfo(uuid4(), name, "1", ("q",), tasks, threads)
    desk.queue.register_worker(info, heartbeat_sec=60)
    return info.id


def codes(told: Explanation) -> list[str]:
    for reason in told.reasons:
        assert reason.sentence.endswith("."), reason
    return [reason.code for reason in told.reasons]


def test_a_job_that_nothing_holds_is_next_and_others_wait_behind_it_with_an_estimate(desk, why):
    worker(desk)
    first, second = desk.enqueue("a"), desk.enqueue("b")
    desk.settle(desk.claimed("done", queue="q", priority=0))
    while Rollups(desk.session).fold():
        pass

    next_, behind = why.explain(first), why.explain(second)

    assert (codes(next_), next_.position) == (["next"], 1)
    assert (codes(behind), behind.position, behind.position_exact) == (["jobs_ahead"], 2, True)
    assert behind.estimate is not None
    assert behind.estimate.basis.startswith("1 job before it, 2 of 2 threads free")


def test_a_position_is_counted_up_to_a_bound(desk, why, monkeypatch):
    monkeypatch.setattr(module, "MOST_AHEAD", 1)
    worker(desk)
    job_ids = [desk.enqueue(key) for key in "abc"]

    told = why.explain(job_ids[2])

    assert (told.position, told.position_exact) == (2, False)
    assert "more than 1" in told.reasons[0].sentence


def test_the_queue_is_told_of_when_it_is_closed_or_full(desk, why):
    worker(desk)
    queues = Queues(desk.session)
    desk.claimed("r")
    job_id = desk.enqueue("k")
    queues.rule("q", concurrency=1)
    assert codes(why.explain(job_id)) == ["queue_at_limit"]
    queues.rule("q", state=QueueState.PAUSED, by="ann", note="later")

    told = why.explain(job_id)

    assert codes(told) == ["queue_paused"]
    assert "by ann: later" in told.reasons[0].sentence
    assert told.estimate is None
    queues.rule("q", state=QueueState.DRAINING)
    assert codes(why.explain(job_id)) == ["queue_draining"]


def test_workers_are_told_of_when_there_are_none_that_would_claim_it(desk, why):
    job_id = desk.enqueue("k")
    assert codes(why.explain(job_id)) == ["no_worker"]
    worker_id = worker(desk, tasks=("other",))
    assert codes(why.explain(job_id)) == ["task_unknown"]
    desk.queue.set_aside("q", ["other"])
    told = why.explain(job_id)
    assert codes(told) == ["task_unknown"]
    assert "set aside" in told.reasons[0].sentence
    desk.sql("UPDATE dl_workers SET tasks = '{t}', draining = true WHERE worker_id = %s", str(worker_id))
    desk.queue.take_back(["q"], ["t"])
    desk.queue.promote()
    assert codes(why.explain(job_id)) == ["workers_draining"]


def test_a_time_that_has_not_come_is_told_and_whether_a_try_failed_before(desk, why):
    worker(desk)
    later = desk.enqueue("k", available_at=datetime.now(UTC) + timedelta(hours=1))
    run = desk.claimed("r")
    desk.settle(run, Status.QUEUED, retry_in=60)

    assert codes(why.explain(later)) == ["not_due"]
    assert "Try 1 failed" in why.explain(run.id).reasons[0].sentence


def test_a_busy_key_is_told_with_its_holder_since_when_and_the_row_behind_it(desk, why):
    worker(desk)
    holder = desk.claimed("k")
    first, second = desk.enqueue("k"), desk.enqueue("k")
    desk.look(5)

    told = why.explain(second)

    assert codes(told) == ["key_busy"]
    assert told.reasons[0].facts["job_id"] == holder.id
    assert "worker-1" in told.reasons[0].sentence
    assert told.position == 2
    assert why.explain(first).position == 1
    assert told.estimate is None
    desk.settle(desk.claimed("other"))
    while Rollups(desk.session).fold():
        pass
    assert why.explain(second).estimate is not None


def test_a_key_that_a_session_without_a_job_has_locked_is_told_so(desk, why):
    worker(desk)
    holder = desk.claimed("k")
    job_id = desk.enqueue("k")
    desk.look()
    desk.sql("UPDATE dl_jobs SET status = 'canceled', finished_at = now(), lease_expires_at = NULL WHERE job_id = %s",
             str(holder.id))  # fmt: skip
    assert codes(why.explain(job_id)) == ["key_freed"]
    with desk.held() as step:
        step("SET application_name = 'a zombie'; SELECT pg_advisory_xact_lock(hashtext('k'))")
        told = why.explain(job_id)

    assert codes(told) == ["key_locked_elsewhere"]
    assert "'a zombie'" in told.reasons[0].sentence


def test_busy_threads_are_told(desk, why):
    worker(desk, threads=1)
    desk.claimed("r")

    assert codes(why.explain(desk.enqueue("k"))) == ["threads_busy"]


def test_estimate_comes_from_runs_of_the_same_task(desk, why):
    worker(desk, threads=1)
    for task, seconds in (("t", 3), ("slow", 600)):
        desk.settle(desk.claimed(task, task=task))
        desk.sql("UPDATE dl_job_events SET ts = ts - make_interval(secs => %s) WHERE kind = 'picked' AND job_id ="
                 " (SELECT job_id FROM dl_jobs WHERE task = %s)", seconds, task)  # fmt: skip
    while Rollups(desk.session).fold():
        pass
    desk.claimed("r")

    estimate = why.explain(desk.enqueue("k")).estimate

    assert estimate is not None
    assert estimate.seconds == pytest.approx(3, abs=1)
    assert "jobs of 't' take 3" in estimate.basis


def test_worker_that_drains_does_not_count_as_one_that_claims(desk, why):
    worker_id = worker(desk)
    worker(desk, tasks=("other",), name="worker-2")
    Queues(desk.session).drain_worker(worker_id, draining=True)

    told = why.explain(desk.enqueue("k"))

    assert codes(told) == ["workers_draining"]
    assert told.reasons[0].sentence.endswith("claims anything: 1 drained.")


def test_worker_of_older_release_counts_all_its_threads(desk, why):
    worker(desk, threads=1)
    desk.sql("UPDATE dl_workers SET threads = 2")
    desk.claimed("r")

    assert codes(why.explain(desk.enqueue("k"))) == ["next"]


def test_a_running_job_is_told_with_its_worker_its_stop_and_what_is_usual(desk, why):
    worker(desk)
    run = desk.claimed("k")
    assert codes(why.explain(run.id)) == ["running"]
    desk.settle(desk.claimed("other"))
    while Rollups(desk.session).fold():
        pass
    desk.queue.cancel(run.id)
    doing = f'[{{"run_id": "{run.run_id}", "progress_age_sec": 4000, "stopping": "cancel", "rung": "interrupt"}}]'
    desk.sql("UPDATE dl_workers SET doing = %s", doing)
    desk.sql("UPDATE dl_job_events SET ts = ts - interval '2 days' WHERE kind = 'picked' AND job_id = %s", str(run.id))

    assert codes(why.explain(run.id)) == ["stop_not_obeyed", "running"], "it never told any progress"
    desk.sql("UPDATE dl_jobs SET progress = '{\"processed\": 3}' WHERE job_id = %s", str(run.id))

    told = why.explain(run.id)

    assert codes(told) == ["stop_not_obeyed", "progress_old", "running"]
    assert "'interrupt'" in told.reasons[0].sentence
    assert "longer than 95 %" in told.reasons[2].sentence
    assert told.reasons[2].facts["worker"] == "worker-1"
    desk.sql("UPDATE dl_workers SET seen_at = now() - interval '1 day'")
    assert codes(why.explain(run.id))[0] == "worker_silent"
    desk.expire(run.id)
    assert codes(why.explain(run.id))[0] == "lease_expired"


def test_a_finished_job_tells_how_it_ended(desk, why):
    succeeded, failed, lost = desk.claimed("a"), desk.claimed("b", max_attempts=1), desk.claimed("c", max_attempts=1)
    desk.settle(succeeded)
    desk.settle(failed, Status.FAILED, error="disk full\nmore")
    desk.lose(lost)
    canceled = desk.enqueue("d")
    desk.queue.cancel(canceled)

    assert codes(why.explain(succeeded.id)) == ["succeeded"]
    assert why.explain(failed.id).reasons[0].sentence.endswith("which was the last: disk full.")
    assert codes(why.explain(lost.id)) == ["lost"]
    assert "before it began" in why.explain(canceled).reasons[0].sentence
    with pytest.raises(JobNotFound):
        why.explain(uuid4())


def test_spans_are_told_in_words_that_fit():
    assert [module._span(seconds) for seconds in (5, 90, 7200, 200_000)] == ["5.0 s", "1.5 min", "2.0 h", "2.3 d"]
