"""Pipelines for tests of real processes. They report to a file, which survives a killed process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dataloader.pipelines.contract import Context, Stop, register


def _trace(args: dict[str, Any], ctx: Context, action: str) -> None:
    line = {"what": action, "job": str(ctx.job_id), "attempt": ctx.attempt, "pid": os.getpid(), "at": time.time()}
    file = os.open(args["trace"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())  # one write: lines of many processes do not mix
    finally:
        os.close(file)


@contextmanager
def _traced_run(args: dict[str, Any], ctx: Context) -> Iterator[None]:
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
    with _traced_run(args, ctx):
        ctx.sleep(args["seconds"])
    return {"attempt": ctx.attempt}


@register("test.until")
def run_until_file(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Runs until a file exists."""
    with _traced_run(args, ctx):
        while not Path(args["file"]).exists():
            ctx.sleep(0.02)
    return {"attempt": ctx.attempt}


@register("test.deaf")
def ignore_stop(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Runs until a file exists, and ignores stops."""
    with _traced_run(args, ctx):
        while not Path(args["file"]).exists():
            time.sleep(0.02)
    return {"attempt": ctx.attempt}


@register("test.secret")
def fail_with_secret(args: dict[str, Any], ctx: Context) -> None:
    """Fails with a secret in its message."""
    raise RuntimeError(f"refused: password={args['password']}")


@register("test.measure")
def report_quality(args: dict[str, Any], ctx: Context) -> None:
    """Reports data checks, datasets and a link."""
    ctx.link("report", "https://reports.example.com/sales")
    ctx.consumed("s3://raw/orders")
    ctx.produced("warehouse.sales", rows=args["rows"], partition="2030-01-31", schema={"id": "bigint"})
    ctx.check("rows", args["rows"], vs="median:7", tolerance=0.3, severity="warn")
    ctx.check("nulls", 0, max=0)


@register("test.tell")
def report_progress(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Reports progress and logs, and runs until a file exists."""
    ctx.progress(40, 100, "rows")
    print("reading the first page")  # noqa: T201 - as pipelines do
    ctx.log.warning("the source is slow today")
    with _traced_run(args, ctx):
        while not Path(args["file"]).exists():
            ctx.sleep(0.02)
    return {"rows": 100}


@register("test.advance")
def advance(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Loads ten rows a second, and reports each as progress."""
    for done in range(args["rows"]):
        ctx.progress(done + 1, args["rows"], "rows")
        ctx.sleep(0.1)
    return {"rows": args["rows"]}


@register("test.steps")
def run_steps(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Takes steps of a tenth of a second, with a checkpoint after each, for so many seconds or until a file exists."""
    done = int((ctx.resume or {}).get("done", 0))
    with _traced_run(args, ctx):
        while done < args["seconds"] * 10 and not Path(args["file"]).exists():
            ctx.sleep(0.1)
            done += 1
            _trace(args, ctx, f"step {done}")
            ctx.checkpoint({"done": done})
    return {"steps": done}
