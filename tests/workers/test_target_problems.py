"""Targets without a fence, and what a task does wrong in a target transaction: each is a clear sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.queue.job import Status
from dataloader.pipelines import effects, target_transactions
from dataloader.workers.outcome import SettledByTask
from tests.support.databases import another_role, execute_sql
from tests.support.target_fixture import DAYS, TARGET, TargetFixture, load_days, write_part


class Broken(Exception):
    """An error of the pipeline."""


@pytest.fixture
def target(queue_db: Any, databases: Any) -> Iterator[TargetFixture]:
    with databases.fresh(schema=False) as dsn:
        yield TargetFixture(queue_db, dsn)


# ── not fenced ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def other_role(target: TargetFixture) -> Iterator[str]:
    with another_role(target.dsn) as role:
        yield make_dsn(target.dsn, user=role, password="x")


def test_a_role_that_may_not_create_the_table_writes_without_a_fence(
    target: TargetFixture, other_role: str, caplog: Any
):
    target.targets[TARGET] = other_role
    execute_sql(target.dsn, "GRANT ALL ON parts TO PUBLIC")
    target.enqueue()

    outcome = target.run(load_days)

    assert (outcome.status, outcome.result) == (Status.SUCCEEDED, "loaded")
    assert target.parts == sorted(DAYS)
    (problem,) = target.queue_db.sql("SELECT problem FROM dl_job_targets")[0]
    assert "has no table dl_effects in its schema public, and its role" in problem
    assert "may not create one; its owner creates it with: dataloader targets schema warehouse | psql" in problem
    assert "target.not_fenced" in caplog.messages


def test_a_role_that_may_not_write_the_table_writes_without_a_fence(target: TargetFixture, other_role: str):
    target.sql(effects.CREATE_TABLE)
    target.targets[TARGET] = other_role
    execute_sql(target.dsn, "GRANT ALL ON parts TO PUBLIC")
    target.enqueue()

    assert target.run(load_days).status is Status.SUCCEEDED
    (problem,) = target.queue_db.sql("SELECT problem FROM dl_job_targets")[0]
    assert "may not read and write the table public.dl_effects; GRANT SELECT, INSERT, UPDATE, DELETE" in problem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("ALTER TABLE dl_effects DROP COLUMN position", "it has no column position"),
        ("ALTER TABLE dl_effects ALTER COLUMN fence TYPE int", "its column fence is integer, not bigint"),
        ("ALTER TABLE dl_effects DROP CONSTRAINT dl_effects_pkey", "job_id is not its primary key"),
    ],
)
def test_a_table_of_another_shape_fails_the_job(target: TargetFixture, change: str, problem: str):
    execute_sql(target.dsn, effects.CREATE_TABLE, change)
    target.enqueue()

    outcome = target.run(load_days)

    assert outcome.status is Status.FAILED
    assert "the table public.dl_effects of target 'warehouse' is not the one that keeps what" in outcome.error
    assert problem in outcome.error
    assert target.parts == []


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("position", "problem"),
    [
        (object(), "a position is JSON: texts, numbers, dates, lists, and objects of these, not a object"),
        ({"pages": "x" * 64_000}, "this position cannot be kept: 64012 bytes of JSON; at most 64000 are kept"),
    ],
)
def test_a_position_that_the_target_does_not_keep_is_refused(target: TargetFixture, position: Any, problem: str):
    target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
            ctx.checkpoint(position)

    outcome = target.run(load)

    assert problem in outcome.error
    assert target.parts == []


def test_a_commit_within_the_block_is_refused(target: TargetFixture):
    target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
            connection.commit()

    outcome = target.run(load)

    assert "commit() within ctx.transaction(): it commits at the end of its block" in outcome.error
    assert target.parts == []


def test_a_target_in_the_queues_database_uses_the_jobs_row(target: TargetFixture):
    target.targets[TARGET] = target.queue_db.dsn
    target.queue_db.sql("CREATE TABLE parts (key text, run text)")
    job_id = target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
            ctx.checkpoint(1)
        with ctx.transaction(final=True, result=2) as connection:
            write_part(connection, "b", ctx)

    assert isinstance(target.run(load), SettledByTask)
    job = target.queue_db.job(job_id)
    assert (job.status, job.result) == (Status.SUCCEEDED, 2)
    assert target.queue_db.sql("SELECT to_regclass('dl_effects')") == [(None,)]


def test_a_plain_checkpoint_of_a_task_with_a_target_is_kept_there(target: TargetFixture):
    job_id = target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        ctx.checkpoint({"page": 7})
        raise Broken

    target.run(load)

    assert target.row(job_id)[2] == {"page": 7}


def test_a_connection_that_was_lost_between_transactions_is_replaced(target: TargetFixture):
    job_id = target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
            pid = connection.info.backend_pid
        target.queue_db.sql("SELECT pg_terminate_backend(%s)", pid)
        with ctx.transaction() as connection:
            write_part(connection, "b", ctx)
            ctx.checkpoint(2)

    assert target.run(load).status is Status.SUCCEEDED
    assert target.parts == ["a", "b"]
    assert target.row(job_id)[2] == 2


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_target_that_has_lost_transactions_is_noticed(target: TargetFixture, is_closed: bool):
    """Its server has failed over to a standby that has not received the last of them."""
    target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        for day in ctx.each(["mon", "tue", "wed"]):
            if day == "tue" and ctx.attempt == 1:
                monday.append(target.sql("SELECT position::text FROM dl_effects")[0][0])
            with ctx.transaction() as connection:
                write_part(connection, day, ctx)
                pid = connection.info.backend_pid
            if day == "tue" and ctx.attempt == 1:
                target.sql("DELETE FROM parts WHERE key = 'tue'")
                target.sql("UPDATE dl_effects SET position = %s", *monday)
                target.queue_db.sql("SELECT pg_terminate_backend(%s)", pid)
                if is_closed:  # as after an error in a statement that the task has caught
                    connection.close()

    monday: list[str] = []
    assert "has lost transactions that this attempt has committed" in target.run(load).error
    assert target.run().status is Status.SUCCEEDED
    assert target.parts == ["mon", "tue", "wed"]


@pytest.mark.parametrize("way", ["rollback()", "ROLLBACK", "COMMIT"])
def test_a_block_that_ends_its_own_transaction_is_refused(target: TargetFixture, way: str):
    job_id = target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        for key in ctx.each("a"):
            with ctx.transaction() as connection, connection.cursor() as cursor:
                write_part(connection, key, ctx)
                connection.rollback() if way == "rollback()" else cursor.execute(way)
                cursor.execute("SELECT 1")

    outcome = target.run(load)

    assert "has ended its transaction by itself, with COMMIT or ROLLBACK" in outcome.error
    assert target.row(job_id)[2] is None


def test_what_a_task_does_to_the_connection_does_not_last(target: TargetFixture):
    target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
        connection.autocommit = True
        with pytest.raises(Broken), ctx.transaction() as connection:
            write_part(connection, "b", ctx)
            raise Broken
        write_part(connection, "c", ctx)  # outside of a transaction with a fence, and not committed
        with ctx.transaction() as connection:
            write_part(connection, "d", ctx)

    assert target.run(load).status is Status.SUCCEEDED
    assert target.parts == ["a", "d"]


def test_a_target_without_the_row_is_begun_again(target: TargetFixture, caplog: Any):
    """It was restored from before, or its name is that of another database now: it has no rows of the job either."""
    job_id, resumed = target.enqueue(), []

    def load(args: Any, ctx: Any) -> None:
        resumed.append(ctx.resume)
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
            ctx.checkpoint(1)
        if len(resumed) == 1:
            raise Broken

    target.run(load)
    target.sql("DELETE FROM parts")
    target.sql("DELETE FROM dl_effects")
    target.run()

    assert target.queue_db.job(job_id).status is Status.SUCCEEDED
    assert resumed == [None, None]
    assert target.parts == ["a"]
    assert "target.row_lost" in caplog.messages


def test_a_fence_that_is_gone_is_an_error(target: TargetFixture, other_role: str):
    target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            write_part(connection, "a", ctx)
            ctx.checkpoint(1)
        raise Broken

    target.run(load)
    target.targets[TARGET] = other_role
    outcome = target.run()

    assert outcome.status is Status.QUEUED
    assert "an earlier attempt of this job has written to target 'warehouse' with a fence, and now" in outcome.error
    assert target.parts == ["a"]


@pytest.mark.parametrize("place", ["queue", "not fenced"])
def test_another_target_that_keeps_no_position_does_not_show_the_jobs_own(
    target: TargetFixture, other_role: str, place: str
):
    target.targets["archive"] = target.queue_db.dsn if place == "queue" else other_role
    execute_sql(target.dsn, "REVOKE ALL ON SCHEMA public FROM PUBLIC", "GRANT USAGE ON SCHEMA public TO PUBLIC")
    target.enqueue()
    seen = []

    def load(args: Any, ctx: Any) -> None:
        with ctx.transaction():
            ctx.checkpoint("written")
        with ctx.transaction(target="archive"):
            seen.append(ctx.resume)
            with pytest.raises(RuntimeError, match="target 'archive' keeps no position of this job"):
                ctx.checkpoint("other")
        seen.append(ctx.resume)

    assert target.run(load).status is Status.SUCCEEDED
    assert seen == [None, "written"]


def test_a_failing_creation_of_the_table_fails_the_attempt(target: TargetFixture):
    """It is not without a fence, as other attempts would have one."""
    target.targets[TARGET] = f"{target.dsn} options='-c default_transaction_read_only=on'"
    target.enqueue()

    outcome = target.run(load_days)

    assert outcome.status is Status.QUEUED
    assert "read-only transaction" in outcome.error


def test_a_row_that_is_locked_between_transactions_releases_the_job(
    target: TargetFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(target_transactions, "MAX_WAIT_SEC", 0.5)
    job_id = target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        ctx.claim_task_target()
        with target.open_transaction() as step:
            step("SELECT FROM dl_effects WHERE job_id = %s FOR UPDATE", str(job_id))
            with ctx.transaction() as connection:
                write_part(connection, "a", ctx)

    outcome = target.run(load)

    assert (outcome.status, outcome.refund_attempt) == (Status.QUEUED, True)
    assert "the previous attempt's transaction is still open in target 'warehouse'" in outcome.error


def test_a_row_that_cannot_be_seen_is_an_error(target: TargetFixture):
    execute_sql(
        target.dsn,
        effects.CREATE_TABLE,
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER skip BEFORE INSERT ON dl_effects FOR EACH ROW EXECUTE FUNCTION skip()",
    )
    target.enqueue()

    outcome = target.run(load_days)

    assert outcome.status is Status.QUEUED
    assert "cannot be read and written: is there row security, or a trigger?" in outcome.error


def test_a_schema_with_a_percent_sign(target: TargetFixture):
    execute_sql(target.dsn, 'CREATE SCHEMA "a%b"')
    target.targets[TARGET] = f"{target.dsn} options='-c search_path=a%b,public'"
    target.enqueue()

    assert target.run(load_days).status is Status.SUCCEEDED
    assert target.sql('SELECT count(*) FROM "a%%b".dl_effects') == [(1,)]
