"""What a process has for offloads: its engines, and the threads that poll them and read their logs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Protocol

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.offload.rows import Execute, Offloads
from dataloader.app.queue.job import ClaimedJob
from dataloader.pipelines.executors import Engines
from dataloader.pipelines.offload import Executor
from dataloader.workers.logs.writer import JobLogWriter
from dataloader.workers.offloads.poller import OffloadPoller
from dataloader.workers.reports.secrets import SecretStore


class RecordPending(Protocol):
    """`JobQueue.record_stop_pending`."""

    def __call__(self, job: ClaimedJob, *, reason: str, error: str) -> None: ...


def _record_nothing(job: ClaimedJob, *, reason: str, error: str) -> None:
    """Where no stop is waited for."""


class OffloadService:
    """One a process. A pool starts its threads; elsewhere the first wait does."""

    def __init__(
        self,
        engines: Engines,
        *,
        execute: Execute | None = None,  # the process's own access to the rows; None: attempts use theirs
        logs: JobLogWriter | None = None,  # of the jobs that wait without a thread
        secret_store: SecretStore | None = None,  # of these jobs
        record_pending: RecordPending = _record_nothing,
        on_crash: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.offloads = None if execute is None else Offloads(execute)
        self.engines, self.record_pending = engines, record_pending
        self.poller = OffloadPoller(
            engines, offloads=self.offloads, logs=logs, secret_store=secret_store, on_crash=on_crash
        )
        self.threads = (self.poller.thread, self.poller.logs.thread)

    def ensure_started(self) -> None:
        for thread in self.threads:
            if thread.ident is None:
                with suppress(RuntimeError):  # another thread has just started it
                    thread.start()

    def release_polls(self) -> None:
        """Let other processes poll at once what this one has claimed: its threads were stopped."""
        names = self.poller.logs.end()
        with suppress(DatabaseUnavailable):  # then they wait until the claim ends
            for name in names:
                if self.offloads is not None:
                    self.offloads.record_poll(name, next_sec=0)


@cache
def local_service() -> OffloadService:
    """For contexts without a pool: with the process engine alone."""
    return OffloadService(Engines())


def forget_local(executor: Executor, name: str) -> None:
    """Delete what this machine keeps of work that has ended. Another engine's is kept for a while: the next attempt may
    need it."""
    delete = getattr(executor, "delete", None)
    if not executor.survives and delete is not None:
        delete(name)
