from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from app.admin import explain as module
from app.admin.explain import JobExplainer, JobExplanation
from app.admin.queues import Queues, QueueState
from app.admin.statistics import Statistics
from app.errors import JobNotFound
from app.queue.job import Status
from app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def why(desk: QueueFixture) -> JobExplainer:
    desk.sql("TRUNCATE dl_queues, dl_statistics, dl_recent_runs")
    return JobExplainer(desk.session)


def worker(desk: QueueFixture, *, tasks: tuple[str, ...] = ("t",), threads: int = 2, name: str = "worker-1") -> UUID:
    info = WorkerInfo(uuid4(), name, "1", ("q",), tasks, threads)
    WorkerLiveness(desk.session).beat(info, heartbeat_sec=60)
    return info.id


def codes(told: JobExplanation) -> list[str]:
    for reason in told.reasons:
        assert reason.message.endswith("."), reason
    return [reason.code for reason in told.reasons]


def test_unblocked_job_is_next_and_later_jobs_get_estimate(desk, why):
    worker(desk)
    first, second = desk.enqueue("a"), desk.enqueue("b")
    desk.settle(desk.enqueue_and_claim("done", queue="q", priority=0))
    while Statistics(desk.session).aggregate():
        pass

    next_, behind = why.explain(first), why.explain(second)

    assert (codes(next_), next_.position) == (["next"], 1)
    assert (codes(behind), behind.position, behind.position_exact) == (["jobs_ahead"], 2, True)
    assert behind.estimate is not None
    assert behind.estimate.basis.startswith("1 job ahead of it, 2 of 2 threads free")


def test_a_position_is_counted_up_to_a_bound(desk, why, monkeypatch):
    monkeypatch.setattr(module, "MAX_COUNTED_AHEAD", 1)
    worker(desk)
    job_ids = [desk.enqueue(key) for key in "abc"]

    told = why.explain(job_ids[2])

    assert (told.position, told.position_exact) == (2, False)
    assert "more than 1" in told.reasons[0].message


def test_the_queue_is_told_of_when_it_is_closed_or_full(desk, why):
    worker(desk)
    queues = Queues(desk.session)
    desk.enqueue_and_claim("r")
    job_id = desk.enqueue("k")
    queues.change_settings("q", concurrency=1)
    assert codes(why.explain(job_id)) == ["queue_at_limit"]
    queues.change_settings("q", state=QueueState.PAUSED, changed_by="ann", note="later")

    told = why.explain(job_id)

    assert codes(told) == ["queue_paused"]
    assert "by ann: later" in told.reasons[0].message
    assert told.estimate is None
    queues.change_settings("q", state=QueueState.DRAINING)
    assert codes(why.explain(job_id)) == ["queue_draining"]


def test_missing_or_draining_workers_are_explained(desk, why):
    job_id = desk.enqueue("k")
    assert codes(why.explain(job_id)) == ["no_worker"]
    worker_id = worker(desk, tasks=("other",))
    assert codes(why.explain(job_id)) == ["task_unknown"]
    desk.queue.defer_unknown_tasks("q", ["other"])
    told = why.explain(job_id)
    assert codes(told) == ["task_unknown"]
    assert "deferred" in told.reasons[0].message
    desk.sql("UPDATE dl_workers SET tasks = '{t}', draining = true WHERE worker_id = %s", str(worker_id))
    desk.queue.restore_unknown_tasks(["q"], ["t"])
    desk.promote()
    assert codes(why.explain(job_id)) == ["workers_draining"]


def test_not_due_job_is_explained_also_after_failed_attempt(desk, why):
    worker(desk)
    later = desk.enqueue("k", available_at=datetime.now(UTC) + timedelta(hours=1))
    run = desk.enqueue_and_claim("r")
    desk.settle(run, Status.QUEUED, retry_in_sec=60)

    assert codes(why.explain(later)) == ["not_due"]
    assert "Attempt 1 failed" in why.explain(run.id).reasons[0].message


def test_busy_key_is_explained_with_holder_and_position(desk, why):
    worker(desk)
    holder = desk.enqueue_and_claim("k")
    first, second = desk.enqueue("k"), desk.enqueue("k")
    desk.claim_once(5)

    told = why.explain(second)

    assert codes(told) == ["key_busy"]
    assert told.reasons[0].details["job_id"] == holder.id
    assert "worker-1" in told.reasons[0].message
    assert told.position == 2
    assert why.explain(first).position == 1
    assert told.estimate is None
    desk.settle(desk.enqueue_and_claim("other"))
    while Statistics(desk.session).aggregate():
        pass
    assert why.explain(second).estimate is not None


def test_key_locked_by_session_without_job_is_explained(desk, why):
    worker(desk)
    holder = desk.enqueue_and_claim("k")
    job_id = desk.enqueue("k")
    desk.claim_once()
    desk.sql("UPDATE dl_jobs SET status = 'canceled', finished_at = now(), lease_expires_at = NULL WHERE job_id = %s",
             str(holder.id))  # fmt: skip
    assert codes(why.explain(job_id)) == ["key_freed"]
    with desk.open_transaction() as step:
        step("SET application_name = 'a zombie'; SELECT pg_advisory_xact_lock(hashtext('k'))")
        told = why.explain(job_id)

    assert codes(told) == ["key_locked_elsewhere"]
    assert "'a zombie'" in told.reasons[0].message


def test_busy_threads_are_told(desk, why):
    worker(desk, threads=1)
    desk.enqueue_and_claim("r")

    assert codes(why.explain(desk.enqueue("k"))) == ["threads_busy"]


def test_estimate_comes_from_runs_of_the_same_task(desk, why):
    worker(desk, threads=1)
    for task, seconds in (("t", 3), ("slow", 600)):
        desk.settle(desk.enqueue_and_claim(task, task=task))
        desk.sql("UPDATE dl_job_events SET ts = ts - make_interval(secs => %s) WHERE kind = 'picked' AND job_id ="
                 " (SELECT job_id FROM dl_jobs WHERE task = %s)", seconds, task)  # fmt: skip
    while Statistics(desk.session).aggregate():
        pass
    desk.enqueue_and_claim("r")

    estimate = why.explain(desk.enqueue("k")).estimate

    assert estimate is not None
    assert estimate.start_in_sec == pytest.approx(3, abs=1)
    assert "jobs of 't' take 3" in estimate.basis


def test_worker_that_drains_does_not_count_as_one_that_claims(desk, why):
    worker_id = worker(desk)
    worker(desk, tasks=("other",), name="worker-2")
    Queues(desk.session).drain_worker(worker_id, draining=True)

    told = why.explain(desk.enqueue("k"))

    assert codes(told) == ["workers_draining"]
    assert told.reasons[0].message.endswith("claims jobs: 1 drained.")


def test_worker_of_older_release_counts_all_its_threads(desk, why):
    worker(desk, threads=1)
    desk.sql("UPDATE dl_workers SET threads = 2")
    desk.enqueue_and_claim("r")

    assert codes(why.explain(desk.enqueue("k"))) == ["next"]


def test_running_job_is_explained_with_worker_stop_and_durations(desk, why):
    worker(desk)
    run = desk.enqueue_and_claim("k")
    assert codes(why.explain(run.id)) == ["running"]
    desk.settle(desk.enqueue_and_claim("other"))
    while Statistics(desk.session).aggregate():
        pass
    desk.queue.cancel(run.id)
    doing = (
        f'[{{"run_id": "{run.run_id}", "progress_age_sec": 4000, "stop_reason": "cancel", "stop_step": "interrupt"}}]'
    )
    desk.sql("UPDATE dl_workers SET running_attempts = %s", doing)
    desk.sql("UPDATE dl_job_events SET ts = ts - interval '2 days' WHERE kind = 'picked' AND job_id = %s", str(run.id))

    assert codes(why.explain(run.id)) == ["stop_not_obeyed", "running"], "it never told any progress"
    desk.sql("UPDATE dl_jobs SET progress = '{\"processed\": 3}' WHERE job_id = %s", str(run.id))

    told = why.explain(run.id)

    assert codes(told) == ["stop_not_obeyed", "progress_old", "running"]
    assert "'interrupt'" in told.reasons[0].message
    assert "longer than 95 %" in told.reasons[2].message
    assert told.reasons[2].details["worker"] == "worker-1"
    desk.sql("UPDATE dl_workers SET seen_at = now() - interval '1 day'")
    assert codes(why.explain(run.id))[0] == "worker_silent"
    desk.expire_lease(run.id)
    assert codes(why.explain(run.id))[0] == "lease_expired"


def test_a_finished_job_tells_how_it_ended(desk, why):
    succeeded, failed, lost = (
        desk.enqueue_and_claim("a"),
        desk.enqueue_and_claim("b", max_attempts=1),
        desk.enqueue_and_claim("c", max_attempts=1),
    )
    desk.settle(succeeded)
    desk.settle(failed, Status.FAILED, error="disk full\nmore")
    desk.lose_attempt(lost)
    canceled = desk.enqueue("d")
    desk.queue.cancel(canceled)

    assert codes(why.explain(succeeded.id)) == ["succeeded"]
    assert why.explain(failed.id).reasons[0].message.endswith("which was the last: disk full.")
    assert codes(why.explain(lost.id)) == ["lost"]
    assert "before its first attempt" in why.explain(canceled).reasons[0].message
    with pytest.raises(JobNotFound):
        why.explain(uuid4())


def test_spans_are_told_in_words_that_fit():
    assert [module._format_duration(seconds) for seconds in (5, 90, 7200, 200_000)] == [
        "5.0 s",
        "1.5 min",
        "2.0 h",
        "2.3 d",
    ]
