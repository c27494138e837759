"""The stand-in for a context behaves as the real one does, and remembers what it was called with."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, date, datetime

import pytest

from dataloader.pipelines.context import Interval
from dataloader.pipelines.contract import Checkpoint, Context, Fail, Progress, Stop, StopReason
from dataloader.pipelines.testing import FakeContext, LogLine, run


def test_context_has_the_times_and_the_slice_of_its_job():
    start, end = datetime(2030, 1, 31, tzinfo=UTC), datetime(2030, 2, 1, tzinfo=UTC)
    ctx = FakeContext(logical_at=end, interval=(start, end), partition="2030-01-31")

    assert (ctx.logical_at, ctx.interval, ctx.partition) == (end, Interval(start, end), "2030-01-31")
    assert FakeContext(interval=Interval(start, end)).interval == ctx.interval
    assert (FakeContext().logical_at, FakeContext().interval, FakeContext().partition) == (None, None, None)


def test_fake_context_records_all_calls():
    ctx = FakeContext(task="t", attempt=2, resume={"page": 1})
    as_declared: Context = ctx  # mypy compares it with the protocol

    ctx.progress(1, 2, "days", file="a")
    ctx.count(rows=5)
    ctx.count(rows=2, bad=1)
    ctx.checkpoint({"page": 2})
    ctx.log.debug("d")
    ctx.log.info("i", rows=5)
    ctx.log.warning("w")
    ctx.log.error("e")
    ctx.sleep(60)
    job_id = ctx.enqueue("next", {"x": 1}, priority=5)

    assert as_declared.resume == {"page": 2}
    assert ctx.progresses[0] == {"processed": 1, "total": 2, "unit": "days", "file": "a"}
    assert ctx.progresses[-1]["counts"] == {"rows": 7, "bad": 1}
    assert ctx.checkpoints == [{"page": 2}]
    assert ctx.logs[1] == LogLine("info", "i", {"rows": 5})
    assert [line.level for line in ctx.logs] == ["debug", "info", "warning", "error"]
    assert ctx.slept == [60]
    (follow_up,) = ctx.follow_ups
    assert (follow_up.job_id, follow_up.task, follow_up.args, follow_up.options) == (
        job_id, "next", {"x": 1}, {"priority": 5},
    )  # fmt: skip


def test_fake_context_stops_on_request():
    ctx = FakeContext(stop_after=1)
    ctx.check()
    with pytest.raises(Stop):
        ctx.sleep(1)

    ctx = FakeContext()
    ctx.stop(StopReason.SHUTDOWN)
    with pytest.raises(Stop, match="shutdown"):
        ctx.check()


def test_fake_transaction_commits_or_rolls_back():
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (x int)")
    database.commit()
    ctx = FakeContext(database=lambda: database, connect=lambda name: f"to {name}")

    with pytest.raises(ValueError), ctx.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        raise ValueError
    with ctx.transaction(final=True, result=7) as connection:
        connection.execute("INSERT INTO t VALUES (2)")

    assert database.execute("SELECT x FROM t").fetchall() == [(2,)]
    assert (ctx.finished, ctx.finished_with) == (True, 7)
    assert ctx.connect("marts") == "to marts"
    database.close()


def test_fake_context_without_connection_names_the_option():
    with pytest.raises(RuntimeError, match="database="), FakeContext().transaction():
        pass
    with pytest.raises(RuntimeError, match="connect="):
        FakeContext().connect("marts")


# ── targets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def warehouse() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE parts (day text)")
        connection.commit()
        yield connection


def parts(warehouse: sqlite3.Connection) -> list[str]:
    return [day for (day,) in warehouse.execute("SELECT day FROM parts ORDER BY day")]


def test_fake_transactions_are_in_the_target_of_the_task(warehouse):
    names = []

    def connect(name):
        names.append(name)
        return warehouse

    ctx = FakeContext(target="warehouse", connect=connect)
    with ctx.transaction() as connection:
        connection.execute("INSERT INTO parts VALUES ('mon')")
        ctx.checkpoint("mon")
    with pytest.raises(ValueError), ctx.transaction() as connection:
        connection.execute("INSERT INTO parts VALUES ('tue')")
        ctx.checkpoint("tue")
        raise ValueError
    with ctx.transaction(target="archive"):
        pass

    assert names == ["warehouse", "warehouse", "archive"]
    assert (parts(warehouse), ctx.resume) == (["mon"], "mon")


def load_days(days, ctx):
    for day in ctx.each(days):
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO parts VALUES (?)", [str(day)])
            if len(parts(connection)) == 2 and ctx.attempt == 1:
                raise ValueError("on the second day")


def test_fake_context_resumes_a_loop_where_it_ended(warehouse):
    days = [date(2030, 1, day) for day in (1, 2, 3)]
    first = FakeContext(target="warehouse", connect=lambda _: warehouse)
    with pytest.raises(ValueError):
        load_days(days, first)
    assert parts(warehouse) == ["2030-01-01"]

    second = FakeContext(target="warehouse", connect=lambda _: warehouse, attempt=2, resume=first.resume)
    load_days(days, second)

    assert parts(warehouse) == ["2030-01-01", "2030-01-02", "2030-01-03"]
    assert second.progresses[-1] == {"processed": 3, "total": 3, "unit": "keys"}


def test_fake_context_refuses_keys_that_changed(warehouse):
    first = FakeContext()
    assert list(first.each("abc")) == ["a", "b", "c"]

    with pytest.raises(Fail, match="of the 3 that were done an earlier one is another"):
        list(FakeContext(resume=first.resume).each("xbc"))
    assert list(FakeContext(resume=first.resume).each("abcd")) == ["d"]


def test_fake_final_transaction_in_a_target_is_the_last(warehouse):
    ctx = FakeContext(target="warehouse", connect=lambda _: warehouse)
    result: dict[str, int] = {}
    with ctx.transaction(final=True, result=result) as connection:
        connection.execute("INSERT INTO parts VALUES ('mon')")
        result["rows"] = 1

    assert (ctx.finished, ctx.finished_with) == (True, {"rows": 1})
    with pytest.raises(RuntimeError, match="none follows it"), ctx.transaction():
        pass


# ── run ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def steps(args, ctx):
    yield Progress(1, 3, "pages")
    yield {"processed": 2}
    yield Checkpoint("here")
    yield
    return "done"


async def waits(args):
    return args["x"]


async def walks(args, ctx):
    try:
        yield {"processed": 1}
        yield {"processed": 2}
    finally:
        ctx.log.info("cleaned up")


def test_run_executes_all_kinds_of_pipelines():
    ctx = FakeContext()

    assert run(steps, {}, ctx) == "done"
    assert ctx.progresses == [
        {"processed": 1, "total": 3, "unit": "pages"},
        {"processed": 2, "total": 3, "unit": "pages"},
    ]
    assert ctx.resume == "here"
    assert run(waits, {"x": 5}) == 5
    assert run(lambda: 3) == 3
    assert run(walks) is None


def test_stop_is_raised_where_the_pipeline_yields():
    ctx = FakeContext(stop_after=1)
    with pytest.raises(Stop):
        run(walks, {}, ctx)
    assert ctx.logs[0].message == "cleaned up"

    with pytest.raises(Stop):
        run(steps, {}, FakeContext(stop_after=2))


def test_pipeline_that_ignores_a_stop_fails_the_test():
    def stubborn(args):
        while True:
            with suppress(Stop):
                yield

    with pytest.raises(AssertionError, match="went on after a Stop"):
        run(stubborn, {}, FakeContext(stop_after=0))

    def ends_quietly(args):
        try:
            yield
        except BaseException:
            return "what was done so far"

    assert run(ends_quietly, {}, FakeContext(stop_after=0)) == "what was done so far"
