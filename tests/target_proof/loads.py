"""Loads in parts, in each way that a task may keep how far it is."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg2

from dataloader.pipelines.contract import Context

HOME, OTHER = "warehouse", "archive"  # the target that the task names, and one that it names itself
_INSERT = "INSERT INTO proof_parts (job_id, part, run_id) VALUES (%s, %s, %s)"
_COPY = "COPY proof_parts (job_id, part, run_id) FROM STDIN"


def by_checkpoint(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    for part in range(ctx.resume or 0, args["parts"]):
        with ctx.transaction() as connection:
            _write(connection, ctx, part)
            ctx.checkpoint(part + 1)
    return {"parts": args["parts"]}


def by_each(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    for part in ctx.each(range(args["parts"])):
        with ctx.transaction() as connection, connection.cursor() as cursor:
            cursor.copy_expert(_COPY, io.StringIO(f"{ctx.job_id}\t{part}\t{ctx.run_id}\n"))  # type: ignore[attr-defined]
    return {"parts": args["parts"]}


def by_own_table(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """The position is not kept: the table of the load itself has what is done."""
    while _write_next(ctx, args["parts"]):
        pass
    return {"parts": args["parts"]}


def _write_next(ctx: Context, parts: int) -> bool:
    with ctx.transaction() as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM proof_facts WHERE job_id = %s", [str(ctx.job_id)])
            (done,) = cursor.fetchone()
            if done < parts:
                cursor.execute("INSERT INTO proof_facts (job_id, part) VALUES (%s, %s)", [str(ctx.job_id), done])
        if done < parts:
            _write(connection, ctx, done)
    return bool(done + 1 < parts)


def with_final(args: dict[str, Any], ctx: Context) -> None:
    """The last part commits with the result, and without a position."""
    last = args["parts"] - 1
    for part in range(ctx.resume or 0, last):
        with ctx.transaction() as connection:
            _write(connection, ctx, part)
            ctx.checkpoint(part + 1)
    with ctx.transaction(final=True, result={"parts": args["parts"]}) as connection:
        _write(connection, ctx, last)


def each_with_final(args: dict[str, Any], ctx: Context) -> None:
    last = args["parts"] - 1
    for part in ctx.each(range(last)):
        with ctx.transaction() as connection:
            _write(connection, ctx, part)
    with ctx.transaction(final=True, result={"parts": args["parts"]}) as connection:
        _write(connection, ctx, last)


def into_two_targets(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Part by part into both, each with a position of its own."""
    parts = args["parts"]
    while _write_other(ctx, parts) < parts or (ctx.resume or 0) < parts:
        part = ctx.resume or 0
        if part < parts:
            with ctx.transaction() as connection:
                _write(connection, ctx, part)
                ctx.checkpoint(part + 1)
    return {"parts": parts}


def _write_other(ctx: Context, parts: int) -> int:
    """Write the next part into the other target; return how many it has."""
    with ctx.transaction(target=OTHER) as connection:
        part: int = ctx.resume or 0
        if part < parts:
            _write(connection, ctx, part)
            ctx.checkpoint(part + 1)
            part += 1
    return part


def two_targets_with_final(args: dict[str, Any], ctx: Context) -> None:
    """All parts into the task's target, and one into the other with the result."""
    for part in range(ctx.resume or 0, args["parts"]):
        with ctx.transaction() as connection:
            _write(connection, ctx, part)
            ctx.checkpoint(part + 1)
    with ctx.transaction(target=OTHER, final=True, result={"parts": args["parts"]}) as connection:
        _write(connection, ctx, 0)


def with_repetition(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """As code that takes a lost connection for one that can be repeated: each transaction once more after an error."""
    parts = args["parts"]
    while _repeated(lambda: _write_other(ctx, parts)) < parts:
        pass
    for part in range(ctx.resume or 0, parts):
        _repeated(partial(_write_part, ctx, part))
    return {"parts": parts}


def _write_part(ctx: Context, part: int) -> None:
    with ctx.transaction() as connection:
        _write(connection, ctx, part)
        ctx.checkpoint(part + 1)


def _repeated(call: Callable[[], Any]) -> Any:
    with suppress(psycopg2.Error):
        return call()
    return call()


def _write(connection: Any, ctx: Context, part: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, [str(ctx.job_id), part, str(ctx.run_id)])  # type: ignore[attr-defined]


Call = Callable[[dict[str, Any], Context], Any]
SHAPES: Mapping[str, Call] = {
    "checkpoint": by_checkpoint,
    "each": by_each,
    "own table": by_own_table,
    "final": with_final,
    "each, final": each_with_final,
    "two targets": into_two_targets,
    "two targets, final": two_targets_with_final,
    "two targets, repeated": with_repetition,
}


def expected_parts(shape: str, parts: int) -> Mapping[str, range]:
    """The parts that the load writes, by target."""
    match shape:
        case "two targets" | "two targets, repeated":
            return {HOME: range(parts), OTHER: range(parts)}
        case "two targets, final":
            return {HOME: range(parts), OTHER: range(1)}
    return {HOME: range(parts)}


def position_count(shape: str, target: str, position: Any) -> int | None:
    """How many parts a position in a target stands for; None: this load keeps none there, or it has written none."""
    if position is None:
        return None
    if isinstance(position, dict):
        return int(position["each"][0]["done"])
    return int(position)


def keeps_position(shape: str, target: str) -> bool:
    return shape != "own table" and not (shape == "two targets, final" and target == OTHER)
