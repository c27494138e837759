"""Runs the four kinds of pipeline to their end, in every kind of process and in an author's tests. Portable.

What a generator yields is checked: a row of data is refused, because it would be stored as the job's progress. A
mapping is progress if it has a number under `processed` or `percent`, or only keys of PROGRESS_KEYS, or if it is a dict
of a few numbers, such as `{"loaded": 500, "skipped": 3}`. Rows have texts, dates or None, or a class of their cursor; a
row of a few numbers looks like progress and is accepted.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Real
from typing import Any, Protocol

from dataloader.pipelines.context import Checkpoint, Context, Progress, Stop, StopReason, Wait

_MAX_IGNORED_STOPS = 100
PROGRESS_KEYS = frozenset({
    "processed", "done", "total", "percent", "unit", "counts", "stage", "step", "steps", "page", "pages", "rows",
    "message",
})  # fmt: skip
_NUMBER_KEYS = ("processed", "percent")
_MAX_NUMBERS = 8
_MAX_KEYS, _MAX_KEY_LENGTH = 5, 40


class RunContext(Context, Protocol):
    """The contract's context, with what the runner needs in addition."""

    awaitable: Any  # the coroutine or async generator that runs: while it awaits it is on no stack

    @property
    def stop_reason(self) -> StopReason | None: ...

    def record_progress(self, fields: Mapping[str, Any]) -> None:
        """As `progress`, without the safe point."""

    def record_checkpoint(self, cursor: Any) -> None:
        """As `checkpoint`, without the safe point."""

    def on_stop(self, callback: Callable[[], object]) -> AbstractContextManager[None]:
        """Call this when a stop is requested, or at once if it has been."""


class Startable(Protocol):
    """A task with a callable."""

    def start(self, args: dict[str, Any], context: Any, /) -> Any:
        """Call it; return a value, a generator, a coroutine or an async generator."""


class StopIgnored(Stop):
    """A generator caught `Stop` and kept yielding."""


class NotProgress(TypeError):
    """A generator yielded data. Nothing stores it, so the job did not do its work."""

    permanent = True  # a retry would fail again


def run_task(
    task: Startable, args: dict[str, Any], context: RunContext, *, max_ignored_stops: int = _MAX_IGNORED_STOPS
) -> Any:
    """Return what the pipeline returns; raise what it raises, `Stop` when it was stopped, and `Wait`, also if it was
    yielded, with its cursor recorded."""
    try:
        result = task.start(args, context)
        if result is None:
            return None
        # The returned object decides, not the declared kind: a decorator of the author's may have changed it.
        if isinstance(result, Generator):
            return _run_generator(result, context, max_ignored_stops)
        if isinstance(result, AsyncGenerator):
            context.awaitable = result
            return _run_coroutine(_run_async_generator(result, context, max_ignored_stops), context)
        if not inspect.iscoroutine(result):
            return result
        context.awaitable = result
        return _run_coroutine(result, context)
    except Wait as wait:
        if wait.cursor is not None:
            context.record_checkpoint(wait.cursor)
        raise


def _run_generator(generator: Generator[Any, None, Any], context: RunContext, max_ignored_stops: int) -> Any:
    """Each `yield` is a safe point; a Stop is raised there, so that the generator's own `finally` runs."""
    try:
        value = next(generator)
        for _ in range(max_ignored_stops):
            while (stop := record_yield(value, context)) is None:
                value = next(generator)
            value = generator.throw(stop)
        raise StopIgnored(context.stop_reason or StopReason.CANCEL)
    except StopIteration as end:
        return end.value
    finally:
        generator.close()


async def _run_async_generator(
    generator: AsyncGenerator[Any, None], context: RunContext, max_ignored_stops: int
) -> None:
    try:
        value = await generator.__anext__()
        for _ in range(max_ignored_stops):
            while (stop := record_yield(value, context)) is None:
                value = await generator.__anext__()
            value = await generator.athrow(stop)
        raise StopIgnored(context.stop_reason or StopReason.CANCEL)
    except StopAsyncIteration:
        return
    finally:
        await generator.aclose()


def record_yield(value: Any, context: RunContext) -> Stop | Wait | None:
    """Record progress or a checkpoint that a generator yields; return what to raise in it, the Wait that it yields or a
    Stop that was requested."""
    if isinstance(value, Wait):
        if not value.is_over:
            return value
    elif isinstance(value, Checkpoint):
        context.record_checkpoint(value.cursor)
    elif isinstance(value, Progress):
        context.record_progress({"processed": value.done, "total": value.total, "unit": value.unit})
    else:
        check_progress(value)
        if isinstance(value, Mapping):
            context.record_progress(value)
    try:
        context.check()
    except Stop as stop:
        return stop
    return None


def check_progress(value: Any) -> None:
    """Raises NotProgress for other mappings, and for sequences such as a cursor's rows."""
    if isinstance(value, Mapping):
        is_few_numbers = type(value) is dict and len(value) <= _MAX_NUMBERS and all(map(_is_number, value.values()))
        if is_few_numbers or PROGRESS_KEYS.issuperset(value) or any(map(_is_number, map(value.get, _NUMBER_KEYS))):
            return
        keys = [str(key)[:_MAX_KEY_LENGTH] for key in value]  # no values, which may be private
        with_keys = f" with the keys {', '.join(keys[:_MAX_KEYS])}{' …' if len(keys) > _MAX_KEYS else ''}"
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        with_keys = ""
    else:
        return
    raise NotProgress(
        f"the pipeline has yielded a {type(value).__name__}{with_keys}, which is no progress, and nothing else that a"
        " generator yields is kept: write rows where they belong, and yield Progress(done, total), a mapping with a"
        " number under 'processed' such as {'processed': 3, 'total': 10}, or nothing"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _run_coroutine(coroutine: Coroutine[Any, Any, Any], context: RunContext) -> Any:
    """Run a coroutine; a stop cancels it at its next `await`."""
    import asyncio  # noqa: PLC0415 - a fifth of what an isolated process imports, and most tasks need none of it

    async def run_until_stopped() -> Any:
        loop, running = asyncio.get_running_loop(), asyncio.ensure_future(coroutine)
        with context.on_stop(lambda: loop.call_soon_threadsafe(running.cancel)):
            return await running

    try:
        return asyncio.run(run_until_stopped())
    except asyncio.CancelledError as error:
        if context.stop_reason is None:
            raise RuntimeError("the pipeline cancelled its own coroutine") from error
        raise Stop(context.stop_reason) from error
