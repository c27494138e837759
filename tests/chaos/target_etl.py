"""Loads of the campaign into a target on a server of its own. The fact of what is there is kept there."""

from __future__ import annotations

import time
from typing import Any

from dataloader.pipelines.contract import Context, Stop, register
from tests.chaos.etl import RETRY_POLICY, report_trust
from tests.chaos.observer import OBSERVER, observed_run, pass_safe_point

TARGET = "warehouse"
_INSERT = "INSERT INTO proof_parts (job_id, part, run_id) VALUES (%s, %s, %s)"


@register("chaos.target", retry=RETRY_POLICY, target=TARGET)
def load(args: dict[str, Any], ctx: Context) -> int:
    """Each part in a transaction of its own. The result is not the run's: a later one may settle the job with it."""
    with observed_run(ctx):
        parts: int = args["parts"]
        match args["shape"]:
            case "each":
                for part in ctx.each(range(parts)):
                    _write_part(args, ctx, part)
            case "own table":
                while _write_next(args, ctx, parts):
                    pass
            case shape:
                last = parts - 1 if shape == "final" else parts
                for part in range(ctx.resume or 0, last):
                    _write_part(args, ctx, part, position=part + 1)
                if shape == "final":
                    pass_safe_point(ctx)
                    with ctx.transaction(final=True, result=parts) as connection:
                        _write(connection, ctx, last)
    return parts


@register("chaos.target_apart", retry=RETRY_POLICY, target=TARGET, isolation="process")
def load_apart(args: dict[str, Any], ctx: Context) -> int:
    """As `load`, in a process of its own."""
    return load(args, ctx)


def _write_part(args: dict[str, Any], ctx: Context, part: int, position: int | None = None) -> None:
    pass_safe_point(ctx)
    with ctx.transaction() as connection:
        _write(connection, ctx, part)
        time.sleep(args["seconds"])
        if position is not None:
            ctx.checkpoint(position)
    ctx.sleep(args["seconds"])


def _write_next(args: dict[str, Any], ctx: Context, parts: int) -> bool:
    """Which part is the next is in the load's own table."""
    pass_safe_point(ctx)
    with ctx.transaction() as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM proof_facts WHERE job_id = %s", [str(ctx.job_id)])
            (part,) = cursor.fetchone()
            if part < parts:
                cursor.execute("INSERT INTO proof_facts (job_id, part) VALUES (%s, %s)", [str(ctx.job_id), part])
        if part < parts:
            _write(connection, ctx, part)
            time.sleep(args["seconds"])
    return bool(part + 1 < parts)


@register("chaos.target_zombie", retry=RETRY_POLICY, target=TARGET)
def load_as_zombie(args: dict[str, Any], ctx: Context) -> int:
    """Ignores every stop. Past `ctx.transaction`, which would look first whether the run is to stop, it holds
    transactions in the target open and commits them late: what is left is the fence there."""
    until = time.monotonic() + args["seconds"]
    part, writes = int(ctx.resume or 0), True
    with observed_run(ctx):
        while time.monotonic() < until:
            try:
                if writes:
                    _write_late(ctx, part, min(args["holds"], max(0.2, until - time.monotonic())))
                    part += 1
            except (Stop, Exception):
                writes = False  # as it is not known what was committed
            time.sleep(0.1)
            report_trust(ctx)
            OBSERVER.report(ctx, "wrote")
    return part


def _write_late(ctx: Context, part: int, holds: float) -> None:
    context: Any = ctx  # a worker's own
    context.targets.claim(TARGET)
    with context.targets.transaction(TARGET, final=False, result=None) as connection:
        _write(connection, ctx, part)
        time.sleep(holds)
        context.save_position(part + 1)


def _write(connection: Any, ctx: Context, part: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, [str(ctx.job_id), part, str(ctx.job.run_id)])  # type: ignore[attr-defined]  # as above
