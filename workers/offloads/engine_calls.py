"""Requests of an attempt to an engine: repeated at safe points while it does not answer, which the job shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from dataloader.app.features.offload.rows import Outcome
from dataloader.app.queue.job import ClaimedJob
from dataloader.pipelines.offload import EngineFull, EngineUnavailable, Executor, OffloadFailed
from dataloader.pipelines.portable import clock
from dataloader.workers.offloads.poller import MAX_POLL_SEC, MIN_POLL_SEC
from dataloader.workers.offloads.remote_stop import RemoteStop

_FIRST_STOP_CHECK_SEC = 0.1
T = TypeVar("T")


class OffloadContext(Protocol):
    """What an offload needs of its attempt's context."""

    job: ClaimedJob

    def check(self) -> None: ...
    def sleep(self, seconds: float) -> None: ...
    def record_progress(self, fields: Mapping[str, Any]) -> None: ...
    def write_lines(self, stream: str, lines: Sequence[str]) -> None: ...
    def write_log_position(self, name: str, position: str) -> None: ...
    def execute_for_offload(self, name: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]: ...
    def on_stop(self, callback: Callable[[], object]) -> AbstractContextManager[None]: ...


class EngineCalls:
    """Used by the pipeline's threads."""

    def __init__(self, context: OffloadContext) -> None:
        self._context = context

    def ask(self, engine: str, timeout_sec: float, request: Callable[[], T]) -> T:
        """Send a request until the engine answers. Raises EngineUnavailable after so long."""
        since, pause_sec, is_shown = clock(), MIN_POLL_SEC, False
        while True:
            try:
                answer = request()
            except EngineUnavailable as error:
                if clock() - since >= timeout_sec:
                    raise
                if not is_shown:
                    self.show_outage(engine, error)
                    is_shown = True
            else:
                if is_shown:
                    self.show_recovery()
                return answer
            self._context.sleep(min(pause_sec, max(0.0, since + timeout_sec - clock())))
            pause_sec = min(MAX_POLL_SEC, 2 * pause_sec)

    def show_outage(self, engine: str, error: EngineUnavailable) -> None:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        is_full = isinstance(error, EngineFull)
        self._context.record_progress({"engine": f"{'full' if is_full else 'unavailable'} since {since}"})
        what = "accepts no more work for now" if is_full else "does not answer"
        self._context.write_lines("note", [f"the engine {engine!r} {what}: {error}"])

    def show_pending(self, name: str, detail: str) -> None:
        self._context.record_progress({"engine": f"pending: {detail}"})
        self._context.write_lines("note", [f"{name} has not started: {detail}"])

    def show_recovery(self) -> None:
        self._context.record_progress({"engine": "available"})

    def stop(self, engine: str, executor: Executor, name: str, limits: StopLimits) -> Outcome:
        """Stop work and wait until it has ended. Raises OffloadFailed if that takes longer than the grace period."""
        remote_stop = RemoteStop(executor, name)
        deadline, pause_sec = clock() + limits.grace_sec, _FIRST_STOP_CHECK_SEC
        while not self.ask(engine, limits.engine_timeout_sec, remote_stop.has_ended):
            if clock() >= deadline and not remote_stop.may_arrive:
                if limits.is_abandoned:
                    return "abandoned"
                raise OffloadFailed(f"{engine} {name} was asked to stop {limits.grace_sec:g} s ago, and has not ended")
            self._context.sleep(pause_sec)
            pause_sec = min(MAX_POLL_SEC, 2 * pause_sec)
        return "stopped"


class StopLimits(Protocol):
    """How long a stop may take. A row has these fields, too."""

    @property
    def engine_timeout_sec(self) -> float: ...
    @property
    def grace_sec(self) -> float: ...
    @property
    def is_abandoned(self) -> bool: ...
