"""The replay of a recorded campaign: a true record passes, and each planted fault of a record is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg2
import pytest

from tests.chaos import etl
from tests.chaos.history import Edge, Execution
from tests.model.mutants import TRACE_MUTANTS
from tests.model.record import CREATE_TABLES, Record, TargetCommit, TraceStep
from tests.model.record_builder import HEARTBEAT_SEC, LEASE_SEC, NOON, Recorder, timestamp
from tests.model.trace import check_trace


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_life_of_a_job_is_allowed(recorder: Recorder):
    job = recorder.enqueue()
    run = recorder.claim(job)
    recorder.report(job, run)
    recorder.beat()
    late = LEASE_SEC + HEARTBEAT_SEC + 0.1
    recorder.end(job, "queued", "requeue", "lease_expired", after=late, progress_run=run)
    recorder.claim(job, "w2")
    recorder.end(job, "queued", "requeue", "shutdown", attempt=1)
    run = recorder.claim(job, "w2")
    recorder.succeed(job, progress_run=run)

    assert recorder.refusals() == []


def test_attempt_that_reports_nothing_leaves_what_the_job_shows(recorder: Recorder):
    job = recorder.enqueue()
    recorder.end(job, "queued", "requeue", "process_died", progress_run=recorder.claim(job))
    recorder.claim(job, "w2")
    recorder.end(job, "failed", "failed")

    assert recorder.refusals() == []


def test_lost_job_returns_after_a_retry(recorder: Recorder):
    job = recorder.start(most=1)
    recorder.end(job, "lost", "lost", "process_died")
    recorder.end(job, "queued", "requeue", "retry", attempt=0)
    recorder.claim(job, "w2")
    recorder.succeed(job)

    assert recorder.refusals() == []


def _claim_of_running_key(recorder: Recorder) -> None:
    recorder.claim(recorder.enqueue())
    recorder.claim(recorder.enqueue())


def _claim_of_blocked_job(recorder: Recorder) -> None:
    recorder.start(wait="blocked")


def _second_use_of_a_run(recorder: Recorder) -> None:
    run = recorder.claim(recorder.enqueue("a"))
    recorder.claim(recorder.enqueue("b"), run=run)


def _change_without_event(recorder: Recorder) -> None:
    job = recorder.start()
    recorder.transaction()
    recorder.change(job, status="succeeded", owner=None, lease=None)


def _event_without_change(recorder: Recorder) -> None:
    job = recorder.enqueue()
    recorder.transaction()
    recorder.event(job, "picked", run=str(uuid4()))


def _success_twice(recorder: Recorder) -> None:
    job = recorder.start()
    recorder.succeed(job)
    recorder.end(job, "failed", "failed")


def _result_of_another_run(recorder: Recorder) -> None:
    job = recorder.start()
    recorder.succeed(job, result_run=str(uuid4()))


def _progress_of_another_run(recorder: Recorder) -> None:
    job = recorder.enqueue()
    recorder.end(job, "queued", "requeue", "process_died", progress_run=recorder.claim(job))
    recorder.claim(job, "w2")
    recorder.succeed(job)


def _reap_of_a_live_lease(recorder: Recorder) -> None:
    job = recorder.start()
    recorder.beat(after=1.5)
    recorder.end(job, "queued", "requeue", "lease_expired", after=0.6)


def _reap_beyond_the_budget(recorder: Recorder) -> None:
    job = recorder.start(most=1)
    recorder.end(job, "queued", "requeue", "lease_expired", after=5)


def _beat_after_proof_of_death(recorder: Recorder) -> None:
    job = recorder.start()
    recorder.end(job, "queued", "requeue", "process_died")
    recorder.beat()


def _act_after_loss(recorder: Recorder) -> None:
    job = recorder.enqueue()
    run = recorder.claim(job)
    recorder.end(job, "queued", "requeue", "lease_expired", after=5)
    recorder.report(job, run, after=0.5)


def _act_without_heartbeat(recorder: Recorder) -> None:
    job = recorder.enqueue()
    recorder.report(job, recorder.claim(job), after=LEASE_SEC + 0.5)


def _act_after_heartbeat_with_cancel(recorder: Recorder) -> None:
    job = recorder.enqueue()
    run = recorder.claim(job)
    recorder.transaction()
    recorder.change(job, cancel=True)
    recorder.event(job, "cancel_requested")
    for _ in range(6):
        recorder.beat(after=0.5)
    recorder.report(job, run)


def _cancel_forgotten(recorder: Recorder) -> None:
    job = recorder.start()
    recorder.transaction()
    recorder.change(job, cancel=True)
    recorder.event(job, "cancel_requested")
    recorder.end(job, "queued", "requeue", "error", cancel=False)


def _short_renewal(recorder: Recorder) -> None:
    job = recorder.start()
    recorder.transaction(1.0)
    recorder.change(job, beat=timestamp(recorder.now), lease=timestamp(recorder.now + 0.5))


def _unblock_of_a_running_key(recorder: Recorder) -> None:
    recorder.claim(recorder.enqueue())
    job = recorder.enqueue(wait="blocked")
    recorder.transaction()
    recorder.change(job, wait="ready")


def _start_beyond_the_limit(recorder: Recorder) -> None:
    recorder.transaction()
    recorder.add("limit", {"name": "warehouse", "concurrency": 1})
    for key in ("a", "b"):
        recorder.claim(recorder.enqueue(key, limits={"warehouse": 1}))


def _start_before_parents(recorder: Recorder) -> None:
    parent, child = recorder.enqueue("a"), recorder.enqueue("b")
    recorder.edges[child] = [Edge(UUID(child), UUID(parent), "succeeded")]
    recorder.claim(child)


def _commit_of_another_run(recorder: Recorder) -> None:
    job = recorder.start()
    recorder.transaction()
    recorder.add("effect", {"job": job, "run": str(uuid4()), "part": 0})


def _part_of_a_former_run(recorder: Recorder) -> None:
    job = recorder.enqueue()
    first = recorder.claim(job)
    recorder.end(job, "queued", "requeue", "lease_expired", after=5)
    second = recorder.claim(job)
    recorder.target += [
        TargetCommit(job, run, kind) for run, kind in ((first, "row"), (second, "row"), (first, "part"))
    ]


def _schedule(recorder: Recorder, **changes: Any) -> None:
    recorder.transaction()
    values = {"schedule_id": "s", "name": "each", "declared": {"kind": "interval", "expression": "10"}, "overrides": {},
              "created_at": timestamp(NOON), "last_at": None, "paused_at": None}  # fmt: skip
    recorder.add("dl_schedules", values | changes)


def _passed_time(recorder: Recorder) -> None:
    _schedule(recorder)
    _schedule(recorder, last_at=timestamp(NOON + 20))
    recorder.add("dl_firings", {"schedule_id": "s", "fire_at": timestamp(NOON + 20), "until": None, "job_id": None})


def _firing_while_paused(recorder: Recorder) -> None:
    for last_at in (None, timestamp(NOON + 5)):
        _schedule(recorder, last_at=last_at, paused_at=timestamp(NOON))


def _time_fired_again(recorder: Recorder) -> None:
    for job in ("first", "second"):
        recorder.transaction()
        firing = {"schedule_id": "s", "fire_at": timestamp(NOON), "until": None, "job_id": job}
        recorder.add("dl_firings", firing)


def _job_without_firing(recorder: Recorder) -> None:
    recorder.enqueue(schedule="s")


def _second_live_job_of_a_slice(recorder: Recorder) -> None:
    for key in ("a", "b"):
        recorder.enqueue(key, live_key="slice:t:monday")


def _jobs_of_a_paused_backfill(recorder: Recorder) -> None:
    for made, cursor in ((0, None), (1, "1")):
        recorder.transaction()
        state = {"state": "paused", "made": made, "skipped": 0, "cursor": cursor}
        recorder.add("dl_backfills", {"backfill_id": "b"} | state)


def _slices_asked_for_again(recorder: Recorder) -> None:
    for made, cursor in ((0, None), (1, "1"), (2, "1")):
        recorder.transaction()
        recorder.add(
            "dl_backfills", {"backfill_id": "b", "state": "open", "made": made, "skipped": 0, "cursor": cursor}
        )


def _end_of_a_slice_not_recorded(recorder: Recorder) -> None:
    job = recorder.enqueue(live_key="slice:t:monday", slice="monday")
    recorder.add("dl_slices", {"task": "t", "partition_key": "monday", "job_id": job, "state": "queued"})
    recorder.claim(job)
    recorder.succeed(job)


def _second_submission(recorder: Recorder) -> None:
    for number in (1, 2):
        recorder.transaction()
        values = {"op": "INSERT", "job_id": "j", "number": number, "outcome": None, "name": f"dl-{number}"}
        recorder.add("dl_offloads", values)


def _submission_after_a_stop(recorder: Recorder) -> None:
    job = recorder.start()
    for number, outcome in ((1, "stopped"), (2, "succeeded")):
        recorder.transaction()
        values = {"op": "INSERT", "job_id": job, "number": number, "outcome": outcome, "name": f"dl-{number}"}
        recorder.add("dl_offloads", values)
    recorder.succeed(job)


def _second_job_of_a_schedule(recorder: Recorder) -> None:
    _schedule(recorder, overrides={"overlap": "skip"})
    for key in ("a", "b"):
        recorder.enqueue(key, schedule="s")
        recorder.add("dl_firings", {"schedule_id": "s", "fire_at": key, "until": None, "job_id": recorder.last_job})


def _submission_without_end(recorder: Recorder) -> None:
    recorder.transaction()
    values = {"op": "INSERT", "job_id": "j", "number": 1, "outcome": None, "name": "dl-1"}
    recorder.add("dl_offloads", values)


def _work_without_intent(recorder: Recorder) -> None:
    recorder.executions.append(Execution(name="dl-1", starts=1, had_intent=False, state="succeeded"))


def _forgotten_update(recorder: Recorder) -> None:
    _schedule(recorder, declared={"kind": "dataset", "after": ["orders"]})
    recorder.transaction()
    recorder.add("dl_dataset_events", {"job_id": "j", "kind": "produced", "dataset": "orders"})


PLANTED = [
    (_claim_of_running_key, "runs with its key"),
    (_claim_of_blocked_job, "the job is not ready"),
    (_second_use_of_a_run, "is not a fresh one"),
    (_change_without_event, "no event says so"),
    (_event_without_change, "without a change of the row"),
    (_success_twice, "the job has not ended, or has succeeded"),
    (_result_of_another_run, "result of run"),
    (_progress_of_another_run, "progress of run"),
    (_reap_of_a_live_lease, "after its lease ended"),
    (_reap_beyond_the_budget, "leads to ('lost'"),
    (_beat_after_proof_of_death, "a process beats that was proved dead"),
    (_act_after_loss, "after it had lost its job"),
    (_act_without_heartbeat, "after the last heartbeat of its process"),
    (_act_after_heartbeat_with_cancel, "that found its cancel request"),
    (_cancel_forgotten, "leads to ('canceled'"),
    (_short_renewal, "the row is renewed, and its lease ends in"),
    (_unblock_of_a_running_key, "a job becomes ready"),
    (_start_beyond_the_limit, "it starts with 1 of 1"),
    (_start_before_parents, "before its parents"),
    (_commit_of_another_run, "does not own the job"),
    (_part_of_a_former_run, "whose row is of run"),
    (_passed_time, "has passed over 1 times"),
    (_firing_while_paused, "the paused schedule"),
    (_time_fired_again, "is fired again"),
    (_job_without_firing, "no firing of the transaction names it"),
    (_second_live_job_of_a_slice, "with the same live_key"),
    (_jobs_of_a_paused_backfill, "jobs of a backfill are made that is paused"),
    (_slices_asked_for_again, "are asked for again"),
    (_end_of_a_slice_not_recorded, "its slice is not changed"),
    (_second_submission, "submission 2 begins"),
    (_submission_after_a_stop, "it submitted its work again"),
    (_second_job_of_a_schedule, "with the same schedule"),
    (_submission_without_end, "has no end"),
    (_work_without_intent, "before its intent was committed"),
    (_forgotten_update, "does not learn of it"),
]


@pytest.mark.parametrize(
    ("plant", "message"), PLANTED, ids=lambda value: value.__name__.strip("_") if callable(value) else ""
)
def test_planted_fault_is_refused(recorder: Recorder, plant, message):
    plant(recorder)

    assert any(message in refusal for refusal in recorder.refusals()), recorder.refusals()


def test_trace_mutants_have_a_planted_fault():
    messages = [message for _, message in PLANTED]

    assert [name for name, part in TRACE_MUTANTS.items() if not any(part in message for message in messages)] == []


@pytest.fixture
def recorded(dsn: str) -> Iterator[Any]:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(etl.TARGET)
        cursor.execute(CREATE_TABLES)
        yield cursor
    connection.close()


def test_triggers_record_rows_events_and_heartbeats(recorded):
    recorded.execute("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')")
    recorded.execute("UPDATE dl_jobs SET cancel_requested = true")
    recorded.execute("INSERT INTO dl_heartbeats VALUES (gen_random_uuid(), clock_timestamp())")
    recorded.execute("SELECT n, xid, extract(epoch FROM at)::float8, kind, data FROM trace_steps ORDER BY n")
    steps = [TraceStep(*row) for row in recorded.fetchall()]

    assert [(step.kind, step.data.get("status")) for step in steps] == [
        ("row", "queued"), ("event", "queued"), ("event", "canceled"), ("row", "canceled"), ("beat", None)
    ]  # fmt: skip
    assert check_trace(Record(steps=steps, heartbeat_sec=0.5)).refusals == []
