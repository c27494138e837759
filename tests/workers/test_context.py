"""What a pipeline is given and may ask for, and what background threads read of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest

from dataloader.app.errors import DatabaseUnavailable, IdempotencyConflict
from dataloader.app.features.limits.rows import Limits
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import ClaimedJob, Status
from dataloader.pipelines.context import Interval
from dataloader.pipelines.contract import Checkpoint, Progress, Stop, StopReason
from dataloader.pipelines.json_values import JsonNull
from dataloader.pipelines.runner import NotProgress, record_yield
from dataloader.workers.context import ContextSettings, JobContext
from tests.support import eventually, hostile_tasks  # noqa: F401 - registers its tasks
from tests.support.queue_fixture import QueueFixture

JOB = ClaimedJob(
    id_text=str(uuid4()), run_text=str(uuid4()), queue="q", task="t", args_text="{}", lock_key="k", key_hash=1,
    priority=7, attempt=2, max_attempts=5, lease_ttl_sec=60, producer=None, progress_text="{}", checkpoint_text=None,
    time_limit_sec=None, retry_text=None, crashes=0,
)  # fmt: skip


@pytest.fixture
def ctx() -> JobContext:
    return JobContext(JOB, ContextSettings())


@pytest.fixture
def at_work(queue_db: QueueFixture) -> Iterator[JobContext]:
    """The context of a claimed job, with a database to write to."""
    queue_db.sql("CREATE TABLE witness (said text)")
    queue_db.enqueue("key")
    (job,) = queue_db.claim()
    claimed = JOB._replace(id_text=job.id_text, run_text=job.run_text, lock_key=job.lock_key, key_hash=job.key_hash)
    settings = ContextSettings(connection_settings=ConnectionSettings(dsn=queue_db.dsn, schema="public", targets={}))
    context = JobContext(claimed, settings)
    yield context
    close_connections(context)


def close_connections(context: JobContext) -> None:
    if context.connections is not None:
        context.connections.close()


def write(connection: Any, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO witness VALUES (%s)", (text,))


def logged(queue_db: Any) -> list[str]:
    return [row[0] for row in queue_db.sql("SELECT said FROM witness ORDER BY 1")]


def heartbeat(ctx: JobContext) -> tuple[Any, Any]:
    news = ctx.reported.unsaved()
    ctx.reported.mark_saved(news)
    return news


# ── progress ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_progress_is_merged_and_unsaved_until_marked(ctx):
    ctx.progress(1, 10, "rows", file="a")
    ctx.progress(2)
    ctx.count(read=3)
    ctx.count(read=1, bad=1)

    output, _ = heartbeat(ctx)
    assert output == {"processed": 2, "total": 10, "unit": "rows", "file": "a", "counts": {"read": 4, "bad": 1}}
    assert ctx.reported.unsaved() == (None, None)


def test_progress_during_a_save_stays_unsaved(ctx):
    ctx.progress(1)
    news = ctx.reported.unsaved()
    ctx.progress(2)
    ctx.reported.mark_saved(news)

    assert ctx.reported.unsaved()[0] == {"processed": 2}


def test_counts_from_many_threads_add_up(ctx):
    def count() -> None:
        for _ in range(2000):
            ctx.count(rows=1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ctx.reported.unsaved()[0] == {"counts": {"rows": 8000}}


@pytest.mark.parametrize(("cursor", "rows"), [(5, 7), (None, 2)])
def test_counts_continue_only_with_a_checkpoint(ctx, cursor, rows):
    ctx.reported.restore('{"counts": {"rows": 5}}', cursor)
    ctx.count(rows=2)

    assert ctx.reported.unsaved()[0] == {"counts": {"rows": rows}}


@pytest.mark.parametrize(
    ("step", "progress", "cursor"),
    [
        (Checkpoint(4), None, 4),
        (Progress(1, 2, "rows"), {"processed": 1, "total": 2, "unit": "rows"}, None),
        ({"a": 1}, {"a": 1}, None),
        ("anything else", None, None),
    ],
)
def test_yielded_values_become_progress_or_checkpoint(ctx, step, progress, cursor):
    assert record_yield(step, ctx) is None
    assert ctx.reported.unsaved() == (progress, cursor)


@pytest.mark.parametrize("row", [{"id": 7, "name": "Ann"}, (7, "Ann")])
def test_yielded_row_never_becomes_progress(ctx, row):
    with pytest.raises(NotProgress):
        record_yield(row, ctx)
    assert ctx.reported.unsaved() == (None, None)


# ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_changed_cursor_is_unsaved_again(ctx):
    cursor = {"page": 1}
    ctx.checkpoint(cursor)
    assert heartbeat(ctx)[1] == {"page": 1}

    cursor["page"] = 2
    assert ctx.reported.unsaved()[1] is None  # not reported yet, so its work may not be done
    assert ctx.resume == {"page": 1}

    ctx.checkpoint(cursor)
    assert ctx.reported.unsaved()[1] == {"page": 2}


def test_none_clears_a_checkpoint(ctx):
    ctx.reported.restore("{}", {"page": 9})
    assert ctx.resume == {"page": 9}
    ctx.checkpoint(None)

    assert ctx.resume is None
    assert heartbeat(ctx)[1] is JsonNull.NULL
    assert ctx.reported.unsaved()[1] is None


def test_cleared_checkpoint_is_removed_from_the_row(queue_db, at_work):
    with at_work.transaction():
        at_work.checkpoint({"page": 1})
    assert queue_db.job(at_work.job_id).checkpoint == {"page": 1}
    with at_work.transaction():
        at_work.checkpoint(None)

    assert queue_db.job(at_work.job_id).checkpoint is None


def test_resume_returns_the_cursor_as_json_would(ctx):
    ctx.checkpoint((1, "a"))

    assert ctx.resume == [1, "a"]


def test_cursor_that_cannot_be_stored_is_refused(ctx):
    with pytest.raises(ValueError, match="this checkpoint cannot be kept: .* at most"):
        ctx.checkpoint("x" * 2_000_000)


def test_checkpoint_of_an_open_transaction_is_not_saved(queue_db, at_work):
    with at_work.transaction() as connection:
        write(connection, "a")
        at_work.checkpoint(1)

        assert at_work.resume == 1
        assert at_work.reported.unsaved()[1] is None  # the heartbeat would write it down, and the rows may yet be lost

    assert queue_db.job(at_work.job_id).checkpoint == 1
    assert at_work.reported.unsaved()[1] is None


def test_rollback_restores_the_checkpoint(queue_db, at_work):
    at_work.checkpoint(1)
    with pytest.raises(ValueError, match="no"), at_work.transaction():
        at_work.checkpoint(2)
        raise ValueError("no")

    assert at_work.resume == 1
    assert at_work.reported.unsaved()[1] == 1
    with at_work.transaction():
        pass
    assert queue_db.job(at_work.job_id).checkpoint == 1  # what waits goes with the next one


def test_committed_checkpoint_is_saved_after_an_older_one(queue_db, at_work):
    at_work.checkpoint("old")
    on_its_way = at_work.reported.unsaved()
    with at_work.transaction():
        at_work.checkpoint("new")
    at_work.reported.mark_saved(on_its_way)  # the heartbeat was slow: the row holds the old one now

    assert at_work.reported.unsaved()[1] == "new"


# ── stops ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_first_stop_reason_stays_unless_the_lease_is_lost(ctx):
    ctx.check()
    ctx.stop(StopReason.TIME_LIMIT)
    ctx.stop(StopReason.CANCEL)
    assert ctx.stop_reason is StopReason.TIME_LIMIT

    ctx.stop(StopReason.LEASE_LOST)
    with pytest.raises(Stop) as stop:
        ctx.check()
    assert stop.value.reason is StopReason.LEASE_LOST


def test_stop_wakes_sleep_and_calls_back(ctx):
    woken: list[int] = []
    with ctx.on_stop(lambda: woken.append(1)):
        threading.Timer(0.05, ctx.stop, [StopReason.CANCEL]).start()
        with pytest.raises(Stop):
            ctx.sleep(60)
    with ctx.on_stop(lambda: woken.append(2)):
        pass

    assert woken == [1, 2]


def test_every_check_after_a_stop_raises(ctx):
    ctx.stop(StopReason.CANCEL)
    output = 0
    for _ in range(3):
        try:
            ctx.sleep(60)
        except BaseException:
            output += 1

    assert output == 3


# ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_context_has_the_times_and_the_slice_of_its_job(ctx):
    start, end = datetime(2030, 1, 31, tzinfo=UTC), datetime(2030, 2, 1, tzinfo=UTC)
    job = JOB._replace(partition_key="2030-01-31", logical_at=end, interval_start=start, interval_end=end)
    scheduled = JobContext(job, ContextSettings())

    assert (scheduled.logical_at, scheduled.interval, scheduled.partition) == (end, Interval(start, end), "2030-01-31")
    assert (ctx.logical_at, ctx.interval, ctx.partition) == (None, None, None)


def test_context_without_database_refuses_connections(ctx):
    with pytest.raises(RuntimeError, match="has no database"):
        ctx.connect("here")


def test_final_transaction_stores_last_result_and_progress(queue_db, at_work):
    result: dict[str, int] = {}
    with at_work.transaction(final=True, result=result) as connection:
        write(connection, "a")
        at_work.progress(9)
        result["rows"] = 9

    job = queue_db.job(at_work.job_id)
    assert (job.status, job.result, job.progress) == (Status.SUCCEEDED, {"rows": 9}, {"processed": 9})


def test_follow_up_has_the_limits_of_its_task_unless_it_names_some(queue_db, at_work):
    at_work.settings = replace(at_work.settings, task_limits={"next": {"warehouse": 2, "tenant:{tenant}": 1}})

    def limits_of(**options: Any) -> Any:
        return queue_db.job(at_work.enqueue(**options)).limits

    assert limits_of(task="next", args={"tenant": "acme"}) == {"warehouse": 2, "tenant:acme": 1}
    assert limits_of(task="next", args={"n": 1}, limits={"warehouse": 1}) == {"warehouse": 1}
    assert limits_of(task="other") is None
    with pytest.raises(ValueError, match="'tenant' is missing"):
        at_work.enqueue("next")


def test_follow_up_of_unique_task_is_the_live_job(queue_db, at_work):
    at_work.settings = replace(at_work.settings, task_unique_by={"next": ["day"]})
    assert at_work.enqueue("next", {"day": 1, "n": 1}) == at_work.enqueue("next", {"day": 1, "n": 2})


def test_follow_up_counts_the_defaults_of_its_task(queue_db, at_work):
    at_work.settings = replace(
        at_work.settings,
        task_unique_by={"next": ["day"]},
        task_limits={"next": {"day:{day}": 1}},
        task_defaults={"next": {"day": "2030-01-01"}},
    )

    job_id = at_work.enqueue("next", {"n": 1})

    assert at_work.enqueue("next", {"n": 2, "day": "2030-01-01"}) == job_id
    assert queue_db.job(job_id).limits == {"day:2030-01-01": 1}
    assert queue_db.job(job_id).args == {"n": 1}


def test_attempt_that_lost_its_job_enqueues_nothing(queue_db, at_work):
    queue_db.expire_lease(at_work.job_id)
    queue_db.queue.reap([(at_work.job_id, at_work.job.run_id, "key")], pause_sec=0)

    with pytest.raises(Stop):
        at_work.enqueue("next")
    assert at_work.stop_reason is StopReason.LEASE_LOST
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE task = 'next'") == 0


def test_next_attempt_gets_the_same_follow_ups(queue_db, at_work):
    with pytest.raises(ValueError, match="no"), at_work.transaction():
        at_work.enqueue("next", {"n": 1})
        raise ValueError("no")
    with at_work.transaction():
        first = at_work.enqueue("next", {"n": 1})
    second = at_work.enqueue("next", {"n": 1})

    again = JobContext(at_work.job, at_work.settings)
    assert [again.enqueue("next", {"n": 1}), again.enqueue("next", {"n": 1})] == [first, second]
    close_connections(again)
    assert first != second
    child = queue_db.job(first)
    assert (child.queue, child.lock_key, child.priority, child.parent_id) == ("q", "next", 7, at_work.job_id)


def test_follow_up_has_the_lease_of_the_settings(queue_db, at_work):
    at_work.settings = replace(at_work.settings, follow_up_lease_sec=90)

    assert queue_db.job(at_work.enqueue("next")).lease_ttl_sec == 90


def test_conflict_in_a_transaction_leaves_it_usable(queue_db, at_work):
    at_work.enqueue("next", {"n": 1}, idempotency_key="mine")
    with at_work.transaction() as connection:
        with pytest.raises(IdempotencyConflict):
            at_work.enqueue("next", {"n": 2}, idempotency_key="mine")
        write(connection, "a")

    assert logged(queue_db) == ["a"]


def test_transactions_do_not_nest(at_work):
    with at_work.transaction(), pytest.raises(RuntimeError, match="do not nest"), at_work.transaction():
        pass


# ── calls that a rate counts ────────────────────────────────────────────────────────────────────────────────────────


def wait_for_rate(queue_db: QueueFixture, context: JobContext, *, check: Callable[[], object]) -> None:
    """Wait for a rate that allows no call for an hour; `check` is called meanwhile."""
    limits = Limits(queue_db.session)
    limits.set("hourly", rate=1, per_sec=3600)
    limits.acquire("hourly")

    def check_and_stop(seconds: float) -> None:
        assert check()
        context.stop(StopReason.CANCEL)

    with patch.object(context.stop_signal, "wait", check_and_stop), pytest.raises(Stop):
        context.acquire("hourly")


def test_calls_without_a_rate_are_allowed_at_once(queue_db, at_work):
    Limits(queue_db.session).set("running", concurrency=0)

    at_work.acquire("unknown", 1_000_000)
    at_work.acquire("running")


@pytest.mark.parametrize("n", [0, 1.5, True, 2, 10**10])
def test_calls_that_a_rate_never_allows_raise(queue_db, at_work, n):
    Limits(queue_db.session).set("api", rate=100, per_sec=1)

    with pytest.raises(ValueError, match="whole number|burst of 1"):
        at_work.acquire("api", n)
    at_work.acquire("api")


def test_attempt_that_lost_its_job_counts_no_calls(queue_db, at_work):
    Limits(queue_db.session).set("api", rate=1, per_sec=3600)
    queue_db.sql("UPDATE dl_jobs SET run_id = gen_random_uuid()")

    with pytest.raises(Stop, match="lease_lost"):
        at_work.acquire("api")
    assert Limits(queue_db.session).acquire("api") == 0


def test_no_call_is_counted_within_a_transaction(at_work):
    with at_work.transaction(), pytest.raises(RuntimeError, match="call it before"):
        at_work.acquire("api")


def test_a_long_wait_for_a_rate_keeps_no_session(queue_db, at_work):
    at_work.enqueue("next")
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s"

    def has_no_session() -> bool:
        return bool(queue_db.fetch_row(query, f"dataloader:{at_work.job_id}:%") == 0)

    wait_for_rate(queue_db, at_work, check=lambda: eventually(has_no_session))


def test_a_long_wait_for_a_rate_keeps_the_session_that_the_pipeline_used(queue_db, at_work):
    with at_work.transaction() as connection:
        connection.cursor().execute("CREATE TEMP TABLE kept (n int)")

    wait_for_rate(queue_db, at_work, check=lambda: not connection.closed)


# ── from one try to the next ────────────────────────────────────────────────────────────────────────────────────────


def test_older_checkpoint_does_not_replace_an_unknown_commit(queue_db, at_work, monkeypatch):
    at_work.checkpoint(1)
    with pytest.raises(DatabaseUnavailable), at_work.transaction() as connection:
        at_work.checkpoint(2)
        monkeypatch.setattr(type(connection), "commit", unanswered)

    assert at_work.reported.unsaved()[1] is None, "it is unknown whether 2 is in the row: 1 must not be written there"


def unanswered(connection: Any) -> None:
    raise DatabaseUnavailable("the answer was lost")
