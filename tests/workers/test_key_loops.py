"""`ctx.each`: keys that are done are skipped, and a key is done with the rows of its block."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.context import Stop
from dataloader.pipelines.contract import Fail
from dataloader.pipelines.testing import FakeContext, run
from tests.support.target_fixture import TargetFixture, write_part

DAYS = [date(2026, 1, day) for day in range(1, 6)]


class Broken(Exception):
    """An error of the pipeline."""


@pytest.fixture
def target(queue_db: Any, databases: Any) -> Iterator[TargetFixture]:
    with databases.fresh(schema=False) as dsn:
        yield TargetFixture(queue_db, dsn)


@pytest.mark.parametrize("place", ["before", "within", "after"])
def test_each_key_is_written_once_in_a_target(target: TargetFixture, place: str):
    job_id = target.enqueue()
    broken: set[date] = set()

    def fail_once(day: date, where: str) -> None:
        if place == where and day not in broken:
            broken.add(day)
            raise Broken

    def load(args: Any, ctx: Any) -> None:
        for day in ctx.each(DAYS):
            fail_once(day, "before")
            with ctx.transaction() as connection:
                write_part(connection, day.isoformat(), ctx)
                fail_once(day, "within")
            fail_once(day, "after")

    target.register(load)
    outcomes = [target.run().status for _ in range(6)]

    assert outcomes == [*5 * [Status.QUEUED], Status.SUCCEEDED]
    assert target.parts == [day.isoformat() for day in DAYS]
    assert target.row(job_id)[2]["each"][0]["done"] == 5
    assert target.queue_db.job(job_id).progress == {"processed": 5, "total": 5, "unit": "keys"}


def test_a_block_without_a_transaction_is_done_at_its_end(target: TargetFixture):
    target.enqueue()
    seen: list[int] = []

    def load(args: Any, ctx: Any) -> None:
        for number in ctx.each(range(4)):
            seen.append(number)
            if seen.count(2) == 1 and number == 2:
                raise Broken

    target.run(load)
    target.run()

    assert seen == [0, 1, 2, 2, 3]


@pytest.mark.parametrize("named", ["warehouse", None])
def test_the_queue_keeps_the_keys_of_a_task_without_a_target(target: TargetFixture, named: str | None):
    if named is not None:
        target.targets[named] = target.queue_db.dsn
    target.queue_db.sql("CREATE TABLE parts (key text, run text)")
    target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        for key in ctx.each("abc"):
            with ctx.transaction() as connection:
                write_part(connection, key, ctx)
            if ctx.attempt < 3:
                raise Broken

    target.register(load, target=named)
    for _ in range(3):
        target.run()

    assert target.queue_db.sql("SELECT key FROM parts ORDER BY 1") == [("a",), ("b",), ("c",)]


def resume_with(first: Any, second: Any, *, stop_at: int) -> Any:
    """Do the first keys up to a number; return the context of the next attempt, with its keys."""
    ctx = FakeContext()
    for count, _ in enumerate(ctx.each(first), 1):
        if count == stop_at:
            break
    again = FakeContext(resume=ctx.resume)
    return again, again.each(second)


def test_keys_that_are_added_at_the_end_follow():
    _, keys = resume_with([1, 2, 3], [1, 2, 3, 4], stop_at=3)

    assert list(keys) == [3, 4], "the key at which the block was left is not done"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ([1], "2 were done, the last of them 2, and now there are only 1"),
        ([1, 3, 2], "of the 2 that were done key 2 was 2 and is 3 now"),
        ([0, 2, 3], "of the 2 that were done an earlier one is another"),
        (["1", 2, 3], "of the 2 that were done an earlier one is another"),
    ],
)
def test_keys_that_have_changed_are_refused(keys: list[Any], problem: str):
    _, again = resume_with([1, 2, 3], keys, stop_at=3)

    with pytest.raises(Fail, match="the keys of ctx.each have changed since the last attempt") as error:
        list(again)
    assert problem in str(error.value)


def test_keys_may_be_of_many_types():
    keys = [
        "a", 1, 2.5, None, True, Decimal("1.50"), date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), UUID(int=1),
        ("eu", date(2026, 1, 1)), {"b": 1, "a": 2},
    ]  # fmt: skip

    _, again = resume_with(keys, keys, stop_at=11)

    assert list(again) == keys[10:]


def test_a_key_without_a_stable_text_is_refused():
    with pytest.raises(TypeError, match="a key of ctx.each is a text, number, date or UUID, or a list of these, not a"):
        list(FakeContext().each([object()]))


def test_several_loops_follow_each_other():
    def load(args: Any, ctx: Any) -> None:
        for key in ctx.each(["a", "b"]):
            seen.append(key)
        for key in ctx.each(["x", "y"]):
            seen.append(key)
            if len(seen) == 4:
                raise Broken

    seen: list[str] = []
    ctx = FakeContext()
    with pytest.raises(Broken):
        run(load, {}, ctx)
    run(load, {}, FakeContext(resume=ctx.resume))

    assert seen == ["a", "b", "x", "y", "y"]


def test_loops_do_not_nest():
    def load(args: Any, ctx: Any) -> None:
        for _ in ctx.each("ab"):
            for _ in ctx.each("xy"):
                pass

    with pytest.raises(RuntimeError, match="loops of ctx.each do not nest"):
        run(load)


def test_a_checkpoint_of_the_tasks_own_is_refused():
    def load(args: Any, ctx: Any) -> None:
        for key in ctx.each("ab"):
            ctx.checkpoint(key)

    with pytest.raises(RuntimeError, match=r"ctx\.each keeps the checkpoint of this job, so it has no other one"):
        run(load)
    with pytest.raises(Fail, match="the job has another one"):
        list(FakeContext(resume={"page": 3}).each("ab"))


def test_a_stop_leaves_the_key_undone():
    ctx, seen = FakeContext(stop_after=3), []

    def load(args: Any, ctx: Any) -> None:
        for key in ctx.each("abcd"):
            seen.append(key)
            ctx.check()

    with pytest.raises(Stop):
        run(load, {}, ctx)

    assert list(FakeContext(resume=ctx.resume).each("abcd")) == ["b", "c", "d"]
    assert seen == ["a", "b"]


def test_a_second_transaction_in_a_block_fails_the_job_for_good(target: TargetFixture):
    """The first has committed the key as done: after a crash between the two, rows of the second would be missing."""
    job_id = target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        for key in ctx.each("ab"):
            for half in "12":
                with ctx.transaction() as connection:
                    write_part(connection, key + half, ctx)

    outcome = target.run(load)

    assert outcome.status is Status.FAILED
    assert 'the block of key "a" in ctx.each has opened a second transaction' in outcome.error
    assert target.parts == ["a1"]
    target.queue_db.sql("UPDATE dl_jobs SET status = 'queued' WHERE job_id = %s", str(job_id))
    assert "has opened a second transaction" in target.run().error, "also when it is retried by hand"
    assert target.parts == ["a1"]


def test_a_transaction_in_another_target_is_refused(target: TargetFixture, databases: Any):
    target.enqueue()
    target.targets["archive"] = target.dsn

    def load(args: Any, ctx: Any) -> None:
        for _ in ctx.each("ab"):
            with ctx.transaction(target="archive"):
                pass

    outcome = target.run(load, target=None)

    assert "name this target in @register(target=…)" in outcome.error


def test_a_loop_that_was_left_after_a_transaction_keeps_its_key(target: TargetFixture):
    target.enqueue()

    def load(args: Any, ctx: Any) -> None:
        for key in ctx.each("abc"):
            with ctx.transaction() as connection:
                write_part(connection, key, ctx)
            if key == "b":
                break
        for key in ctx.each("xy"):
            with ctx.transaction() as connection:
                write_part(connection, key, ctx)
            if ctx.attempt == 1:
                raise Broken

    target.run(load)
    target.run()

    assert target.parts == ["a", "b", "c", "x", "y"]


def test_loops_without_keys_keep_the_order_of_the_others():
    def load(args: Any, ctx: Any) -> None:
        list(ctx.each([]))
        for key in ctx.each("xy"):
            seen.append(key)
            if len(seen) == 2:
                raise Broken

    seen: list[str] = []
    ctx = FakeContext()
    with pytest.raises(Broken):
        run(load, {}, ctx)
    run(load, {}, FakeContext(resume=ctx.resume))

    assert seen == ["x", "y", "y"]
