"""Tasks that wait for jobs which they have made, importable by isolated and by worker processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import Any
from uuid import UUID

from dataloader.pipelines.contract import Checkpoint, Context, Pipelines, Wait, registry

Args = dict[str, Any]


def make_parts(args: Args, ctx: Context) -> list[UUID]:
    return [
        ctx.enqueue("wait.part", {"n": n, **args.get("part", {})}, lock_key=f"{ctx.job_id}-{n}", max_attempts=1)
        for n in range(args["parts"])
    ]


def summary(ctx: Context) -> dict[str, Any]:
    parents = ctx.upstream.values()
    return {
        "attempt": ctx.attempt,
        "resume": ctx.resume,
        "statuses": sorted({parent.status for parent in parents}),
        "sum": sum(parent.result or 0 for parent in parents),
    }


def run_part(args: Args) -> int:
    if args.get("fails"):
        raise ValueError("broken")
    return int(args["n"])


def function(args: Args, ctx: Context) -> dict[str, Any]:
    if ctx.resume is None:
        raise Wait(make_parts(args, ctx), cursor="parts")
    return summary(ctx)


def generator(args: Args, ctx: Context) -> Generator[Any, None, dict[str, Any]]:
    if ctx.resume is None:
        parts = make_parts(args, ctx)
        yield Checkpoint("parts")
        yield Wait(parts)
        raise AssertionError("the attempt continues after a Wait")
    yield {"processed": 1}
    return summary(ctx)


async def coroutine(args: Args, ctx: Context) -> dict[str, Any]:
    return function(args, ctx)


async def async_generator(args: Args, ctx: Context) -> AsyncGenerator[Any, None]:
    """It has no result: its last checkpoint is what it would return."""
    if ctx.resume is None:
        yield Wait(make_parts(args, ctx), cursor="parts")
        raise AssertionError("the attempt continues after a Wait")
    ctx.enqueue("wait.part", {"n": summary(ctx)["sum"]}, lock_key="sum")


def for_itself(args: Args, ctx: Context) -> None:
    raise Wait([ctx.job_id])


def in_transaction(args: Args, ctx: Context) -> None:
    with ctx.transaction():
        raise Wait(make_parts(args, ctx))


TASKS: dict[str, Callable[..., Any]] = {
    "wait.part": run_part,
    "wait.function": function,
    "wait.generator": generator,
    "wait.coroutine": coroutine,
    "wait.async_generator": async_generator,
    "wait.for_itself": for_itself,
    "wait.in_transaction": in_transaction,
}


def register_all(pipelines: Pipelines, *, isolated: Iterable[str] = ()) -> Pipelines:
    for name, call in TASKS.items():
        pipelines.register(name, isolation="process" if name in isolated else "thread", no_retry=[ValueError])(call)
    return pipelines


register_all(registry)
