"""One attempt for every kind of pipeline and every way to end, without a pool or a database."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any
from uuid import uuid4

import pytest

from dataloader.app.queue.attempt_sessions import ServerSessions, SessionsEnded
from dataloader.app.queue.job import Released, ReleaseReason, Settlement, Status
from dataloader.pipelines.context import Upstream
from dataloader.pipelines.contract import Pipelines, Stop, StopReason
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.outcome import LeaseLost, Outcome
from tests.support.claimed_jobs import claimed_job


def attempt_at(**more: Any) -> Attempt:
    return Attempt(claimed_job(**more), claimed_at=clock(), settings=AttemptSettings())


def run(call: Callable[..., Any] | None, attempt: Attempt | None = None) -> Outcome:
    tasks = Pipelines()
    if call is not None:
        tasks.register("t")(call)
    return (attempt or attempt_at()).run(tasks.get("t"))


def settled(call: Callable[..., Any], attempt: Attempt | None = None) -> Settlement:
    end = run(call, attempt)
    assert isinstance(end, Settlement), end
    return end


def handing_out(call: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function that returns what another one gives."""
    return lambda args: call(args)  # noqa: PLW0108 - it is not the callable itself


def through_a_wrapper(call: Callable[..., Any]) -> Callable[..., Any]:
    """As an author's own decorator does it that runs the coroutine itself."""

    @wraps(call)
    def inner(args: dict[str, Any]) -> Any:
        return asyncio.run(call(args))

    return inner


def function(args):
    return args


def generator(args) -> Iterator[dict[str, int]]:
    yield {"processed": 1}
    return args  # type: ignore[no-any-return]


async def coroutine(args):
    await asyncio.sleep(0)
    return args


async def async_generator(args) -> AsyncIterator[dict[str, int]]:
    yield {"processed": 1}
    await asyncio.sleep(0)
    yield {"processed": 2}


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (function, {"n": 1}),
        (generator, {"n": 1}),
        (coroutine, {"n": 1}),
        (async_generator, None),
        (handing_out(generator), {"n": 1}),
        (handing_out(coroutine), {"n": 1}),
        (handing_out(async_generator), None),
        (through_a_wrapper(coroutine), {"n": 1}),
    ],
)
def test_pipelines_of_every_kind_run_to_their_end(call, result):
    end = settled(call, attempt_at(args_text='{"n": 1}'))

    assert (end.status, end.result) == (Status.SUCCEEDED, result)


def test_yielded_and_reported_progress_are_merged():
    def steps(args, ctx):
        yield {"processed": 1, "total": 9}
        ctx.progress(2, unit="rows", file="a.csv")
        yield "only a safe point"
        yield {"processed": 3}

    assert settled(steps).progress == {"processed": 3, "total": 9, "unit": "rows", "file": "a.csv"}


@pytest.mark.parametrize("left", ["[]", "7", '{"processed": 4}', "{" + '"a":' * 3 + "1" + "}"])
def test_unreadable_progress_does_not_fail_the_job(left: str):
    try:
        json.loads(left)
    except ValueError:
        left = '{"huge": 1' + "0" * 5000 + "}"

    end = settled(lambda args, ctx: ctx.progress(5), attempt_at(progress_text=left))

    assert end.status is Status.SUCCEEDED
    assert end.progress == {"processed": 5}


# ── stops ───────────────────────────────────────────────────────────────────────────────────────────────────────


def stop_it(ctx: Any, reason: StopReason = StopReason.CANCEL) -> None:
    """As the heartbeat or the listener would, while the pipeline is at work."""
    ctx.stop(reason)


def at_a_check(args, ctx):
    stop_it(ctx)
    ctx.check()
    raise AssertionError("it went on")


def at_a_sleep(args, ctx):
    stop_it(ctx)
    ctx.sleep(3600)


def at_a_yield(args, ctx):
    stop_it(ctx)
    yield {"processed": 1}
    raise AssertionError("it went on")


async def at_an_await(args, ctx):
    stop_it(ctx)
    await asyncio.Event().wait()


async def at_an_async_yield(args, ctx):
    stop_it(ctx)
    yield {"processed": 1}
    raise AssertionError("it went on")


def despite_except_exception(args, ctx):
    stop_it(ctx)
    while True:
        try:
            ctx.check()
        except Exception:  # noqa: S112
            continue


def despite_swallowing(args, ctx):
    stop_it(ctx)
    while True:
        with suppress(Stop):
            yield


async def despite_swallowing_async(args, ctx):
    stop_it(ctx)
    while True:
        with suppress(Stop):
            yield


def with_a_failing_cleanup(args, ctx):
    stop_it(ctx)
    try:
        yield
    finally:
        raise OSError("could not close")


async def in_a_task_group(args, ctx):
    async def part() -> None:
        stop_it(ctx)
        ctx.check()

    async with asyncio.TaskGroup() as group:
        group.create_task(part())


@pytest.mark.parametrize(
    "call",
    [
        at_a_check, at_a_sleep, at_a_yield, at_an_await, at_an_async_yield, despite_except_exception,
        despite_swallowing, despite_swallowing_async, with_a_failing_cleanup, in_a_task_group,
    ],
)  # fmt: skip
def test_stop_ends_a_pipeline_at_its_safe_points(call):
    end = settled(call)

    assert (end.status, end.error) == (Status.CANCELED, "canceled on request")


def test_stop_runs_the_cleanup_of_a_generator():
    cleaned = []

    def steps(args, ctx):
        stop_it(ctx)
        try:
            yield
        finally:
            cleaned.append(ctx.attempt)

    settled(steps)

    assert cleaned == [1]


def test_second_cancel_does_not_interrupt_coroutine_cleanup():
    cleaned = []

    async def careful(args, ctx):
        try:
            stop_it(ctx)
            await asyncio.Event().wait()
        finally:
            stop_it(ctx)  # the next heartbeat brings the flag again
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            cleaned.append(True)

    assert settled(careful).status is Status.CANCELED
    assert cleaned == [True]


@pytest.mark.parametrize("call", [at_a_check])
def test_shutdown_releases_the_attempt(call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(stop_it.__globals__, "stop_it", lambda ctx: ctx.stop(StopReason.SHUTDOWN))

    assert isinstance(run(call), Released)


@pytest.mark.parametrize("then", [lambda ctx: "done", lambda ctx: 1 / 0, lambda ctx: ctx.check()])
def test_attempt_with_lost_lease_is_never_settled(then):
    def loses(args, ctx):
        ctx.stop(StopReason.LEASE_LOST)
        return then(ctx)

    assert run(loses) == LeaseLost()


def test_check_stops_an_attempt_with_an_untrusted_lease():
    attempt = attempt_at()

    def freezes(args, ctx):
        attempt.lease.renewed_at -= 60
        ctx.check()

    assert run(freezes, attempt) == LeaseLost()


def test_attempt_frozen_before_its_start_does_not_start():
    attempt = attempt_at()
    attempt.lease.renewed_at -= 60
    ran: list[Any] = []

    assert run(ran.append, attempt) == LeaseLost()
    assert ran == []
    assert not attempt.started_at


@pytest.mark.parametrize("reason", [StopReason.CANCEL, StopReason.SHUTDOWN, StopReason.LEASE_LOST])
def test_attempt_stopped_before_its_start_does_not_start(reason: StopReason):
    attempt = attempt_at()
    attempt.stop(reason)
    ran: list[Any] = []

    end = run(ran.append, attempt)

    assert ran == []
    kinds = {StopReason.CANCEL: Settlement, StopReason.SHUTDOWN: Released, StopReason.LEASE_LOST: LeaseLost}
    assert isinstance(end, kinds[reason])


def test_attempt_stopped_while_it_reads_results_does_not_start():
    attempt = attempt_at(args_text='{"rows": {"$result": "extract"}}')

    class Late(dict[str, Upstream]):
        def __getitem__(self, key: str) -> Upstream:
            attempt.stop(StopReason.CANCEL)
            return super().__getitem__(key)

    attempt.parents = Late(extract=Upstream(uuid4(), "succeeded", 5))
    ran: list[Any] = []

    assert settled(ran.append, attempt).status is Status.CANCELED
    assert ran == []


def test_missing_task_costs_no_attempt():
    assert isinstance(run(None), Released)


def test_success_before_the_stop_is_noticed_stays_a_success():
    def quick(args, ctx):
        stop_it(ctx)
        return "done"

    assert settled(quick).result == "done"


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("error", "output"),
    [
        (ValueError("no good"), "ValueError: no good"),
        (ValueError(), "ValueError"),
        (Unspeakable(), "Unspeakable: (it could not be printed)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit("odd"), "GeneratorExit: odd"),
    ],
)
@pytest.mark.parametrize(("attempt", "status"), [(1, Status.QUEUED), (3, Status.FAILED)])
def test_any_exception_uses_up_an_attempt(error, output, attempt, status):
    def breaks(args):
        raise error

    end = settled(breaks, attempt_at(attempt=attempt))

    assert (end.status, end.error) == (status, output)
    assert end.traceback is not None
    assert "breaks" in end.traceback


@pytest.mark.parametrize("code", [None, 0])
def test_exit_code_zero_of_python_code_is_success(code):
    def leaves(args):
        raise SystemExit(code)

    assert settled(leaves).status is Status.SUCCEEDED


def test_coroutine_that_cancels_itself_fails():
    async def gives_up(args):
        raise asyncio.CancelledError

    end = settled(gives_up)

    assert end.status is Status.QUEUED
    assert "cancelled its own coroutine" in str(end.error)


@pytest.mark.parametrize(
    ("args", "output"),
    [
        ("1" + "0" * 5000, "cannot be decoded"),
        ('{"a": 1' + "0" * 5000 + "}", "cannot be decoded"),
        ("[" * 100_000 + "]" * 100_000, "cannot be decoded"),
        ("[1]", "must be an object, not list"),
        ('"text"', "must be an object, not str"),
    ],
)
def test_undecodable_args_fail_the_job_without_retry(args: str, output: str):
    end = settled(lambda args: "ran", attempt_at(args_text=args))

    assert end.status is Status.FAILED
    assert output in str(end.error)


class _UnreachedConnections:
    """Connections to a server that does not answer when its sessions are to be ended."""

    settled = commit_unknown = False

    def close(self) -> SessionsEnded:
        return SessionsEnded((ServerSessions("warehouse", is_reached=False),))


def test_event_names_the_server_whose_sessions_may_be_left():
    def opens_connections(args: dict[str, Any], ctx: Any) -> None:
        ctx.connections = _UnreachedConnections()

    assert settled(opens_connections).event_fields == {"sessions_left": ["warehouse"]}


def test_no_progress_is_saved_that_was_reported_after_the_outcome():
    attempt = attempt_at()
    attempt.reported.replace_progress({"processed": 1})
    released = attempt.complete(Released(ReleaseReason.SHUTDOWN))  # of a thread that could not be stopped
    attempt.reported.replace_progress({"processed": 2})

    assert isinstance(released, Released)
    assert released.progress == {"processed": 1}
    assert attempt.reported.unsaved()[0] == {"processed": 1}


def test_cpu_time_is_known_before_the_end():
    written: list[str] = []

    class RecordedAttempt(Attempt):
        def __setattr__(self, name: str, value: Any) -> None:
            written.append(name)
            super().__setattr__(name, value)

    def compute() -> None:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass

    attempt = attempt_at()
    attempt.__class__ = RecordedAttempt
    run(compute, attempt)

    assert attempt.thread_cpu_sec is not None
    assert attempt.thread_cpu_sec >= 0.02
    assert written.index("thread_cpu_sec") < written.index("ended_at")
