"""A project with an interpreter of its own: a package named as ours, which knows only the module `dataloader`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dataloader.workers.isolation.interpreter import MIN_VERSION

# A package named as ours, which knows nothing of us but the module `dataloader`.
LEGACY = """
import asyncio, logging, os, sys, time
from datetime import datetime, timezone
from dataloader import Checkpoint, Fail, Progress, Snooze, Stop, Wait


def load(args, ctx):
    print("printed", args["day"])
    sys.stderr.write("complained\\n")
    logging.getLogger("legacy").warning("warned %s", 1)
    logging.getLogger("legacy").debug("not shown")
    ctx.log.info("loaded", rows=3, table="a b")
    ctx.progress(1, 2, "days", stage="x")
    ctx.count(rows=3)
    ctx.count(rows=4)
    ctx.link("report", "https://example.org/1")
    ctx.produced("sales", rows=7)
    ctx.check("rows", 7, min=1)
    return {
        "version": list(sys.version_info[:2]), "file": __file__, "attempt": ctx.attempt, "task": ctx.task,
        "partition": ctx.partition, "start": ctx.interval and ctx.interval.start.isoformat(),
        "modules": sorted({"pydantic", "psycopg2", "flask", "workers", "pipelines"} & set(sys.modules)),
        "PGAPPNAME": os.environ["PGAPPNAME"], "VIRTUAL_ENV": os.environ.get("VIRTUAL_ENV"),
    }


def curious(args, ctx):
    while ctx.stopping_in is None:
        ctx.sleep(0.01)
    return ctx.stopping_in


def long_request(args, ctx):
    try:
        ctx.enqueue("t", {"text": "x" * 40_000_000})
    except ValueError as error:
        return str(error)


def echo(args, ctx):
    ctx.progress(message=args["password"])
    ctx.link("x", "https://example.org/" + args["password"])
    ctx.progress()
    return {"length": len(args["password"]), "echo": args["password"]}


def spread(first, second="2"):
    return [first, second]


def steps(args, ctx):
    for n in range(ctx.resume or 0, 4):
        yield Checkpoint(n + 1)
        if args.get("fail_at") == n:
            raise ValueError("stumbled")
    yield Progress(4, 4)
    return {"began_at": ctx.resume}


def rows(args):
    yield {"customer": "x", "name": "y"}


async def agenerator(args):
    for n in (1, 2):
        await asyncio.sleep(0)
        yield {"processed": n}


async def coroutine(args):
    await asyncio.sleep(args["seconds"])
    return "slept"


def main():
    if sys.argv != ["t", "--day", "1"]:
        return sys.argv
    return 3


def raises(args, ctx):
    kind = args["kind"]
    if kind == "fail":
        raise Fail("no use")
    if kind == "snooze":
        raise Snooze(30, "later")
    if kind == "wait":
        raise Wait(["00000000-0000-0000-0000-000000000001"], "cursor")
    if kind == "exit":
        raise SystemExit(3)
    if kind == "limits":
        ctx.check("rows", 1, min=5)
    if kind == "produced":
        ctx.produced("")
    if kind == "checkpoint":
        ctx.checkpoint("x" * 2_000_000)
    if kind == "connect":
        ctx.connect("default")
    if kind == "transaction":
        with ctx.transaction():
            pass
    if kind == "offload":
        ctx.offload("engine", print)
    raise KeyError(kind)


def asks(args, ctx):
    parent = ctx.upstream["extract"]
    ctx.check("rows", 1, vs="median:7", tolerance=0.5)
    ctx.acquire("partner-api")
    started = time.monotonic()
    ctx.acquire("partner-api")
    waited = time.monotonic() - started
    later = datetime(2030, 1, 31, tzinfo=timezone.utc)
    first = ctx.enqueue("next", {"n": 1}, queue="other", available_at=later)
    try:
        ctx.enqueue("next", {"n": 1}, colour="red")
    except TypeError as error:
        refused = str(error)
    jobs, last = ctx.fan_out([{"task": "part", "args": {"n": n}, "queue": "other"} for n in (1, 2)],
                             then={"task": "whole", "queue": "other"})
    return {
        "rows": parent.result["rows"], "status": parent.status, "waited": waited > 0.1, "refused": refused,
        "job": str(first), "jobs": len(jobs), "last": str(last),
    }


def waits(args, ctx):
    print("begun")
    try:
        while True:
            ctx.sleep(0.01) if args["how"] == "sleep" else time.sleep(0.01)
    except Stop as stop:
        print("stopped by", stop.reason)
        raise
"""


def interpreters() -> dict[str, str]:
    """This Python without our packages, and the oldest one that is installed and not too old, if it is another."""
    found = {"own": str(Path(sys.base_prefix) / "bin/python3")}
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in range(MIN_VERSION[1], 11):
        for path in [*root.glob(f"versions/3.{minor}.*/bin/python"), Path(f"/usr/bin/python3.{minor}")]:
            if path.exists():
                return {**found, f"3.{minor}": str(path)}
    return found


INTERPRETERS = interpreters()
*_, OLDEST = INTERPRETERS.values()
