"""Polls all offloads of this process: one thread, a few requests a second, however many there are. Another reads logs.

Attempts register what they wait for. Of those for which a job waits without a thread, and those left by jobs that have
ended, the thread claims the next that are due: any process that knows the engine may poll them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.offload.rows import DuePoll, Offloads
from dataloader.pipelines.executors import Engines
from dataloader.pipelines.offload import EngineUnavailable, Executor, RemoteState, RemoteStatus, parse_progress
from dataloader.pipelines.portable import clock
from dataloader.workers.logs.writer import JobLogWriter
from dataloader.workers.offloads.log_thread import LogThread
from dataloader.workers.offloads.remote_log import read_log, write_log
from dataloader.workers.offloads.remote_stop import RemoteStop
from dataloader.workers.reports.secrets import Redactor, SecretStore, SecretUnavailable
from dataloader.workers.threads import BackgroundThread

_log = log.get(__name__)
_REQUEST_INTERVAL_SEC = 0.2  # five requests a second
MIN_POLL_SEC, MAX_POLL_SEC, _POLL_GROWTH = 1.0, 10.0, 1.5
_MAX_BACKOFF_SEC = 30.0  # of an engine that does not answer
_CLAIM_INTERVAL_SEC = 2.0
_MAX_CLAIMED = 10
_IDLE_SEC = 3600.0
_CLAIM_SEC = 60.0  # of `claim_offload_polls`: then another process may poll the same
_MAX_LOG_WAIT_SEC, _MAX_LOG_SEC = 15.0, 50.0  # since the claim, until a log is read, and until its lines are written
_WITH_LOG = (
    RemoteState.RUNNING,
)  # the last lines of work that has ended are read by the attempt that takes its result

WriteLines = Callable[[Sequence[str], str], None]  # lines, and the position behind them


class Watch:
    """One offload that an attempt waits for, as the poller last saw it."""

    status: RemoteStatus | None = None  # written by the poller, read by the attempt, as the next two
    unavailable_since: float | None = None  # by `clock`
    error: EngineUnavailable | None = None  # why it is unavailable
    log_error: Exception | None = None  # written by the thread that reads logs, read by the attempt

    def __init__(self, name: str, engine: str, executor: Executor, *, position: str, write_lines: WriteLines) -> None:
        self.name, self.engine, self.executor, self.position = name, engine, executor, position
        self._write_lines = write_lines
        self._lock = threading.Lock()  # held while lines are written
        self._is_removed = False  # under the lock: what is read after that is for the next one
        self.changed = threading.Event()
        self.next_poll_at = 0.0  # the poller's, as the next
        self.interval_sec = MIN_POLL_SEC

    def remove(self) -> str:
        """Return the position behind the last lines that were written."""
        with self._lock:
            self._is_removed = True
            return self.position

    def read_log(self) -> None:
        """Called by the thread that reads logs. What cannot be read now is read at the next poll, or at the end."""
        try:
            lines, position = read_log(self.executor, self.name, self.position)
        except Exception as error:  # another package's executor may raise anything
            self.log_error = error
            self.changed.set()
            return
        self.record_lines(lines, position)

    def record_lines(self, lines: Sequence[str], position: str) -> None:
        with self._lock:
            if not self._is_removed:
                if lines:
                    self._write_lines(lines, position)
                self.position = position

    def record(self, status: RemoteStatus) -> None:
        is_new = self.status is None or self.status.state is not status.state
        self.interval_sec = MIN_POLL_SEC if is_new else min(MAX_POLL_SEC, self.interval_sec * _POLL_GROWTH)
        self.next_poll_at = clock() + self.interval_sec
        self.status, self.unavailable_since, self.error = status, None, None
        self.changed.set()

    def record_unavailable(self, error: EngineUnavailable, retry_at: float) -> None:
        self.unavailable_since = self.unavailable_since or clock()
        self.error, self.next_poll_at = error, retry_at
        self.changed.set()


@dataclass
class _Backoff:
    """An engine that does not answer."""

    until: float
    interval_sec: float
    error: EngineUnavailable


class OffloadPoller:
    """Thread `offloads`. Watches are added and removed by any thread."""

    def __init__(
        self,
        engines: Engines,
        *,
        offloads: Offloads | None = None,  # None: no job waits here without a thread
        logs: JobLogWriter | None = None,  # of these jobs
        secret_store: SecretStore | None = None,  # to redact their logs
        on_crash: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._engines, self._offloads, self._logs = engines, offloads, logs
        self._secret_store = secret_store or SecretStore()
        self._lock = threading.Lock()
        self._watches: list[Watch] = []  # under the lock
        self._backoffs: dict[str, _Backoff] = {}  # by engine; the thread's, as the next
        self._next_request_at = self._next_claim_at = 0.0
        self._claims_all = False  # also what this machine's child processes left
        self.logs = LogThread(on_crash=on_crash)
        self.thread = BackgroundThread("offloads", self.run_once, on_crash=on_crash)

    def watch(self, watch: Watch) -> None:
        with self._lock:
            self._watches.append(watch)
            self._claims_all = True
        self.thread.wake()

    def unwatch(self, watch: Watch) -> str:
        """Return the position up to which its log was read."""
        with self._lock:
            self._watches = [other for other in self._watches if other is not watch]
        return watch.remove()

    def run_once(self) -> float:
        """Poll the one that is longest overdue; return the seconds until the next request may be sent."""
        if clock() >= self._next_request_at:  # a new watch wakes the thread earlier
            requests, idle_sec = self._poll_next()
            if not requests:
                return idle_sec
            self._next_request_at = clock() + requests * _REQUEST_INTERVAL_SEC
        return max(0.0, self._next_request_at - clock())

    def _poll_next(self) -> tuple[int, float]:
        """Return how many requests were sent; if none, also the seconds until the next is due."""
        with self._lock:
            watch = min(self._watches, key=lambda watch: watch.next_poll_at, default=None)
        if watch is not None and watch.next_poll_at <= clock():
            return self._poll_watch(watch), 0.0
        claim_at = self._claim_at()
        if claim_at is not None and claim_at <= clock():
            self._next_claim_at = clock() + _CLAIM_INTERVAL_SEC  # also if it fails: watches are not delayed by it
            return self._poll_claimed(), 0.0
        next_at = [] if claim_at is None else [claim_at]
        next_at += [] if watch is None else [watch.next_poll_at]
        return 0, max(0.0, min(next_at) - clock()) if next_at else _IDLE_SEC

    def _claim_at(self) -> float | None:
        is_used = self._claims_all or bool(self._engines.remote_names)
        return self._next_claim_at if is_used and self._offloads is not None else None

    def _poll_watch(self, watch: Watch) -> int:
        backoff = self._backoffs.get(watch.engine)
        if backoff is not None and clock() < backoff.until:
            watch.record_unavailable(backoff.error, backoff.until)
            return 0
        try:
            status = watch.executor.status(watch.name)
        except Exception as error:
            unavailable = self._record_outage(watch.engine, error)
            watch.record_unavailable(unavailable, self._backoffs[watch.engine].until)
        else:
            self._backoffs.pop(watch.engine, None)
            watch.record(status)
            if status.state in _WITH_LOG:
                self.logs.add(watch.name, watch.read_log)
        return 1

    def _record_outage(self, engine: str, error: Exception) -> EngineUnavailable:
        """Wait longer each time. What an executor should not raise counts as no answer too."""
        if not isinstance(error, EngineUnavailable):
            _log.warning("engine.broken_answer", engine=engine, error=f"{type(error).__name__}: {error}")
            error = EngineUnavailable(f"{type(error).__name__}: {error}")
        before = self._backoffs.get(engine)
        interval_sec = MIN_POLL_SEC if before is None else min(_MAX_BACKOFF_SEC, 2 * before.interval_sec)
        self._backoffs[engine] = _Backoff(clock() + interval_sec, interval_sec, error)
        if before is None:
            _log.warning("engine.unavailable", engine=engine, error=str(error))
        return error

    # ── jobs that wait, and offloads of jobs that have ended ────────────────────────────────────────────────────

    def _poll_claimed(self) -> int:
        assert self._offloads is not None  # noqa: S101 - only then is a claim due
        engines = self._engines.names if self._claims_all else self._engines.remote_names
        logs = self._logs if self._logs is not None and self._logs.flush() else None
        due = self._offloads.claim_polls(engines, limit=_MAX_CLAIMED)
        for poll in due:
            self._poll_due(self._offloads, poll, logs)
        if len(due) == _MAX_CLAIMED:
            self._next_claim_at = 0.0
        return len(due)

    def _poll_due(self, offloads: Offloads, due: DuePoll, logs: JobLogWriter | None) -> None:
        """Poll the work of a waiting job. Its log is not read while earlier lines cannot be written: `logs` is None."""
        claimed_at = clock()
        next_sec = min(MAX_POLL_SEC, max(MIN_POLL_SEC, due.waited_sec / 10))
        backoff = self._backoffs.get(due.engine)
        may_arrive = False
        try:
            if backoff is not None and clock() < backoff.until:
                raise backoff.error
            executor = self._engines.get(due.engine)
            if due.is_orphan:
                remote_stop = RemoteStop(executor, due.name, asked_sec=due.waited_sec)
                is_over, may_arrive = remote_stop.has_ended(), remote_stop.may_arrive
                status = None
            else:
                status = executor.status(due.name)
                is_over = status.state.is_over or status.is_stuck
        except Exception as error:
            if backoff is None or clock() >= backoff.until:
                self._record_outage(due.engine, error)
            until = self._backoffs[due.engine].until - clock()
            offloads.record_poll(due.name, next_sec=max(next_sec, until), is_unavailable=True)
            if due.is_unavailable and not due.is_orphan:
                offloads.wake_job(due.job_id, due.name)
            return
        self._backoffs.pop(due.engine, None)
        is_read = logs is not None and status is not None and status.state in _WITH_LOG
        if is_read and self.logs.add(due.name, lambda: self._read_due_log(offloads, due, executor, logs, claimed_at)):
            next_sec = _CLAIM_SEC  # the thread sets it again
        detail = status.detail if status is not None and status.state is RemoteState.PENDING else ""
        offloads.record_poll(due.name, next_sec=next_sec, detail=detail)
        self._conclude(offloads, due, is_over=is_over, may_arrive=may_arrive)

    def _read_due_log(
        self, offloads: Offloads, due: DuePoll, executor: Executor, logs: JobLogWriter | None, claimed_at: float
    ) -> None:
        """Called by the thread that reads logs. Lines that come after the claim are left to the process that polls
        next."""
        try:
            if logs is None or clock() - claimed_at > _MAX_LOG_WAIT_SEC:
                return
            lines, position = self._read_log_of(due, executor)
            if clock() - claimed_at > _MAX_LOG_SEC:
                return
            if lines or position != due.log_position:
                write_log(logs, due, lines, position)
            progress = [fields for line in lines if (fields := parse_progress(line)) is not None]
            if progress:
                offloads.record_progress(due.job_id, progress[-1])
        except DatabaseUnavailable:
            raise
        except Exception as error:  # another package's executor may raise anything
            _log.warning("engine.log_unreadable", engine=due.engine, offload=due.name, error=str(error))
        next_sec = min(MAX_POLL_SEC, max(MIN_POLL_SEC, due.waited_sec / 10))
        offloads.record_poll(due.name, next_sec=next_sec)

    def _read_log_of(self, due: DuePoll, executor: Executor) -> tuple[list[str], str]:
        """Without the values of the job's secrets. If one cannot be read here, the log is left to the next attempt."""
        try:
            values = {name: self._secret_store.resolve_for_task(name, due.task) for name in set(due.secrets)}
        except SecretUnavailable:
            return [], due.log_position
        redactor = Redactor(values)
        lines, position = read_log(executor, due.name, due.log_position)
        return [redactor.redact_text(line) for line in lines], position

    @staticmethod
    def _conclude(offloads: Offloads, due: DuePoll, *, is_over: bool, may_arrive: bool) -> None:
        if due.is_orphan:
            if is_over or (due.is_abandoned and not may_arrive):
                outcome: Any = "stopped" if is_over else "abandoned"
                offloads.end(due.name, outcome)
                _log.info("offload.stopped", offload=due.name, job=str(due.job_id), outcome=outcome)
        elif is_over or due.is_late:
            offloads.wake_job(due.job_id, due.name)
