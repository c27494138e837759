"""Tasks that give work to an engine, importable by isolated and by worker processes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from dataloader.pipelines.contract import Context, Pipelines, Wait, registry

Args = dict[str, Any]


def handle_of(args: Args, ctx: Context) -> Any:
    """Of a program by its `entrypoint`, or of one of the tests' functions by its name and its folder."""
    engine, options = args.get("engine", "fake"), args.get("options", {})
    if "function" in args:
        from tests.workers.offloads import functions

        return ctx.offload(engine, getattr(functions, args["function"]), args["folder"], **options)
    return ctx.offload(engine, entrypoint=args["entrypoint"], resources=args.get("resources", {}), **options)


def blocking(args: Args, ctx: Context) -> Any:
    return handle_of(args, ctx).result()


def waiting(args: Args, ctx: Context) -> Generator[Any, None, Any]:
    handle = handle_of(args, ctx)
    yield Wait(handle)
    return {"attempt": ctx.attempt, "result": handle.result()}


def unread(args: Args, ctx: Context) -> str:
    handle_of(args, ctx)
    return "not waited for"


def fails_here(args: Args, ctx: Context) -> None:
    handle_of(args, ctx)
    raise ValueError("a fault of its own")


def in_transaction(args: Args, ctx: Context) -> None:
    with ctx.transaction():
        handle_of(args, ctx)


def reused_key(args: Args, ctx: Context) -> Any:
    first = handle_of(args, ctx)
    handle_of({**args, "resources": {"fails_as": "oom"}}, ctx)
    return first.result()


def enlarged(args: Args, ctx: Context) -> Any:
    """The same key again, after its work has ended for want of memory."""
    try:
        return handle_of(args, ctx).result()
    except MemoryError:
        return handle_of({**args, **args["then"]}, ctx).result()


def changed(args: Args, ctx: Context) -> Any:
    """Its first attempt fails; the next ones ask with the args of `then` in place of its own."""
    if ctx.attempt == 1:
        handle_of(args, ctx)
        raise ConnectionError("again")
    return handle_of({**args, **args["then"]}, ctx).result()


def register_all(pipelines: Pipelines, *, isolation: Any = "thread") -> Pipelines:
    for call in (blocking, waiting, unread, fails_here, in_transaction, reused_key, enlarged, changed):
        pipelines.register(f"offload.{call.__name__}", isolation=isolation, no_retry=[ValueError])(call)
    return pipelines


register_all(registry)
