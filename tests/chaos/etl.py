"""The pipelines of the campaign. Each reports its steps to the witness database; only the zombies ignore stops."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import psycopg2

from dataloader.pipelines.contract import Breaker, Context, Progress, Stop, Wait, register
from dataloader.pipelines.retry import Fixed
from tests.chaos import engine
from tests.chaos.clock import clock
from tests.chaos.observer import OBSERVER, OBSERVER_DSN_VARIABLE, observed_run, pass_safe_point

RETRY_POLICY = Fixed(0.3)
PARTS = 3  # of a load into the target
FOLLOW_UPS = 2
TARGET = """
    CREATE TABLE IF NOT EXISTS chaos_target (
        job_id uuid NOT NULL,
        part   int  NOT NULL,
        run_id uuid NOT NULL  -- nothing is unique: a row that comes twice is to be seen twice
    )"""
# One statement that writes a row each tenth of a second and commits each: what an attempt does in a server while
# nothing of it runs in Python. `wall` is the time of day less the clock of all processes.
EFFECTS = """
    CREATE TABLE IF NOT EXISTS chaos_effects (run_id uuid NOT NULL, at float8 NOT NULL);
    CREATE OR REPLACE PROCEDURE chaos_write_effects(run uuid, seconds float8, wall float8) LANGUAGE plpgsql AS $$
    BEGIN
        FOR n IN 1 .. (seconds * 10)::int LOOP
            INSERT INTO chaos_effects VALUES (run, extract(epoch FROM clock_timestamp()) - wall);
            COMMIT;
            PERFORM pg_sleep(0.1);
        END LOOP;
    END $$"""
_CALL_EFFECTS = "CALL chaos_write_effects(%s, %s, %s)"
_SHORTEN_LEASE = "UPDATE dl_jobs SET lease_ttl_sec = 2 WHERE job_id = %s AND status = 'queued'"
_INSERT_PART = "INSERT INTO chaos_target (job_id, part, run_id) VALUES (%s, %s, %s)"


@register("chaos.short", retry=RETRY_POLICY)
def short(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    with observed_run(ctx) as run:
        ctx.progress(1, 1, run=run)
        pass_safe_point(ctx)
    return {"run": run}


@register("chaos.long", retry=RETRY_POLICY)
def long(args: dict[str, Any], ctx: Context) -> Generator[Any, None, dict[str, Any]]:
    """Takes its time, and passes a safe point every fifth of a second."""
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        for step in range(steps := max(1, int(args["seconds"] * 5))):
            pass_safe_point(ctx)
            ctx.sleep(0.2)
            yield Progress(step + 1, steps)
    return {"run": run}


@register("chaos.failing", retry=RETRY_POLICY)
def failing(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Fails the given number of times, then succeeds."""
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        pass_safe_point(ctx)
        if ctx.attempt <= args["fails"]:
            raise RuntimeError(f"failed on purpose in run {run}")
    return {"run": run}


@register("chaos.fragile", retry=RETRY_POLICY, breaker=Breaker(failures=2, resume=1))
def fragile(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """As `failing`, and a circuit breaker stops it after two failures in a row."""
    return failing(args, ctx)


@register("chaos.parent", retry=RETRY_POLICY)
def parent(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Enqueues follow-ups, then fails the given number of times; each attempt enqueues them again."""
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        for n in range(FOLLOW_UPS):
            pass_safe_point(ctx)
            with ctx.transaction() as connection:
                asked = ctx.enqueue(
                    "chaos.short", {"follow_up": n}, queue=args["queue"], lock_key=f"{ctx.job_id}:{n}", max_attempts=20
                )
                with connection.cursor() as cursor:  # a pipeline cannot ask for a short lease, and we are in a hurry
                    cursor.execute(_SHORTEN_LEASE, (str(asked),))
        if ctx.attempt <= args["fails"]:
            raise RuntimeError(f"failed on purpose in run {run}")
    return {"run": run}


@register("chaos.load", retry=RETRY_POLICY)
def load(args: dict[str, Any], ctx: Context) -> Iterator[Any]:
    """Writes its parts into the queue's own database, each once, however many tries it takes; the last part commits
    together with the end of the job."""
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        for part in range(ctx.resume or 0, PARTS - 1):
            pass_safe_point(ctx)
            with ctx.transaction() as connection:
                _write(connection, ctx, part, run)
                ctx.checkpoint(part + 1)
            yield
        ctx.produced("chaos.parts", rows=PARTS)
        with ctx.transaction(final=True, result={"run": run}) as connection:
            _write(connection, ctx, PARTS - 1, run)


@register("chaos.apart", retry=RETRY_POLICY, isolation="process")
def apart(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """As `long`, in a process of its own."""
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        for _ in range(max(1, int(args["seconds"] * 5))):
            pass_safe_point(ctx)
            ctx.sleep(0.2)
    return {"run": run}


@register("chaos.sql", retry=RETRY_POLICY)
def sql(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """One long statement in autocommit, over a session of the context."""
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        with closing(ctx.connect(args["target"])) as connection:
            _write_effects(connection, run, args["seconds"])
    return {"run": run}


@register("chaos.sql_apart", retry=RETRY_POLICY, isolation="process")
def sql_apart(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """As `sql`, in a process of its own."""
    return sql(args, ctx)


@register("chaos.legacy", retry=RETRY_POLICY, isolation="process")
def legacy(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """As `sql_apart`, over a session that the code opens itself, as code does that knows nothing of dataloader."""
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        with closing(psycopg2.connect(os.environ[OBSERVER_DSN_VARIABLE])) as connection:
            _write_effects(connection, run, args["seconds"])
    return {"run": run}


def _write_effects(connection: Any, run: str, seconds: float) -> None:
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(_CALL_EFFECTS, (run, seconds, time.time() - clock()))


@register("chaos.offload", retry=RETRY_POLICY)
def offload(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Gives its work to the engine, and waits in its thread."""
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        pass_safe_point(ctx)
        result = _submit(args, ctx).result()
        pass_safe_point(ctx)
    return {"run": run, **result}


@register("chaos.offload_wait", retry=RETRY_POLICY)
def offload_wait(args: dict[str, Any], ctx: Context) -> Generator[Any, None, dict[str, Any]]:
    """As `offload`, and waits without a thread."""
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        pass_safe_point(ctx)
        handle = _submit(args, ctx)
        yield Wait(handle)
        result = handle.result()
        pass_safe_point(ctx)
    return {"run": run, **result}


def _submit(args: dict[str, Any], ctx: Context) -> Any:
    end = "fails" if args["fails"] else "succeeds"
    program = f"sh {shlex.quote(str(engine.PROGRAM))} {args['seconds']:.1f} {end}"
    return ctx.offload(engine.NAME, entrypoint=program, engine_timeout=20.0, grace=5.0)


@register("chaos.zombie", retry=RETRY_POLICY)
def zombie(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Ignores every stop. It writes after its lease has expired and another run has its job, then commits; it
    swallows whatever would stop it, and says how it ended as if nothing had been."""
    until = time.monotonic() + args["seconds"]
    part, writes = int(ctx.resume or 0), True
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        while time.monotonic() < until:
            try:
                if writes:
                    _write_late(args, ctx, part, run, min(args["holds"], max(0.2, until - time.monotonic())))
                    part += 1
            except (Stop, Exception):
                writes = False  # whether that was committed is not known: to write it again would be its own fault
            if (
                ctx.attempt % 2
            ):  # every other one reports on, past the safe points: its successor's row must not have it
                ctx.record_progress({"run": run, "at": time.monotonic()})  # type: ignore[attr-defined]  # as above
            time.sleep(0.1)
            report_trust(ctx)
            OBSERVER.report(ctx, "wrote")
    return {"run": run}


def report_trust(ctx: Context) -> None:
    """Whether an obedient run would continue. It is not a safe point, which would stop the run."""
    at = clock()
    attempt: Any = ctx  # in a worker's thread
    if attempt.stop_reason is None and attempt.lease.is_trusted(at):
        OBSERVER.report(ctx, "trusted", at)


def _write_late(args: dict[str, Any], ctx: Context, part: int, run: str, holds: float) -> None:
    """The next part of the job, begun now and committed much later. Past `ctx.transaction`, which would look first
    whether the run is to stop: what is left is the fence at the commit alone."""
    effects: Any = ctx._require_connections()  # type: ignore[attr-defined]  # a worker's own context has them
    # Of some jobs each part is the last one, which settles the job in the same stroke.
    end = (lambda: ctx._success_parameters({"run": run})) if args.get("final") else None  # type: ignore[attr-defined]
    with effects.transaction(checkpoint=lambda: part + 1, final=end) as connection:
        _write(connection, ctx, part, run)
        time.sleep(holds)


def _write(connection: Any, ctx: Context, part: int, run: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_INSERT_PART, (str(ctx.job_id), part, run))
