"""What workers claim, with and without tasks that they know."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from dataloader.app.queue.claims import FIRST_TURN, FRONT, ClaimMode, ClaimRequest, start_at_jobs
from dataloader.app.queue.job import SUCCEEDED, Status, new_run_ids
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness

# ── claim ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_jobs_are_claimed_by_priority_then_age(queue_db):
    old = queue_db.enqueue("a")
    new = queue_db.enqueue("b")
    urgent = queue_db.enqueue("c", priority=1)
    elsewhere = queue_db.enqueue("d", queue="other", priority=0)

    assert [run.id for run in queue_db.claim(2)] == [urgent, old]
    assert [run.id for run in queue_db.claim(5)] == [new]
    assert [run.id for run in queue_db.claim(queue="other")] == [elsewhere]
    assert queue_db.claim() == []


def test_a_claim_of_certain_jobs_takes_those_that_are_ready_and_no_others(queue_db):
    wanted = [queue_db.enqueue(f"k{n}", priority=9 - n) for n in range(2)]
    left = {
        "not asked for": queue_db.enqueue("first", priority=0),
        "of another queue": queue_db.enqueue("b", queue="other"),
        "of another task": queue_db.enqueue("c", task="unknown"),
        "not due": queue_db.enqueue("d", available_at=datetime.now(UTC) + timedelta(hours=1)),
        "expired": queue_db.enqueue("e"),
    }
    queue_db.sql("UPDATE dl_jobs SET expires_at = clock_timestamp() WHERE job_id = %s", str(left["expired"]))
    asked = [*wanted, *list(left.values())[1:], uuid4()]
    request = ClaimRequest(ClaimMode.LISTED, start_at_jobs([*map(str, asked)]), promote_due=False)

    taken, hint = queue_db.queue.claim("q", ["t"], new_run_ids(9), "me", request)

    assert [run.id for run in taken] == wanted, "in the order in which they were asked for"
    assert hint.next_start is None, "the next claim begins where it would have without this one"
    assert {name for name, job in left.items() if queue_db.status(job) is not Status.QUEUED} == set()


@pytest.mark.parametrize("mode", ClaimMode)
def test_process_whose_name_another_has_taken_claims_nothing(queue_db, mode: ClaimMode):
    job_id, info = queue_db.enqueue("a"), WorkerInfo(uuid4(), "host:1", "1", ("q",), ("t",), 1)
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)
    queue_db.sql("UPDATE dl_workers SET superseded_by = %s WHERE worker_id = %s", str(uuid4()), str(info.id))
    start = {ClaimMode.IN_TURN: FIRST_TURN, ClaimMode.LISTED: start_at_jobs([str(job_id)])}.get(mode, FRONT)

    def claim(worker_id: UUID | None) -> tuple[list[UUID], int]:
        request = ClaimRequest(mode, start)
        claimed, hint = queue_db.queue.claim("q", ["t"], new_run_ids(1), "me", request, worker_id=worker_id)
        return [run.id for run in claimed], hint.skipped

    assert claim(info.id) == ([], 0), "and it does not claim again at once"
    assert claim(None) == ([job_id], 0)


def test_a_claim_of_certain_jobs_takes_no_more_than_it_may(queue_db):
    jobs = [queue_db.enqueue(f"k{n}") for n in range(3)]
    busy = queue_db.enqueue_and_claim("busy", priority=0)
    blocked = queue_db.insert(busy.lock_key, wait_state="ready")
    queue_db.sql("INSERT INTO dl_limits (name, concurrency) VALUES ('task:t', 2)")  # one runs already
    listed = start_at_jobs([*map(str, (blocked, *jobs))])
    request = ClaimRequest(ClaimMode.LISTED, listed, promote_due=False)

    taken, hint = queue_db.queue.claim("q", ["t"], new_run_ids(3), "me", request)

    assert [run.id for run in taken] == jobs[:1]
    assert [queue_db.wait_state(job) for job in (blocked, jobs[1])] == ["blocked", "limited"]
    assert list(hint.blocked_keys) == [busy.lock_key]


@pytest.mark.parametrize("waits_for", ["key", "limit"])
def test_an_end_says_which_jobs_have_waited_for_it(queue_db, waits_for):
    queue_db.sql("INSERT INTO dl_limits (name, concurrency) VALUES ('narrow', 1)")
    of = {"limits": {"narrow": 1}} if waits_for == "limit" else {}
    first = queue_db.enqueue_and_claim("k", **of)
    waiting = queue_db.enqueue("k" if waits_for == "key" else "other", **of)
    assert queue_db.claim() == []
    made_ready: list[str] = []

    queue_db.queue.settle([(first, SUCCEEDED)], on_ready=made_ready.extend)

    assert made_ready == [str(waiting)]
    assert queue_db.wait_state(waiting) == "ready"
    (second,) = queue_db.claim()
    queue_db.queue.settle([(second, SUCCEEDED)], on_ready=made_ready.extend)
    assert made_ready == [str(waiting)], "nothing waited for the second"


def test_a_batch_is_handed_out_in_order_with_a_run_id_each(queue_db):
    jobs = [queue_db.enqueue(str(n), priority=9 - n) for n in range(5)]
    runs = new_run_ids(7)

    taken, outlook = queue_db.queue.claim("q", ["t"], runs, "me")

    assert [run.id for run in taken] == jobs[::-1]
    assert [run.run_id for run in taken] == [UUID(run_id) for run_id in runs[:5]]
    assert (outlook.skipped, outlook.next_due_sec) == (0, None)
    assert {queue_db.job(job).worker for job in jobs} == {"me"}


def test_a_claim_stamps_the_lease_by_the_databases_clock(queue_db):
    queue_db.enqueue(lease_ttl_sec=40)
    before = queue_db.fetch_row("SELECT clock_timestamp()")
    (run,) = queue_db.claim()
    after = queue_db.fetch_row("SELECT clock_timestamp()")

    job = queue_db.job(run.id)
    assert job.status is Status.RUNNING
    assert job.run_id == run.run_id
    assert before <= job.started_at <= after
    assert before <= job.heartbeat_at <= after
    assert before + timedelta(seconds=40) <= job.lease_expires_at <= after + timedelta(seconds=40)
    assert (run.attempt, run.lease_ttl_sec) == (1, 40)


def test_the_first_start_is_kept_through_later_tries(queue_db):
    run = queue_db.enqueue_and_claim()
    first = queue_db.job(run.id).started_at
    queue_db.settle(run, Status.QUEUED)
    (again,) = queue_db.claim()

    assert queue_db.job(run.id).started_at == first
    assert (again.id, again.attempt) == (run.id, 2)
    assert again.run_id != run.run_id


def test_lost_claim_answer_is_found_by_run_ids(queue_db):
    queue_db.enqueue("a")
    runs = new_run_ids(2)
    (run,), _ = queue_db.queue.claim("q", ["t"], runs, "me")

    assert queue_db.queue.recover_claim(runs) == [run]
    assert queue_db.queue.recover_claim(new_run_ids(1)) == []
    queue_db.settle(run)
    assert queue_db.queue.recover_claim(runs) == []


def test_a_claim_says_when_the_next_timed_job_falls_due(queue_db):
    queue_db.enqueue("b", queue="other", available_at=datetime.now(UTC) + timedelta(hours=2))
    queue_db.enqueue("a", available_at=datetime.now(UTC) + timedelta(hours=1))
    queue_db.insert("never", available_at="infinity")

    taken, outlook = queue_db.claim_once()

    assert taken == []
    assert 3500 < outlook.next_due_sec <= 3600


def test_row_locked_forever_delays_no_other_job(queue_db):
    queue_db.insert("never", available_at="infinity")
    queue_db.enqueue("now")

    assert len(queue_db.claim()) == 1
    assert queue_db.claim_once()[1].next_due_sec is None


def test_what_python_cannot_decode_is_claimed_and_can_be_settled(queue_db):
    many = "7" * 5000
    deep = "[" * 3000 + "]" * 3000
    queue_db.insert("a", args=f'{{"exp": 1e5000, "many": {many}, "deep": {deep}}}', available_at="0044-03-15 BC")

    (run,) = queue_db.claim()

    assert json.loads(run.args_text).keys() == {"$dropped"}
    assert queue_db.job(run.id).available_at.year == 1
    assert queue_db.settle(run, Status.FAILED).outcome == "applied"


def test_attempt_count_never_exceeds_max_attempts_after_requeue(queue_db):
    queue_db.insert("a", attempt=5)

    (run,) = queue_db.claim()

    assert run.attempt == 5
    assert queue_db.lose_attempt(run).status is Status.LOST


def test_attempt_begins_without_leftovers_of_previous(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.settle(run, Status.QUEUED, error="first", traceback="there", result={"half": 1})
    (again,) = queue_db.claim()
    job = queue_db.job(run.id)
    assert (job.error, job.traceback, job.result) == (None, None, None)

    queue_db.release(again)
    job = queue_db.job(run.id)
    assert (job.error, job.traceback, job.result) == (None, None, None)


# ── unknown tasks ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_unknown_task_is_deferred_and_restored(queue_db):
    strange = queue_db.enqueue("a", task="strange", priority=1)
    queue_db.enqueue("b")

    (known,) = queue_db.claim(5)
    assert queue_db.queue.defer_unknown_tasks("q", ["t"]) == {"strange": 1}

    job = queue_db.job(strange)
    assert (job.status, job.attempt, queue_db.wait_state(strange)) == (Status.QUEUED, 0, "scheduled")
    assert "no live worker knows the task 'strange'" in job.error
    assert job.available_at > job.created_at + timedelta(seconds=4)
    assert queue_db.queue.events(strange)[-1].payload["reason"] == "unknown_task"
    assert queue_db.queue.defer_unknown_tasks("q", ["t"]) == {}

    queue_db.queue.restore_unknown_tasks(["other"], ["strange"])
    assert queue_db.claim(tasks=["strange"]) == []
    queue_db.queue.restore_unknown_tasks(["q"], ["strange"])
    assert queue_db.job(strange).error is None
    (run,) = queue_db.claim(tasks=["strange"])
    assert (run.id, run.attempt) == (strange, 1)
    assert queue_db.fetch_row("SELECT bool_or(unknown_task) FROM dl_jobs") is False
    queue_db.settle(known)
    queue_db.check_invariants()


@pytest.mark.parametrize("created_at", ["infinity", "-infinity"])
def test_unknown_task_with_an_infinite_time_is_deferred(queue_db, created_at):
    odd, other = queue_db.enqueue("a", task="odd"), queue_db.enqueue("b", task="other")
    queue_db.sql("UPDATE dl_jobs SET created_at = %s WHERE job_id = %s", created_at, str(odd))

    assert queue_db.queue.defer_unknown_tasks("q", ["t"]) == {"odd": 1, "other": 1}
    assert [queue_db.wait_state(job_id) for job_id in (odd, other)] == ["scheduled", "scheduled"]


def test_task_known_to_live_worker_is_not_deferred(queue_db):
    job_id = queue_db.enqueue(task="strange")
    worker = WorkerInfo(uuid4(), "w", "1", ("q",), ("strange",), 1)
    WorkerLiveness(queue_db.session).send_heartbeat(worker, heartbeat_sec=10)

    assert queue_db.queue.defer_unknown_tasks("q", ["t"]) == {}
    assert queue_db.wait_state(job_id) == "ready"

    queue_db.sql("UPDATE dl_workers SET seen_at = now() - interval '31 s'")
    assert queue_db.queue.defer_unknown_tasks("q", ["t"]) == {"strange": 1}


def test_two_workers_restore_jobs_without_waiting(queue_db):
    for key in "abc":
        queue_db.enqueue(key, task="strange")
    queue_db.queue.defer_unknown_tasks("q", ["t"])

    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE lock_key = 'b' FOR NO KEY UPDATE")
        queue_db.queue.restore_unknown_tasks(["q"], ["strange"])

    assert queue_db.fetch_row("SELECT array_agg(lock_key ORDER BY lock_key) FROM dl_jobs WHERE NOT unknown_task") == [
        "a",
        "c",
    ]
    queue_db.queue.restore_unknown_tasks(["q"], ["strange"])
    assert len(queue_db.claim(3, tasks=["strange"])) == 3


def test_claim_leaves_triggers_on_for_the_rest_of_its_transaction(queue_db):
    queue_db.enqueue("k")
    with queue_db.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(job_id) FROM"
            " dl_claim('q', '{t}', 1, 1, '{-1,-infinity,00000000-0000-0000-0000-000000000000}',"
            " false, true, ARRAY[gen_random_uuid()], 'w', NULL, false, 1)"
        )
        assert cursor.fetchall() == [(1,)]

        cursor.execute("SELECT current_setting('dl.own_update')")
        assert cursor.fetchall() == [("",)]


def test_claim_behind_a_position_finds_what_it_promotes(queue_db):
    """It looks for what has fallen due in the last seconds only; the position stays behind the other jobs."""
    retried, overdue = queue_db.enqueue("retried"), queue_db.enqueue("overdue")
    queue_db.sql(
        "UPDATE dl_jobs SET wait_state = 'scheduled', created_at = now() - interval '1 h',"
        " available_at = now() - interval '5 s' * CASE lock_key WHEN 'overdue' THEN 100 ELSE 1 END"
    )
    zero = "00000000-0000-0000-0000-000000000000"
    position = ["100", queue_db.fetch_row("SELECT (now() - interval '1 minute')::text"), zero]

    runs, hint = queue_db.claim_once(10, start=position)

    assert [run.id for run in runs] == [retried]
    assert list(hint.next_start) == position
    assert [run.id for run in queue_db.claim_once(10)[0]] == [overdue]
