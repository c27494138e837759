"""Runs the four kinds of pipeline to their end, with a safe point wherever they allow one."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any

from pipelines.contract import Stop, StopReason, Task
from workers.context import JobContext

_VALUES = (type(None), dict, str, int, bool, list)  # what most pipelines give, and what is nothing but a value
_PATIENCE = 100  # how often a generator may swallow a Stop and yield again before it is closed


def drive(task: Task, args: dict[str, Any], context: JobContext) -> Any:
    """Returns what the pipeline returns; raises what it raises, and Stop when it was ended."""
    result = task.start(args, context)
    return result if type(result) in _VALUES else _finish(result, context)


def _finish(result: Any, context: JobContext) -> Any:
    """What a call gives decides, not what it was declared to be: an author's decorator may have changed it."""
    if isinstance(result, Generator):
        return _walk(result, context)
    if isinstance(result, AsyncGenerator):
        return _await(_walk_async(result, context), context)
    if inspect.iscoroutine(result):
        return _await(result, context)
    return result


def _walk(steps: Generator[Any, None, Any], context: JobContext) -> Any:
    """Each `yield` is a safe point; a Stop is raised there, so that the generator's own `finally` runs."""
    try:
        step = next(steps)
        for _ in range(_PATIENCE):
            while (stop := context.take(step)) is None:
                step = next(steps)
            step = steps.throw(stop)
        raise Stop(context.stopping or StopReason.CANCEL)  # it swallowed every one of them
    except StopIteration as end:
        return end.value
    finally:
        steps.close()


async def _walk_async(steps: AsyncGenerator[Any, None], context: JobContext) -> None:
    try:
        step = await anext(steps)
        for _ in range(_PATIENCE):
            while (stop := context.take(step)) is None:
                step = await anext(steps)
            step = await steps.athrow(stop)
        raise Stop(context.stopping or StopReason.CANCEL)
    except StopAsyncIteration:
        return
    finally:
        await steps.aclose()


def _await(work: Coroutine[Any, Any, Any], context: JobContext) -> Any:
    """Run a coroutine; a stop cancels it at its next `await`."""
    import asyncio  # noqa: PLC0415 - a fifth of what an isolated process loads, and most need none of it

    with asyncio.Runner() as runner:
        loop = runner.get_loop()

        async def guarded() -> Any:
            running = asyncio.ensure_future(work)
            with context.woken_by_stop(lambda: loop.call_soon_threadsafe(running.cancel)):
                return await running

        try:
            return runner.run(guarded())
        except asyncio.CancelledError as error:
            if context.stopping is None:
                raise RuntimeError("the pipeline's coroutine was cancelled, and not by us") from error
            raise Stop(context.stopping) from error
