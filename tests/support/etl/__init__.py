"""Pipelines for tests of real processes. What they do is seen in a file that outlives whoever is killed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.contract import Context, Stop, register


def _trace(args: dict[str, Any], ctx: Context, what: str) -> None:
    line = {"what": what, "job": str(ctx.job_id), "attempt": ctx.attempt, "pid": os.getpid(), "at": time.time()}
    file = os.open(args["trace"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())  # one write: lines of many processes do not mix
    finally:
        os.close(file)


@contextmanager
def _traced(args: dict[str, Any], ctx: Context) -> Iterator[None]:
    _trace(args, ctx, "began")
    try:
        yield
    except Stop as stop:
        _trace(args, ctx, f"stopped: {stop.reason}")
        raise
    _trace(args, ctx, "ended")


@register("test.nap")
def nap(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Sleeps as a good pipeline does."""
    with _traced(args, ctx):
        ctx.sleep(args["seconds"])
    return {"attempt": ctx.attempt}


@register("test.until")
def until(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Goes on until a file is there."""
    with _traced(args, ctx):
        while not Path(args["file"]).exists():
            ctx.sleep(0.02)
    return {"attempt": ctx.attempt}


@register("test.deaf")
def deaf(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Goes on until a file is there, and hears of nothing else."""
    with _traced(args, ctx):
        while not Path(args["file"]).exists():
            time.sleep(0.02)
    return {"attempt": ctx.attempt}


@register("test.secret")
def secret(args: dict[str, Any], ctx: Context) -> None:
    """Fails with something in its words that nobody is to read."""
    raise RuntimeError(f"refused: password={args['password']}")


@register("test.tell")
def tell(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Says how far it is and what it does, and goes on until a file is there."""
    ctx.progress(40, 100, "rows")
    print("reading the first page")  # noqa: T201 - as pipelines do
    ctx.log.warning("the source is slow today")
    with _traced(args, ctx):
        while not Path(args["file"]).exists():
            ctx.sleep(0.02)
    return {"rows": 100}
