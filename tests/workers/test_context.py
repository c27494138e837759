"""What a pipeline is told and may ask for, and what the keepers read off it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from app.errors import DatabaseUnavailable, IdempotencyConflict
from app.queue.attempt_sessions import Places
from app.queue.effects import Effects
from app.queue.job import Status
from app.queue.values import Json
from pipelines.contract import Checkpoint, Progress, Stop, StopReason, registry
from pipelines.progress import NotProgress
from tests.support import eventually, hostile  # noqa: F401 - registers its tasks
from tests.support.desk import Desk
from workers.context import Facts, JobContext

FACTS = Facts(
    job_id=uuid4(), run_id=uuid4(), queue="q", task="t", lock_key="k", key_hash=1, attempt=2, max_attempts=5,
    priority=7, producer=None,
)  # fmt: skip


@pytest.fixture
def ctx() -> JobContext:
    return JobContext(FACTS, None)


@pytest.fixture
def desk(dsn: str) -> Iterator[Desk]:
    made = Desk(dsn)
    yield made
    made.close()


@pytest.fixture
def at_work(desk: Desk) -> Iterator[JobContext]:
    """The context of a claimed job, with a database to write to."""
    desk.sql("CREATE TABLE witness (said text)")
    desk.enqueue("key")
    (job,) = desk.claim()
    facts = replace(FACTS, job_id=job.id, run_id=job.run_id, lock_key=job.lock_key, key_hash=job.key_hash)
    effects = Effects(Places(dsn=desk.dsn, schema="public", targets={}), job.id, job.run_id)
    yield JobContext(facts, effects)
    effects.close()


def write(connection: Any, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO witness VALUES (%s)", (text,))


def said(desk: Any) -> list[str]:
    return [row[0] for row in desk.sql("SELECT said FROM witness ORDER BY 1")]


def beat(ctx: JobContext) -> tuple[Any, Any]:
    news = ctx.news()
    ctx.written(news)
    return news


# ── progress ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_progress_adds_up_and_is_news_once(ctx):
    ctx.progress(1, 10, "rows", file="a")
    ctx.progress(2)
    ctx.count(read=3)
    ctx.count(read=1, bad=1)

    told, _ = beat(ctx)
    assert told == {"processed": 2, "total": 10, "unit": "rows", "file": "a", "counts": {"read": 4, "bad": 1}}
    assert ctx.news() == (None, None)


def test_progress_that_came_while_the_last_was_written_is_still_news(ctx):
    ctx.progress(1)
    news = ctx.news()
    ctx.progress(2)
    ctx.written(news)

    assert ctx.news()[0] == {"processed": 2}


def test_counts_from_many_threads_are_all_there(ctx):
    def count() -> None:
        for _ in range(2000):
            ctx.count(rows=1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ctx.news()[0] == {"counts": {"rows": 8000}}


@pytest.mark.parametrize(("cursor", "rows"), [(5, 7), (None, 2)])
def test_counts_go_on_only_where_the_try_before_is_gone_on_with(ctx, cursor, rows):
    ctx.begin_with('{"counts": {"rows": 5}}', cursor)
    ctx.count(rows=2)

    assert ctx.news()[0] == {"counts": {"rows": rows}}


@pytest.mark.parametrize(
    ("step", "progress", "cursor"),
    [
        (Checkpoint(4), None, 4),
        (Progress(1, 2, "rows"), {"processed": 1, "total": 2, "unit": "rows"}, None),
        ({"a": 1}, {"a": 1}, None),
        ("anything else", None, None),
    ],
)
def test_what_a_generator_yields(ctx, step, progress, cursor):
    assert ctx.take(step) is None
    assert ctx.news() == (progress, cursor)


@pytest.mark.parametrize("row", [{"id": 7, "name": "Ann"}, (7, "Ann")])
def test_yielded_row_never_becomes_progress(ctx, row):
    with pytest.raises(NotProgress):
        ctx.take(row)
    assert ctx.news() == (None, None)


# ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cursor_that_is_changed_and_told_again_is_news_again(ctx):
    cursor = {"page": 1}
    ctx.checkpoint(cursor)
    assert beat(ctx)[1] == {"page": 1}

    cursor["page"] = 2
    assert ctx.news()[1] is None  # not told yet, so its work may not be done
    assert ctx.resume == {"page": 1}

    ctx.checkpoint(cursor)
    assert ctx.news()[1] == {"page": 2}


def test_none_clears_a_checkpoint(ctx):
    ctx.begin_with("{}", {"page": 9})
    assert ctx.resume == {"page": 9}
    ctx.checkpoint(None)

    assert ctx.resume is None
    assert beat(ctx)[1] is Json.NULL
    assert ctx.news()[1] is None


def test_a_cleared_checkpoint_is_gone_from_the_row(desk, at_work):
    with at_work.transaction():
        at_work.checkpoint({"page": 1})
    assert desk.job(at_work.job_id).checkpoint == {"page": 1}
    with at_work.transaction():
        at_work.checkpoint(None)

    assert desk.job(at_work.job_id).checkpoint is None


def test_a_cursor_comes_back_as_the_next_try_will_get_it(ctx):
    ctx.checkpoint((1, "a"))

    assert ctx.resume == [1, "a"]


def test_a_cursor_that_cannot_be_kept_is_refused_at_once(ctx):
    with pytest.raises(ValueError, match="this checkpoint cannot be kept: .* at most"):
        ctx.checkpoint("x" * 2_000_000)


def test_a_checkpoint_of_an_open_transaction_is_nobody_elses_to_write(desk, at_work):
    with at_work.transaction() as connection:
        write(connection, "a")
        at_work.checkpoint(1)

        assert at_work.resume == 1
        assert at_work.news()[1] is None  # the heartbeat would write it down, and the rows may yet be lost

    assert desk.job(at_work.job_id).checkpoint == 1
    assert at_work.news()[1] is None


def test_a_checkpoint_is_taken_back_with_its_transaction(desk, at_work):
    at_work.checkpoint(1)
    with pytest.raises(ValueError, match="no"), at_work.transaction():
        at_work.checkpoint(2)
        raise ValueError("no")

    assert at_work.resume == 1
    assert at_work.news()[1] == 1
    with at_work.transaction():
        pass
    assert desk.job(at_work.job_id).checkpoint == 1  # what waits goes with the next one


def test_a_checkpoint_that_was_overtaken_by_an_older_one_is_written_again(desk, at_work):
    at_work.checkpoint("old")
    on_its_way = at_work.news()
    with at_work.transaction():
        at_work.checkpoint("new")
    at_work.written(on_its_way)  # the heartbeat was slow: the row holds the old one now

    assert at_work.news()[1] == "new"


# ── stops ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_reason_stays_unless_the_lease_is_lost(ctx):
    ctx.check()
    ctx.stop(StopReason.TIME_LIMIT)
    ctx.stop(StopReason.CANCEL)
    assert ctx.stopping is StopReason.TIME_LIMIT

    ctx.stop(StopReason.LEASE_LOST)
    with pytest.raises(Stop) as stop:
        ctx.check()
    assert stop.value.reason is StopReason.LEASE_LOST


def test_a_stop_wakes_a_sleeper_and_whoever_waits(ctx):
    woken: list[int] = []
    with ctx.woken_by_stop(lambda: woken.append(1)):
        threading.Timer(0.05, ctx.stop, [StopReason.CANCEL]).start()
        with pytest.raises(Stop):
            ctx.sleep(60)
    with ctx.woken_by_stop(lambda: woken.append(2)):
        pass

    assert woken == [1, 2]


def test_a_pipeline_that_swallows_every_stop_is_told_each_time(ctx):
    ctx.stop(StopReason.CANCEL)
    told = 0
    for _ in range(3):
        try:
            ctx.sleep(60)
        except BaseException:
            told += 1

    assert told == 3


# ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_database_there_are_no_effects(ctx):
    with pytest.raises(RuntimeError, match="has no database"):
        ctx.connect("here")


def test_the_result_and_the_progress_are_those_of_the_end(desk, at_work):
    result: dict[str, int] = {}
    with at_work.transaction(final=True, result=result) as connection:
        write(connection, "a")
        at_work.progress(9)
        result["rows"] = 9

    job = desk.job(at_work.job_id)
    assert (job.status, job.result, job.progress) == (Status.SUCCEEDED, {"rows": 9}, {"processed": 9})


def test_a_run_that_lost_its_job_is_stopped_and_has_no_follow_ups(desk, at_work):
    desk.expire(at_work.job_id)
    desk.queue.reap([(at_work.job_id, at_work.facts.run_id, "key")], pause_sec=0)

    with pytest.raises(Stop):
        at_work.enqueue("next")
    assert at_work.stopping is StopReason.LEASE_LOST
    assert desk.one("SELECT count(*) FROM dl_jobs WHERE task = 'next'") == 0


def test_follow_ups_are_the_same_for_the_next_try_whatever_was_rolled_back(desk, at_work):
    with pytest.raises(ValueError, match="no"), at_work.transaction():
        at_work.enqueue("next", {"n": 1})
        raise ValueError("no")
    with at_work.transaction():
        first = at_work.enqueue("next", {"n": 1})
    second = at_work.enqueue("next", {"n": 1})

    again = JobContext(at_work.facts, at_work.effects)
    assert [again.enqueue("next", {"n": 1}), again.enqueue("next", {"n": 1})] == [first, second]
    assert first != second
    child = desk.job(first)
    assert (child.queue, child.lock_key, child.priority, child.parent_id) == ("q", "next", 7, at_work.job_id)


def test_a_follow_up_has_the_lease_that_the_settings_give(desk, at_work):
    patient = JobContext(replace(at_work.facts, follow_up_lease_sec=90), at_work.effects)

    assert desk.job(patient.enqueue("next")).lease_ttl_sec == 90


def test_a_conflict_within_a_transaction_leaves_it_usable(desk, at_work):
    at_work.enqueue("next", {"n": 1}, idempotency_key="mine")
    with at_work.transaction() as connection:
        with pytest.raises(IdempotencyConflict):
            at_work.enqueue("next", {"n": 2}, idempotency_key="mine")
        write(connection, "a")

    assert said(desk) == ["a"]


def test_transactions_do_not_nest(at_work):
    with at_work.transaction(), pytest.raises(RuntimeError, match="do not nest"), at_work.transaction():
        pass


# ── from one try to the next ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_try_that_was_handed_back_is_gone_on_with_at_its_checkpoint(plant, isolation):
    task = f"hostile.resumes.{isolation}"
    apart = {"pipelines": registry, "packages": ("tests.support.hostile",)}
    pool = plant.pool(**apart)
    job_id = plant.add(task, lease_ttl_sec=20)
    eventually(lambda: plant.desk.job(job_id).checkpoint == {"page": 3})  # by a heartbeat: a kill would not undo it
    eventually(lambda: plant.desk.job(job_id).progress == {"processed": 3})

    assert pool.stop(grace=0)
    plant.pool(**apart)
    job = plant.until(job_id, Status.SUCCEEDED)

    assert job.result == {"began_at": {"page": 3}}
    assert (job.attempt, job.checkpoint) == (1, None)


def test_a_checkpoint_whose_commit_was_not_answered_is_not_written_over_by_an_older_one(desk, at_work, monkeypatch):
    at_work.checkpoint(1)
    with pytest.raises(DatabaseUnavailable), at_work.transaction() as connection:
        at_work.checkpoint(2)
        monkeypatch.setattr(type(connection), "commit", unanswered)

    assert at_work.news()[1] is None, "nobody knows whether 2 stands in the row: 1 must not be written there"


def unanswered(connection: Any) -> None:
    raise DatabaseUnavailable("the answer was lost")
