"""The pipelines of the campaign. Each says what it does at the witness's stand; most obey, one kind does not."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

from pipelines.contract import Context, Progress, Stop, register
from pipelines.retry import Fixed
from tests.chaos.witness import STAND, act, seen

AGAIN = Fixed(0.3)
PARTS = 3  # of a load into the target
FOLLOW_UPS = 2
TARGET = """
    CREATE TABLE IF NOT EXISTS chaos_target (
        job_id uuid NOT NULL,
        part   int  NOT NULL,
        run_id uuid NOT NULL  -- nothing is unique: a row that comes twice is to be seen twice
    )"""
_HURRY = "UPDATE dl_jobs SET lease_ttl_sec = 2 WHERE job_id = %s AND status = 'queued'"
_WRITE = "INSERT INTO chaos_target (job_id, part, run_id) VALUES (%s, %s, %s)"


@register("chaos.short", retry=AGAIN)
def short(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    with seen(ctx) as run:
        ctx.progress(1, 1, run=run)
        act(ctx)
    return {"run": run}


@register("chaos.long", retry=AGAIN)
def long(args: dict[str, Any], ctx: Context) -> Generator[Any, None, dict[str, Any]]:
    """Takes its time, and passes a safe point every fifth of a second."""
    with seen(ctx) as run:
        ctx.progress(run=run)
        for step in range(steps := max(1, int(args["seconds"] * 5))):
            act(ctx)
            ctx.sleep(0.2)
            yield Progress(step + 1, steps)
    return {"run": run}


@register("chaos.failing", retry=AGAIN)
def failing(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Fails as often as it is told to, and then does not."""
    with seen(ctx) as run:
        ctx.progress(run=run)
        act(ctx)
        if ctx.attempt <= args["fails"]:
            raise RuntimeError(f"failed on purpose, said {run}")
    return {"run": run}


@register("chaos.parent", retry=AGAIN)
def parent(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Asks for follow-ups, and fails afterwards as often as it is told to: the next try asks again."""
    with seen(ctx) as run:
        ctx.progress(run=run)
        for n in range(FOLLOW_UPS):
            act(ctx)
            with ctx.transaction() as connection:
                asked = ctx.enqueue(
                    "chaos.short", {"follow_up": n}, queue=args["queue"], lock_key=f"{ctx.job_id}:{n}", max_attempts=20
                )
                with connection.cursor() as cursor:  # a pipeline cannot ask for a short lease, and we are in a hurry
                    cursor.execute(_HURRY, (str(asked),))
        if ctx.attempt <= args["fails"]:
            raise RuntimeError(f"failed on purpose, said {run}")
    return {"run": run}


@register("chaos.load", retry=AGAIN)
def load(args: dict[str, Any], ctx: Context) -> Iterator[Any]:
    """Writes its parts into the queue's own database, each once, however many tries it takes; the last part commits
    together with the end of the job."""
    with seen(ctx) as run:
        ctx.progress(run=run)
        for part in range(ctx.resume or 0, PARTS - 1):
            act(ctx)
            with ctx.transaction() as connection:
                _write(connection, ctx, part, run)
                ctx.checkpoint(part + 1)
            yield
        with ctx.transaction(final=True, result={"run": run}) as connection:
            _write(connection, ctx, PARTS - 1, run)


@register("chaos.apart", retry=AGAIN, isolation="process")
def apart(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """As `long`, in a process of its own."""
    with seen(ctx) as run:
        ctx.progress(run=run)
        for _ in range(max(1, int(args["seconds"] * 5))):
            act(ctx)
            ctx.sleep(0.2)
    return {"run": run}


@register("chaos.zombie", retry=AGAIN)
def zombie(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Obeys nobody. It writes on when its lease has gone and its job is somebody else's, and only then commits; it
    swallows whatever would stop it, and says how it ended as if nothing had been."""
    until = time.monotonic() + args["seconds"]
    part, writes = int(ctx.resume or 0), True
    with seen(ctx) as run:
        ctx.progress(run=run)
        while time.monotonic() < until:
            try:
                if writes:
                    _write_late(args, ctx, part, run, min(args["holds"], max(0.2, until - time.monotonic())))
                    part += 1
            except (Stop, Exception) as error:
                ctx.log.warning("swallowed", error=repr(error))
                writes = False  # whether that was committed is not known: to write it again would be its own fault
            if ctx.attempt % 2:  # every other one talks on: what it says must not stand in its successor's row
                ctx.progress(run=run, at=time.monotonic())
            time.sleep(0.1)
            STAND.say(ctx, "wrote")
    return {"run": run}


def _write_late(args: dict[str, Any], ctx: Context, part: int, run: str, holds: float) -> None:
    """The next part of the job, begun now and committed much later. Past `ctx.transaction`, which would look first
    whether the run is to stop: what is left is the fence at the commit alone."""
    effects: Any = ctx._with_effects()  # type: ignore[attr-defined]  # a worker's own context has them
    # Of some jobs each part is the last one, which settles the job in the same stroke.
    end = (lambda: ctx._success({"run": run})) if args.get("final") else None  # type: ignore[attr-defined]
    with effects.transaction(checkpoint=lambda: part + 1, final=end) as connection:
        _write(connection, ctx, part, run)
        time.sleep(holds)


def _write(connection: Any, ctx: Context, part: int, run: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_WRITE, (str(ctx.job_id), part, run))
