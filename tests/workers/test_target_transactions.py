"""Transactions in a target: the rows, the position and the result commit together, once, and behind a fence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from psycopg2 import OperationalError

from dataloader.app.queue.job import Settlement, Status
from dataloader.pipelines import effects
from dataloader.pipelines.context import Stop, StopReason
from dataloader.workers.outcome import LeaseLost
from tests.support.databases import execute_sql
from tests.support.queue_fixture import BackgroundCall
from tests.support.target_fixture import DAYS, TARGET, TargetFixture, load_days, queue_checkpoint, write_part


class Broken(Exception):
    """An error of the pipeline."""


@pytest.fixture
def target(queue_db: Any, databases: Any) -> Iterator[TargetFixture]:
    with databases.fresh(schema=False) as dsn:
        yield TargetFixture(queue_db, dsn)


def test_rows_and_position_commit_together(target: TargetFixture):
    job_id = target.enqueue()

    outcome = target.run(load_days)

    assert isinstance(outcome, Settlement)
    assert (outcome.status, outcome.result) == (Status.SUCCEEDED, "loaded")
    assert target.parts == sorted(DAYS)
    _, run, position, result, is_done = target.row(job_id)
    assert (position, result, is_done) == (3, None, False)
    assert run == str(target.queue_db.job(job_id).run_id)


def test_a_task_that_is_canceled_while_its_target_answers_does_not_start(target: TargetFixture):
    target.sql(effects.CREATE_TABLE)
    target.enqueue()
    started: list[Any] = []
    target.register(lambda args, ctx: started.append(args))
    attempt = target.attempt()
    with target.open_transaction() as other:
        other("LOCK TABLE dl_effects")
        running = BackgroundCall(attempt.run, target.tasks.get("t"))
        target.wait_for_lock_waiter()
        attempt.stop(StopReason.CANCEL)
    outcome = running.result()

    assert (outcome.status, started) == (Status.CANCELED, [])


def test_a_retry_resumes_from_the_position_in_the_target(target: TargetFixture):
    job_id, resumed = target.enqueue(), []

    def load(args: Any, ctx: Any) -> None:
        resumed.append(ctx.resume)
        with ctx.transaction() as connection:
            write_part(connection, f"part {ctx.resume}", ctx)
            ctx.checkpoint((ctx.resume or 0) + 1)
        if len(resumed) < 3:
            raise Broken

    copies = []
    for call in (load, None):
        target.run(call)
        copies.append(queue_checkpoint(target, job_id))
        target.queue_db.sql("UPDATE dl_jobs SET checkpoint = '17'")  # what the queue has does not count
    target.run()

    assert resumed == [None, 1, 2]
    assert copies == [1, 2], "for pages"
    assert target.queue_db.job(job_id).status is Status.SUCCEEDED


def test_an_error_rolls_back_the_rows_and_the_position(target: TargetFixture):
    job_id = target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
            ctx.checkpoint(1)
            raise Broken

    target.run(load)

    assert target.parts == []
    assert target.row(job_id)[2] is None
    assert queue_checkpoint(target, job_id) is None


def test_a_failed_statement_that_was_caught_commits_nothing(target: TargetFixture):
    target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
            with pytest.raises(Exception, match="division"), connection.cursor() as cursor:
                cursor.execute("SELECT 1/0")

    outcome = target.run(load)

    assert "a statement of this transaction has failed" in outcome.error
    assert target.parts == []


def test_the_final_transaction_keeps_the_result_and_succeeds(target: TargetFixture):
    job_id = target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction(final=True, result={"rows": 1}) as connection:
            write_part(connection, "a", ctx)
        raise Broken("after the work was done")

    outcome = target.run(load)

    assert (outcome.status, outcome.result) == (Status.SUCCEEDED, {"rows": 1})
    assert target.row(job_id)[3:] == ({"rows": 1}, True)


def test_the_result_is_read_when_the_final_transaction_commits(target: TargetFixture):
    job_id, result = target.enqueue(), {"rows": 0}

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction(final=True, result=result) as connection:
            write_part(connection, "a", ctx)
            result["rows"] = 1

    assert target.run(load).result == {"rows": 1}
    assert target.row(job_id)[3] == {"rows": 1}


@pytest.mark.parametrize("named_by", ["task", "argument"])
def test_work_that_is_done_is_not_repeated(target: TargetFixture, caplog: Any, named_by: str):
    caplog.set_level("INFO")
    job_id, calls = target.enqueue(), []

    def load(args: Any, ctx: Any) -> None:
        calls.append(1)
        with ctx.transaction(target=TARGET, final=True, result=[7]) as connection:
            write_part(connection, "a", ctx)

    named = TARGET if named_by == "task" else None
    target.run(load, settle=False, target=named)  # the worker dies before it settles the job
    target.lose_attempt(job_id)
    outcome = target.run(load, target=named)

    assert (outcome.status, outcome.result) == (Status.SUCCEEDED, [7])
    assert target.parts == ["a"]
    assert len(calls) == (1 if named_by == "task" else 2)
    assert "target.work_done" in caplog.messages


def test_a_second_final_transaction_is_refused(target: TargetFixture):
    target.enqueue()
    problems = []

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction(final=True) as connection:
            write_part(connection, "a", ctx)
        for final in (True, False):
            with pytest.raises(RuntimeError) as error, ctx.transaction(final=final):
                pass
            problems.append(str(error.value))

    outcome = target.run(load)

    assert outcome.status is Status.SUCCEEDED
    assert problems == 2 * [
        "the final transaction of this job has been committed in target 'warehouse'; none follows it"
    ]


# ── the fence ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_attempt_whose_successor_has_begun_commits_nothing(target: TargetFixture):
    job_id = target.enqueue()
    inside, go_on = threading.Event(), threading.Event()
    ends: list[Any] = []

    def load(args: Any, ctx: Any) -> None:
        if args == "successor":
            return
        with ctx.transaction() as connection:
            write_part(connection, "first", ctx)
            ctx.checkpoint(1)
        inside.set()
        assert go_on.wait(30)
        with ctx.transaction() as connection:
            write_part(connection, "zombie", ctx)
            ctx.checkpoint(2)

    target.register(load)
    zombie = target.attempt()
    thread = threading.Thread(target=lambda: ends.append(zombie.run(target.tasks.get("t"))))
    thread.start()
    assert inside.wait(30)
    target.queue_db.lose_attempt(zombie.job)
    successor_fence = []

    def succeed(args: Any, ctx: Any) -> None:
        successor_fence.append(ctx.resume)
        with ctx.transaction() as connection:
            write_part(connection, "successor", ctx)
            ctx.checkpoint(9)

    outcome = target.run(succeed)
    go_on.set()
    thread.join(30)

    assert outcome.status is Status.SUCCEEDED
    assert successor_fence == [1]
    assert isinstance(ends[0], LeaseLost)
    assert target.parts == ["first", "successor"]
    assert target.row(job_id)[2] == 9


def test_an_attempt_that_lost_its_job_does_not_claim_the_row(target: TargetFixture):
    job_id = target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        target.queue_db.lose_attempt(ctx.job)
        with pytest.raises(Stop), ctx.transaction(target=TARGET) as connection:
            write_part(connection, "zombie", ctx)
        raise Stop(ctx.stop_reason)

    assert isinstance(target.run(load, target=None), LeaseLost)
    assert target.parts == []
    assert target.row(job_id) is None


def test_a_row_that_was_deleted_is_not_made_anew_by_a_late_attempt(target: TargetFixture):
    """Frozen before its claim, until its successor had done the work and the job's row was deleted."""
    target.enqueue()
    late = target.claim()
    target.queue_db.lose_attempt(late)
    target.run(load_days)
    target.sql("DELETE FROM dl_effects")

    assert isinstance(target.attempt(late).run(target.tasks.get("t")), LeaseLost)
    assert target.parts == sorted(DAYS)
    assert target.sql("SELECT count(*) FROM dl_effects") == [(0,)]


def test_an_open_transaction_of_the_last_attempt_is_waited_for(target: TargetFixture):
    job_id = target.enqueue()
    target.register(load_days)
    target.sql(effects.CREATE_TABLE)
    with target.open_transaction() as step:
        step(
            "INSERT INTO dl_effects (job_id, fence, run_id, position) VALUES (%s, 1, gen_random_uuid(), '2')",
            str(job_id),
        )
        waiting = BackgroundCall(target.run)
        target.wait_for_lock_waiter()
        assert not waiting.is_finished
        step("COMMIT")
        outcome = waiting.result()

    assert outcome.status is Status.SUCCEEDED
    assert target.parts == ["wed"], "it resumes from what the last attempt has committed"


def test_a_long_wait_for_the_last_attempt_releases_the_job(target: TargetFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(effects, "MAX_WAIT_SEC", 1)
    job_id = target.enqueue(max_attempts=1)
    target.sql(effects.CREATE_TABLE)
    with target.open_transaction() as step:
        step("INSERT INTO dl_effects VALUES (%s, 0, gen_random_uuid())", str(job_id))
        outcome = target.run(load_days)

    assert (outcome.status, outcome.refund_attempt, outcome.retry_in_sec) == (Status.QUEUED, True, 30)
    assert "the previous attempt's transaction is still open in target 'warehouse'" in outcome.error
    assert target.run().status is Status.SUCCEEDED


def test_fences_grow_with_each_claim_and_after_a_failover(target: TargetFixture):
    job_id, fences = target.enqueue(), []

    def load(args: Any, ctx: Any) -> None:
        fences.append(target.row(job_id)[0])
        raise Broken

    target.run(load)
    target.run()
    # A promoted standby that has lost the last fences has a later timeline.
    target.queue_db.sql("UPDATE dl_fence_history SET timeline = timeline - 2")
    target.queue_db.sql("SELECT setval('dl_fence_number', 1)")
    target.run()
    # A database that was moved to another server has an earlier one.
    target.queue_db.sql("UPDATE dl_fence_history SET timeline = 40")
    target.run()

    assert fences == sorted(set(fences))
    assert [fence >> 40 for fence in fences] == [1, 1, 3, 4]


def lose_answer(connection: Any, *, is_committed: bool) -> None:
    """Have the next COMMIT executed or not, and its answer lost."""
    execute = connection.commit

    def commit() -> None:
        if is_committed:
            execute()
        connection.close()
        raise OperationalError("server closed the connection unexpectedly")

    connection.commit = commit


@pytest.mark.parametrize("is_final", [False, True])
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_commit_whose_answer_was_lost_is_looked_up(target: TargetFixture, is_final: bool, is_committed: bool):
    target.enqueue()
    lost: list[bool] = []

    def load(args: Any, ctx: Any) -> None:
        for key in ctx.each("abc"):
            with ctx.transaction(final=is_final and key == "b", result=9) as connection:
                write_part(connection, key, ctx)
                if key == "b" and not lost:
                    lost.append(True)
                    lose_answer(connection, is_committed=is_committed)
            if is_final and key == "b":
                return

    first = target.run(load)

    assert first.status is (Status.SUCCEEDED if is_committed else Status.QUEUED)
    if not is_committed:
        assert target.run().status is Status.SUCCEEDED
    assert target.parts == (["a", "b"] if is_final else ["a", "b", "c"])


def test_code_that_goes_on_after_a_lost_answer_writes_nothing(target: TargetFixture):
    target.enqueue()
    problems = []

    def load(args: Any, ctx: Any) -> None:
        for _ in range(2):
            try:
                with ctx.transaction() as connection:  # without a position, so the answer cannot be looked up
                    write_part(connection, "a", ctx)
                    lose_answer(connection, is_committed=True)
            except (OperationalError, RuntimeError) as error:
                problems.append(str(error))

    target.run(load)

    assert target.parts == ["a"]
    assert "whether the last transaction in target 'warehouse' was committed is not known" in problems[1]


# ── two targets ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_target_has_its_own_position(target: TargetFixture, databases: Any):
    with databases.fresh(schema=False) as other_dsn:
        execute_sql(other_dsn, "CREATE TABLE parts (key text, run text)")
        target.targets["archive"] = other_dsn
        target.enqueue()
        seen = []

        def load(args: Any, ctx: Any) -> None:
            with ctx.transaction(target="archive") as connection:
                seen.append(ctx.resume)
                write_part(connection, "x", ctx)
                ctx.checkpoint("archived")
            seen.append(ctx.resume)
            with ctx.transaction() as connection:
                write_part(connection, "a", ctx)
                ctx.checkpoint("loaded")
            if len(seen) < 4:
                raise Broken

        target.run(load)
        target.run()

    assert seen == [None, None, "archived", "loaded"]


@pytest.mark.parametrize("option", ["", " application_name=other"])
def test_two_names_of_one_database_are_refused(target: TargetFixture, option: str):
    target.targets["archive"] = target.dsn + option
    target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
        with ctx.transaction(target="archive") as connection:
            write_part(connection, "b", ctx)

    outcome = target.run(load)

    assert outcome.status is Status.FAILED
    assert "target 'archive' is the same database as 'warehouse', and a job has one position in a" in outcome.error
    assert target.parts == ["a"]


def test_a_claim_whose_answer_was_lost_is_repeated(
    target: TargetFixture, databases: Any, monkeypatch: pytest.MonkeyPatch
):
    """Its row has this attempt's name then, in a database that is no other target's."""
    raise_fence = effects.TargetRow.claim
    lost: list[bool] = []

    def claim(self: Any, draw_fence: Any) -> Any:
        state = raise_fence(self, draw_fence)
        if self.table.target == "archive" and not lost:
            lost.append(True)
            raise OperationalError("server closed the connection unexpectedly")
        return state

    monkeypatch.setattr(effects.TargetRow, "claim", claim)

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
        for _ in range(2):
            with suppress(OperationalError), ctx.transaction(target="archive") as connection:
                write_part(connection, "b", ctx)

    with databases.fresh(schema=False) as other_dsn:
        execute_sql(other_dsn, "CREATE TABLE parts (key text, run text)")
        target.targets["archive"] = other_dsn
        target.enqueue()
        outcome = target.run(load)

    assert (outcome.status, lost) == (Status.SUCCEEDED, [True])
