"""Targets without a fence, and what a task does wrong in a target transaction: each is a clear sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.queue.job import Status
from dataloader.pipelines import effects
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
