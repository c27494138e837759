from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from dataloader.app.acts.reasons import JobExplanation
from dataloader.app.errors import JobNotFound
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.statistics.rows import StatisticsWriter
from dataloader.app.features.why import explain, wait_reasons
from dataloader.app.features.why.explain import JobExplainer
from dataloader.app.queue.job import Status, new_run_ids
from dataloader.app.queue.queues import QueueState
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.app.state.queues import Queues
from dataloader.app.wording import format_duration
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def why(queue_db: QueueFixture) -> JobExplainer:
    queue_db.sql("TRUNCATE dl_queues, dl_statistics, dl_recent_runs")
    return JobExplainer(queue_db.session, FEATURES)


def worker(
    queue_db: QueueFixture, *, tasks: tuple[str, ...] = ("t",), threads: int = 2, name: str = "worker-1"
) -> UUID:
    info = WorkerInfo(uuid4(), name, "1", ("q",), tasks, threads)
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)
    return info.id


def codes(result: JobExplanation) -> list[str]:
    for reason in result.reasons:
        assert reason.message.endswith("."), reason
    return [reason.code for reason in result.reasons]


def test_job_that_changed_since_it_was_read_is_read_again(queue_db, why, monkeypatch):
    worker(queue_db)
    job_id = queue_db.enqueue("a")
    read = JobReader.get_with_version
    found = read(JobReader(queue_db.session), job_id)
    stale = iter([replace(found, job=replace(found.job, status=Status.RUNNING))])
    monkeypatch.setattr(JobReader, "get_with_version", lambda reader, job_id: next(stale, None) or read(reader, job_id))

    explanation = why.explain(job_id)

    assert (explanation.status, codes(explanation)) == (Status.QUEUED, ["next"])


def test_unblocked_job_is_next_and_later_jobs_get_estimate(queue_db, why):
    worker(queue_db)
    first, second = queue_db.enqueue("a"), queue_db.enqueue("b")
    queue_db.settle(queue_db.enqueue_and_claim("done", queue="q", priority=0))
    while StatisticsWriter(queue_db.session).aggregate() is not None:
        pass

    next_, behind = why.explain(first), why.explain(second)

    assert (codes(next_), next_.position) == (["next"], 1)
    assert (codes(behind), behind.position, behind.position_exact) == (["jobs_ahead"], 2, True)
    assert behind.estimate is not None
    assert behind.estimate.basis.startswith("1 job ahead of it, 2 of 2 threads free")


def test_a_position_is_counted_up_to_a_bound(queue_db, why, monkeypatch):
    for module in (explain, wait_reasons):
        monkeypatch.setattr(module, "MAX_COUNTED_AHEAD", 1)
    worker(queue_db)
    job_ids = [queue_db.enqueue(key) for key in "abc"]

    result = why.explain(job_ids[2])

    assert (result.position, result.position_exact) == (2, False)
    assert "more than 1" in result.reasons[0].message


def test_closed_or_full_queue_is_reported(queue_db, why):
    worker(queue_db)
    queues = Queues(queue_db.session)
    queue_db.enqueue_and_claim("r")
    job_id = queue_db.enqueue("k")
    queues.change_settings("q", concurrency=1)
    assert codes(why.explain(job_id)) == ["queue_at_limit"]
    queues.change_settings("q", state=QueueState.PAUSED, changed_by="ann", note="later")

    result = why.explain(job_id)

    assert codes(result) == ["queue_paused"]
    assert "by ann: later" in result.reasons[0].message
    assert result.estimate is None
    queues.change_settings("q", state=QueueState.DRAINING)
    assert codes(why.explain(job_id)) == ["queue_draining"]


def test_missing_or_draining_workers_are_explained(queue_db, why):
    job_id = queue_db.enqueue("k")
    assert codes(why.explain(job_id)) == ["no_worker"]
    worker_id = worker(queue_db, tasks=("other",))
    assert codes(why.explain(job_id)) == ["task_unknown"]
    queue_db.queue.defer_unknown_tasks("q", ["other"])
    result = why.explain(job_id)
    assert codes(result) == ["task_unknown"]
    assert "deferred" in result.reasons[0].message
    queue_db.sql("UPDATE dl_workers SET tasks = '{t}', draining = true WHERE worker_id = %s", str(worker_id))
    queue_db.queue.restore_unknown_tasks(["q"], ["t"])
    queue_db.promote()
    assert codes(why.explain(job_id)) == ["workers_draining"]


def test_not_due_job_is_explained_also_after_failed_attempt(queue_db, why):
    worker(queue_db)
    later = queue_db.enqueue("k", available_at=datetime.now(UTC) + timedelta(hours=1))
    run = queue_db.enqueue_and_claim("r")
    queue_db.settle(run, Status.QUEUED, retry_in_sec=60)

    assert codes(why.explain(later)) == ["not_due"]
    assert "Attempt 1 failed" in why.explain(run.id).reasons[0].message


def test_busy_key_is_explained_with_holder_and_position(queue_db, why):
    worker(queue_db)
    holder = queue_db.enqueue_and_claim("k")
    first, second = queue_db.enqueue("k"), queue_db.enqueue("k")
    queue_db.claim_once(5)

    result = why.explain(second)

    assert codes(result) == ["key_busy"]
    assert result.reasons[0].details["job_id"] == holder.id
    assert "worker-1" in result.reasons[0].message
    assert result.position == 2
    assert why.explain(first).position == 1
    assert result.estimate is None
    queue_db.settle(queue_db.enqueue_and_claim("other"))
    while StatisticsWriter(queue_db.session).aggregate() is not None:
        pass
    assert why.explain(second).estimate is not None


def test_key_locked_by_session_without_job_is_explained(queue_db, why):
    worker(queue_db)
    holder = queue_db.enqueue_and_claim("k")
    job_id = queue_db.enqueue("k")
    queue_db.claim_once()
    end = "UPDATE dl_jobs SET status = 'canceled', finished_at = now(), lease_expires_at = NULL WHERE job_id = %s"
    queue_db.sql(end, str(holder.id))
    assert codes(why.explain(job_id)) == ["key_freed"]
    with queue_db.open_transaction() as step:
        step("SET application_name = 'a zombie'; SELECT pg_advisory_xact_lock(hashtext('k'))")
        result = why.explain(job_id)

    assert codes(result) == ["key_locked_elsewhere"]
    assert "'a zombie'" in result.reasons[0].message


def test_busy_threads_are_reported(queue_db, why):
    worker(queue_db, threads=1)
    queue_db.enqueue_and_claim("r")

    assert codes(why.explain(queue_db.enqueue("k"))) == ["threads_busy"]


def test_jobs_of_a_former_process_of_the_same_name_use_no_threads(queue_db, why):
    worker(queue_db, threads=1)
    queue_db.enqueue("r")
    assert queue_db.queue.claim("q", ["t"], new_run_ids(1), "worker-1", worker_id=uuid4())[0]

    assert codes(why.explain(queue_db.enqueue("k"))) == ["next"]


def test_due_job_that_is_not_promoted_waits_for_threads(queue_db, why):
    worker(queue_db, threads=1)
    queue_db.enqueue_and_claim("r")
    due = queue_db.enqueue("k")
    queue_db.sql(
        "UPDATE dl_jobs SET wait_state = 'scheduled', available_at = now() - interval '1 s' WHERE job_id = %s", str(due)
    )

    assert codes(why.explain(due)) == ["threads_busy"]


def test_estimate_comes_from_runs_of_the_same_task(queue_db, why):
    worker(queue_db, threads=1)
    for task, seconds in (("t", 3), ("slow", 600)):
        queue_db.settle(queue_db.enqueue_and_claim(task, task=task))
        queue_db.sql("UPDATE dl_job_events SET ts = ts - make_interval(secs => %s) WHERE kind = 'picked' AND job_id ="
                 " (SELECT job_id FROM dl_jobs WHERE task = %s)", seconds, task)  # fmt: skip
    while StatisticsWriter(queue_db.session).aggregate() is not None:
        pass
    queue_db.enqueue_and_claim("r")

    estimate = why.explain(queue_db.enqueue("k")).estimate

    assert estimate is not None
    assert estimate.start_in_sec == pytest.approx(3, abs=1)
    assert "jobs of 't' take 3" in estimate.basis


def test_worker_that_drains_does_not_count_as_one_that_claims(queue_db, why):
    worker_id = worker(queue_db)
    worker(queue_db, tasks=("other",), name="worker-2")
    Queues(queue_db.session).drain_worker(worker_id, draining=True)

    result = why.explain(queue_db.enqueue("k"))

    assert codes(result) == ["workers_draining"]
    assert result.reasons[0].message.endswith("claims jobs: 1 drained.")


def test_high_memory_is_a_reason_if_other_threads_are_busy(queue_db, why):
    full = worker(queue_db, name="full")
    worker(queue_db, threads=1)
    queue_db.sql("UPDATE dl_workers SET running_attempts = '[{\"memory_high\": true}]' WHERE worker_id = %s", str(full))
    job_id = queue_db.enqueue("k", priority=9)
    assert codes(why.explain(job_id)) == ["next"], "the other one has a free thread"

    queue_db.enqueue_and_claim("r", priority=1)
    result = why.explain(job_id)

    assert codes(result) == ["memory_high"]
    assert result.reasons[0].message.startswith("Memory is high in 1 of 2 workers that can run it")
    assert result.estimate is None


def test_worker_of_older_release_counts_all_its_threads(queue_db, why):
    worker(queue_db, threads=1)
    queue_db.sql("UPDATE dl_workers SET threads = 2")
    queue_db.enqueue_and_claim("r")

    assert codes(why.explain(queue_db.enqueue("k"))) == ["next"]


def test_running_job_is_explained_with_worker_stop_and_durations(queue_db, why):
    worker(queue_db)
    run = queue_db.enqueue_and_claim("k")
    assert codes(why.explain(run.id)) == ["running"]
    queue_db.settle(queue_db.enqueue_and_claim("other"))
    while StatisticsWriter(queue_db.session).aggregate() is not None:
        pass
    queue_db.queue.cancel(run.id)
    doing = f'[{{"run_id": "{run.run_id}", "stop_reason": "cancel", "stop_step": "interrupt"}}]'
    queue_db.sql("UPDATE dl_workers SET running_attempts = %s", doing)
    queue_db.sql(
        "UPDATE dl_job_events SET ts = ts - interval '2 days' WHERE kind = 'picked' AND job_id = %s", str(run.id)
    )

    assert codes(why.explain(run.id)) == ["stop_not_obeyed", "running"], "it never reported progress"
    queue_db.save_progress(run, {"processed": 3}, age_sec=4000)

    result = why.explain(run.id)

    assert codes(result) == ["stop_not_obeyed", "progress_old", "running"]
    assert "'interrupt'" in result.reasons[0].message
    assert "longer than 95 %" in result.reasons[2].message
    assert result.reasons[2].details["worker"] == "worker-1"
    queue_db.sql("UPDATE dl_workers SET seen_at = now() - interval '1 day'")
    assert codes(why.explain(run.id))[0] == "worker_silent"
    queue_db.expire_lease(run.id)
    assert codes(why.explain(run.id))[0] == "lease_expired"


def test_stop_at_a_time_limit_says_since_when(queue_db, why):
    """No event records it: the worker reports it."""
    worker(queue_db)
    run = queue_db.enqueue_and_claim("k")
    doing = f'[{{"run_id": "{run.run_id}", "stop_reason": "time_limit", "stop_step": "pending", "stop_age_sec": 5400}}]'
    reported = "jsonb_set(%s, '{0,reported_at}', to_jsonb(clock_timestamp()))"
    queue_db.sql(f"UPDATE dl_workers SET running_attempts = {reported}", doing)

    message = why.explain(run.id).reasons[0].message

    assert message.startswith(
        ("Its stop (time_limit) was requested 1.5 h", "Its stop (time_limit) was requested 1 h 30")
    )


def test_finished_job_shows_how_it_ended(queue_db, why):
    succeeded, failed, lost = (
        queue_db.enqueue_and_claim("a"),
        queue_db.enqueue_and_claim("b", max_attempts=1),
        queue_db.enqueue_and_claim("c", max_attempts=1),
    )
    queue_db.settle(succeeded)
    queue_db.settle(failed, Status.FAILED, error="disk full\nmore")
    queue_db.lose_attempt(lost)
    canceled = queue_db.enqueue("d")
    queue_db.queue.cancel(canceled)

    assert codes(why.explain(succeeded.id)) == ["succeeded"]
    assert why.explain(failed.id).reasons[0].message.endswith("which was the last: disk full.")
    assert codes(why.explain(lost.id)) == ["lost"]
    assert "before its first attempt" in why.explain(canceled).reasons[0].message
    with pytest.raises(JobNotFound):
        why.explain(uuid4())


def test_durations_have_fitting_units():
    assert [format_duration(seconds) for seconds in (5, 90, 7200, 200_000)] == [
        "5 s",
        "1 min 30 s",
        "2 h",
        "2 d 7 h",
    ]
