"""Pipelines for a process of their own: what they may do, and how they may die."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Generator
from typing import Any

from dataloader.pipelines.contract import Checkpoint, Context, Fail, Snooze, register


@register("apart.works", isolation="process")
def do_work(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    sys.stdout.write("printed\n")
    sys.stderr.write("complained\n")
    logging.getLogger("some.library").warning("logged %s", "plainly")
    ctx.log.info("logged", rows=3)
    ctx.progress(3, 10, "rows")
    ctx.count(read=5)
    ctx.count(read=2)
    return {"pid": os.getpid(), "attempt": ctx.attempt, "args": args}


@register("apart.steps", isolation="process")
def yield_steps(args: dict[str, Any], ctx: Context) -> Generator[Any, None, Any]:
    begin = ctx.resume or 0
    for n in range(begin, 4):
        yield Checkpoint(n + 1)
        if n == 1 and ctx.attempt == 1:
            raise ValueError(f"stumbled at {n}")
    return_value = {"began_at": begin}
    yield return_value
    return return_value


@register("apart.calls", isolation="process")
def count_call(args: dict[str, Any], ctx: Context) -> None:
    ctx.log.info("begun")
    ctx.acquire("api")


@register("apart.follows", isolation="process")
def enqueue_follow_up(args: dict[str, Any], ctx: Context) -> str:
    return str(ctx.enqueue("apart.limited", {"tenant": "acme"}))


@register("apart.limited", limits={"tenant:{tenant}": 1}, lock_key="shop:{tenant}:{shop}", spread=True)
def do_limited_work(tenant: str, shop: int = 1) -> None:
    """Declares a limit and a lock key."""


@register("apart.times", isolation="process")
def return_times(args: dict[str, Any], ctx: Context) -> list[str | None]:
    bounds = (None, None) if ctx.interval is None else (ctx.interval.start, ctx.interval.end)
    return [ctx.partition, *(time and time.isoformat() for time in (ctx.logical_at, *bounds))]


@register("apart.raises", isolation="process")
def raise_error(args: dict[str, Any]) -> None:
    if args["what"] == "fail":
        raise Fail("no use")
    if args["what"] == "snooze":
        raise Snooze(60)
    if args["what"] == "exit":
        raise SystemExit(args["code"])
    raise ValueError("no good")


@register("apart.curious", isolation="process")
def wait_for_stop_time(args: dict[str, Any], ctx: Context) -> list[float | None]:
    ctx.progress(1)
    before = ctx.stopping_in
    while ctx.stopping_in is None:
        ctx.sleep(0.01)
    return [before, ctx.stopping_in]


@register("apart.dies", isolation="process")
def exit_process(args: dict[str, Any]) -> None:
    if args["how"] == "segfault":
        ctypes.string_at(0)
    if args["how"] == "kill":
        os.kill(os.getpid(), 9)
    os._exit(args["code"])


@register("apart.hoards", isolation="process", memory_mb=600)
def allocate_memory(args: dict[str, Any]) -> int:
    return len(bytearray(2_000_000_000))


@register("apart.burns", isolation="process", cpu_sec=1)
def burn_cpu(args: dict[str, Any]) -> None:
    sum(range(10**11))


@register("apart.seals", isolation="process")
def commit_final(args: dict[str, Any], ctx: Context) -> str:
    with ctx.transaction() as connection:
        connection.cursor().execute("INSERT INTO witness VALUES ('first')")
        ctx.checkpoint("half")
    with ctx.transaction(final=True, result={"sealed": True}) as connection:
        connection.cursor().execute("INSERT INTO witness VALUES ('last')")
    return "not this"
