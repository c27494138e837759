"""Every call of the context is a safe point: a loop over any of them ends, and code that cleans up is not cut short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Context, Pipelines, Stop, StopReason
from dataloader.pipelines.testing import FakeContext
from dataloader.workers.testing import drain
from tests.support.worker_pool_fixture import WorkerPoolFixture

CALLS: dict[str, Callable[[Context], Any]] = {
    "check": lambda ctx: ctx.check(),
    "sleep": lambda ctx: ctx.sleep(0.001),
    "progress": lambda ctx: ctx.progress(1),
    "count": lambda ctx: ctx.count(rows=1),
    "checkpoint": lambda ctx: ctx.checkpoint(1),
    "produced": lambda ctx: ctx.produced("d"),
    "consumed": lambda ctx: ctx.consumed("d"),
    "link": lambda ctx: ctx.link("x", "https://host"),
    "enqueue": lambda ctx: ctx.enqueue("never", idempotency_key="once"),
    "acquire": lambda ctx: ctx.acquire("no such rate"),
    "connect": lambda ctx: ctx.connect("default").close(),
    "transaction": lambda ctx: ctx.transaction().__enter__(),
    "log.debug": lambda ctx: ctx.log.debug("again"),
    "log.info": lambda ctx: ctx.log.info("again"),
    "log.warning": lambda ctx: ctx.log.warning("again"),
    "log.error": lambda ctx: ctx.log.error("again"),
}


@pytest.fixture
def at_stop(worker_pools: WorkerPoolFixture) -> Callable[[Callable[[Any], Any]], Status]:
    """Run a call as a pipeline that is stopped at its begin, and return how its job ended."""

    def run(call: Callable[[Any], Any]) -> Status:
        tasks = Pipelines()

        def work(args: dict[str, Any], ctx: Any) -> Any:
            ctx.stop(StopReason.CANCEL)
            return call(ctx)

        tasks.register("work")(work)
        worker_pools.queue_fixture.enqueue("key", task="work")
        (job,) = drain(worker_pools.dsn, tasks, ["q"])
        return job.status

    return run


@pytest.mark.parametrize("name", CALLS)
def test_loop_that_swallows_exceptions_is_stopped(at_stop: Callable[..., Status], name: str):
    turns = []

    def loop(ctx: Any) -> None:
        for turn in range(1000):
            turns.append(turn)
            try:
                CALLS[name](ctx)
            except Exception:  # noqa: S112 - it is what such code does
                continue

    assert at_stop(loop) is Status.CANCELED
    assert len(turns) == 1


@pytest.mark.parametrize("name", ["progress", "count", "checkpoint", "connect", "log.info", "log.error"])
def test_clean_up_after_a_stop_is_not_cut_short(at_stop: Callable[..., Status], name: str):
    cleaned = []

    def work(ctx: Any) -> None:
        try:
            ctx.check()
        finally:
            CALLS[name](ctx)
            try:
                CALLS[name](ctx)
            except Stop:
                cleaned.append("a second Stop")
            cleaned.append("to its end")

    assert at_stop(work) is Status.CANCELED
    assert cleaned == ["to its end"]


def test_clean_up_of_a_generator_is_not_cut_short(worker_pools: WorkerPoolFixture):
    cleaned = []

    def steps(args: dict[str, Any], ctx: Any) -> Iterator[Any]:
        try:
            ctx.stop(StopReason.CANCEL)
            yield
        finally:
            ctx.log.info("cleaning up")
            ctx.checkpoint({"at": 1})
            cleaned.append("to its end")

    tasks = Pipelines()
    tasks.register("steps")(steps)
    worker_pools.queue_fixture.enqueue("key", task="steps")
    (job,) = drain(worker_pools.dsn, tasks, ["q"])

    assert (job.status, job.checkpoint, cleaned) == (Status.CANCELED, {"at": 1}, ["to its end"])


@pytest.mark.parametrize("call", ["connect", "transaction", "enqueue"])
def test_refused_sessions_stop_even_clean_up(at_stop: Callable[..., Status], call: str):
    """After the last stop step no thread can open a connection."""
    opened = []

    def work(ctx: Any) -> None:
        try:
            ctx.check()
        finally:
            ctx.refuse_sessions()
            CALLS[call](ctx)
            opened.append(call)

    assert at_stop(work) is Status.CANCELED
    assert opened == []


def test_connect_is_refused_once_the_lease_is_not_trusted(
    at_stop: Callable[..., Status], worker_pools: WorkerPoolFixture
):
    tasks, opened = Pipelines(), []

    def work(args: dict[str, Any], ctx: Any) -> None:
        try:
            raise Stop(StopReason.CANCEL)
        except Stop:
            ctx.lease.renewed -= 3600
            ctx.connect("default")
            opened.append("a session")

    tasks.register("late")(work)
    worker_pools.queue_fixture.enqueue("key", task="late")
    drain(worker_pools.dsn, tasks, ["q"])

    assert opened == []


@pytest.mark.parametrize("name", ["progress", "count", "checkpoint", "enqueue", "connect", "log.info"])
def test_fake_context_stops_the_same_loops(name: str):
    ctx = FakeContext(connect=lambda name: closing(None))
    ctx.stop()

    with pytest.raises(Stop):
        CALLS[name](ctx)
    try:
        ctx.check()
    except Stop:
        ctx.log.info("cleaning up")
    assert ctx.logs[-1].message == "cleaning up"
