"""Stops what an attempt that ends for good has left on other engines, before its job is settled.

The job keeps its lease and its key until the work has ended. An attempt that lost its lease stops nothing: the names
belong to the new owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.offload.rows import Offload, Offloads
from dataloader.app.queue.job import ClaimedJob
from dataloader.pipelines.context import StopReason
from dataloader.pipelines.offload import UnknownEngine
from dataloader.pipelines.portable import clock
from dataloader.workers.offloads.remote_stop import RemoteStop
from dataloader.workers.offloads.service import OffloadService, forget_local

_log = log.get(__name__)
_FIRST_PAUSE_SEC, _MAX_PAUSE_SEC = 0.2, 10.0
_SHUTDOWN_GRACE_SEC = 5.0


class EndedAttempt(Protocol):
    """An attempt whose pipeline has ended."""

    job: ClaimedJob

    @property
    def stop_reason(self) -> StopReason | None: ...
    @property
    def is_owner(self) -> bool: ...
    @property
    def is_shutting_down(self) -> bool: ...
    def pause(self, seconds: float) -> None: ...
    def write_lines(self, stream: str, lines: Sequence[str]) -> None: ...


class OffloadStopper:
    """Stops the offloads of one attempt. Used by its worker's thread, after the pipeline has ended."""

    def __init__(self, attempt: EndedAttempt, service: OffloadService, offloads: Offloads) -> None:
        self._attempt, self._service, self._offloads = attempt, service, offloads
        self._is_pending_shown = False

    def run(self) -> None:
        attempt = self._attempt
        is_shutdown = attempt.stop_reason is StopReason.SHUTDOWN
        rows = self._read_rows()
        left = [row for row in rows if row.stop_on_shutdown or not is_shutdown]
        if not left:
            return
        for row in left:
            self._retry(lambda name=row.name: self._offloads.request_stop(name))  # type: ignore[misc]
        for row in left:
            self._stop(row, min(row.grace_sec, _SHUTDOWN_GRACE_SEC) if is_shutdown else row.grace_sec)

    def _read_rows(self) -> list[Offload]:
        rows: list[Offload] = []
        job = self._attempt.job
        self._retry(lambda: rows.extend(self._offloads.open_of_run(job.id, job.run_id)))
        return rows

    def _stop(self, row: Offload, grace_sec: float) -> None:
        """Wait until it has ended; after the grace period the job shows what it waits for."""
        try:
            executor = self._service.engines.get(row.engine)
        except UnknownEngine as error:
            self._show_pending(row, str(error))
            self._retry(lambda: self._offloads.end(row.name, "abandoned"))
            return
        remote_stop = RemoteStop(executor, row.name)
        deadline, pause_sec = clock() + grace_sec, _FIRST_PAUSE_SEC
        while self._may_continue():
            detail, is_away = "it has not ended", False
            try:
                if remote_stop.has_ended():
                    self._retry(lambda: self._offloads.end(row.name, "stopped"))
                    forget_local(executor, row.name)
                    _log.info("offload.stopped", offload=row.name, job=str(row.job_id), outcome="stopped")
                    return
                if remote_stop.may_arrive:
                    detail = "the engine does not know it yet, and may still carry out its submission"
            except Exception as error:  # another package's executor may raise anything
                detail, is_away = f"the engine does not answer: {str(error) or type(error).__name__}", True
            if clock() >= deadline:
                if row.is_abandoned:
                    if not remote_stop.may_arrive:  # else the poller stops it when it arrives
                        self._retry(lambda: self._offloads.end(row.name, "abandoned"))
                    return
                reason = self._attempt.stop_reason
                if reason is StopReason.SHUTDOWN:
                    return  # the next attempt finds it
                if is_away and reason is None:
                    line = f"{row.name} is stopped when the engine {row.engine!r} answers: {detail}"
                    self._attempt.write_lines("note", [line])
                    return  # the poller does
                self._show_pending(row, detail)
            self._attempt.pause(pause_sec)
            pause_sec = min(_MAX_PAUSE_SEC, 1.5 * pause_sec)

    def _may_continue(self) -> bool:
        """Not if the job is another run's, or this process ends: another process stops what is left."""
        attempt = self._attempt
        return attempt.is_owner and not (attempt.is_shutting_down and attempt.stop_reason is not StopReason.SHUTDOWN)

    def _show_pending(self, row: Offload, detail: str) -> None:
        if self._is_pending_shown:
            return
        self._is_pending_shown = True
        attempt = self._attempt
        reason = str(attempt.stop_reason or "ended")
        error = f"stop pending ({reason}): {row.engine} {row.name} runs on: {detail}"
        _log.error("stop.pending", job=str(attempt.job.id), task=attempt.job.task, reason=reason, offload=row.name)
        self._retry(lambda: self._service.record_pending(attempt.job, reason=reason, error=error))

    def _retry(self, write: Callable[[], object]) -> None:
        """Through an outage of the database, as long as the lease is trusted."""
        while self._may_continue():
            try:
                write()
                return
            except DatabaseUnavailable:
                self._attempt.pause(_FIRST_PAUSE_SEC)
