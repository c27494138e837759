"""The offloads of one attempt: `ctx.offload`.

The intent is written before the submission, and the submission is idempotent, so that at any moment the next attempt
finds what this one has begun.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any

from dataloader.app import log
from dataloader.app.features.offload.rows import NewOffload, Offload, Offloads
from dataloader.pipelines.context import OffloadOptions
from dataloader.pipelines.offload import (
    EngineRefused,
    Options,
    RemoteState,
    UnknownEngine,
    fingerprint,
    offload_name,
    parse_call,
)
from dataloader.workers.offloads.engine_calls import EngineCalls, OffloadContext
from dataloader.workers.offloads.handle import RemoteHandle, Work
from dataloader.workers.offloads.service import OffloadService, forget_local

_log = log.get(__name__)


class OffloadCalls:
    """Used by the pipeline's threads."""

    def __init__(self, context: OffloadContext, service: OffloadService) -> None:
        self._context, self._service = context, service
        self._offloads = Offloads(context.execute_for_offload)
        self._calls = EngineCalls(context)
        self._lock = threading.Lock()
        self._count = 0  # of calls without a key; under the lock, as the next
        self._digests: dict[str, tuple[str, int]] = {}  # by call, with the works that it had before

    def start(
        self, engine: str, call: Callable[..., Any] | None, args: tuple[Any, ...], given: OffloadOptions
    ) -> RemoteHandle:
        spec, options = parse_call(engine, call, args, given)
        executor = self._service.engines.get(engine)
        kind = "program" if spec.call is None else "function"
        if kind not in executor.runs:
            raise EngineRefused(f"the engine {engine!r} runs no {kind}s")
        call_id, digest = options.key or self._next_call(), fingerprint(engine, spec)
        rows = self._offloads.of_call(self._context.job.id, call_id)
        self._check_key(call_id, digest, rows)
        kept = self._reusable(rows, digest, options)
        for row in rows:
            if not row.has_ended and row is not kept:
                self._stop(row)
        if kept is not None:
            work = Work(engine, executor, kept.name, kept.fence_token, spec, options, kept.left_sec, kept.log_position)
            if (handle := self._attach(kept, work)) is not None:
                return handle
        number = 1 + max((row.number for row in rows), default=0)
        name = offload_name(self._context.job.id, call_id, number)
        work = Work(engine, executor, name, secrets.token_hex(16), spec, options, options.timeout)
        self._intend(work, call_id=call_id, number=number, digest=digest)
        handle = self._handle(work)
        handle.submit()
        return handle

    def _next_call(self) -> str:
        with self._lock:
            self._count += 1
            return str(self._count)

    def _check_key(self, call_id: str, digest: str, rows: Sequence[Offload]) -> None:
        """Raise ValueError for a key that names other work of this attempt that has not ended, and would be stopped."""
        with self._lock:
            former, count = self._digests.setdefault(call_id, (digest, len(rows)))
            has_ended = len(rows) > count and rows[-1].has_ended
            if former != digest and not has_ended:
                raise ValueError(
                    f"the key {call_id!r} names other work of this attempt, which runs: give each call its own key"
                )
            self._digests[call_id] = digest, len(rows) if former != digest else count

    def _handle(self, work: Work) -> RemoteHandle:
        return RemoteHandle(work, self._context, self._service, self._offloads)

    def _reusable(self, rows: Sequence[Offload], digest: str, options: Options) -> Offload | None:
        """What an earlier attempt submitted, if it did not end badly, is not to stop, and nothing has changed."""
        if not rows or rows[-1].outcome not in (None, "succeeded") or rows[-1].fingerprint != digest:
            return None
        if rows[-1].is_stop_requested and not rows[-1].has_ended:
            return None
        is_other_run = rows[-1].run_id != self._context.job.run_id
        return None if options.fresh and is_other_run else rows[-1]

    def _attach(self, row: Offload, work: Work) -> RemoteHandle | None:
        """A handle of what was submitted before. None: it succeeded, and the engine has forgotten its result."""
        handle = self._handle(work)
        status = self._calls.ask(work.engine, work.engine_timeout_sec, lambda: work.executor.status(work.name))
        if status.state is not RemoteState.UNKNOWN:
            handle.last_status = status
            _log.info("offload.attached", offload=work.name, engine=work.engine, state=status.state)
        elif row.has_ended:
            return None
        elif not handle.is_late:
            if row.address != work.executor.address:
                lines = [f"{work.name} was submitted to {row.address}, and is now submitted to {work.executor.address}"]
                self._context.write_lines("note", lines)
            handle.submit()
        return handle

    def _intend(self, work: Work, *, call_id: str, number: int, digest: str) -> None:
        job, options = self._context.job, work.options
        self._offloads.intend(
            NewOffload(
                name=work.name,
                job_id=job.id,
                run_id=job.run_id,
                call=call_id,
                number=number,
                engine=work.engine,
                address=work.executor.address,
                fingerprint=digest,
                fence_token=work.fence_token,
                timeout_sec=options.timeout,
                engine_timeout_sec=options.engine_timeout,
                grace_sec=options.grace,
                stop_on_shutdown=options.on_shutdown == "stop",
                is_abandoned=options.abandon,
            )
        )

    def _stop(self, row: Offload) -> None:
        """Stop work of an earlier attempt that this one does not want, and wait until it has ended."""
        self._offloads.request_stop(row.name)
        try:
            executor = self._service.engines.get(row.engine)
        except UnknownEngine:
            self._context.write_lines("note", [f"{row.name} is left: there is no engine {row.engine!r} any more"])
            self._offloads.end(row.name, "abandoned")
            return
        self._offloads.end(row.name, self._calls.stop(row.engine, executor, row.name, row))
        forget_local(executor, row.name)
