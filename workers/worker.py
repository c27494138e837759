"""The worker threads of a pool, and how they are stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dataloader.app import log
from dataloader.app.queue.attempt_sessions import END_SESSIONS_TIMEOUT_SEC
from dataloader.app.queue.job import Released, ReleaseReason, Settlement
from dataloader.app.tracing import SpanAttributes, Tracer
from dataloader.pipelines.contract import Pipelines, StopReason
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.dispatcher import Dispatcher
from dataloader.workers.key_locks import KeyLocks
from dataloader.workers.logs.writer import JobLogWriter
from dataloader.workers.outcome import Outcome
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.settler import Settler

_log = log.get(__name__)
_FORCED_TIMEOUT_SEC = 0.5  # in place of the other timeouts after `stop_now`
_KILL_TIMEOUT_SEC = 6.0  # for killed processes to end, and their sessions on all servers
_NO_GRACES: Mapping[str, float] = {}
_JOIN_SLICE_SEC = 0.05  # how often a stop checks whether `stop_now` was called


class Worker(threading.Thread):
    """Waits for an attempt, runs it, submits its outcome to the settler, and so on until the dispatcher stops."""

    def __init__(
        self,
        name: str,
        queue: str,
        *,
        dispatcher: Dispatcher,
        settler: Settler,
        pipelines: Pipelines,
        logs: JobLogWriter,
        process_name: str,
        on_crash: Callable[[str], None],
        tracer: Tracer | None,
        registered: threading.Event,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.current_attempt: Attempt | None = None  # set by the thread, read by any, as the next
        self.last_ended_at = clock()
        self._dispatcher, self._settler, self._pipelines, self._logs = dispatcher, settler, pipelines, logs
        self._process_name, self._on_crash, self._tracer = process_name, on_crash, tracer
        self._registered = registered  # without a row the death of the process could not be proved
        self._buffer = dispatcher.queues[queue]

    def run(self) -> None:
        try:
            self._registered.wait()
            while (attempt := self._dispatcher.next_attempt(self._buffer)) is not None:
                self.current_attempt = attempt
                self._run_attempt(attempt)
                self.last_ended_at = clock()
                self.current_attempt = None
        except BaseException:
            _log.exception("worker_thread.crashed", worker=self.name)
            self._on_crash(self.name)

    def _run_attempt(self, attempt: Attempt) -> None:
        bound = log.bind(lambda: self._log_fields(attempt))
        try:
            if log.file_logging_enabled():
                log.metric("job.started")
                log.audit("job.started")
            outcome = self._run(attempt) if self._tracer is None else self._run_traced(attempt, self._tracer)
        finally:
            log.unbind(bound)
        if self._logs.has_attempts:
            self._logs.finish(attempt.job_id, attempt.attempt)
        self._settler.submit(attempt, outcome)
        if attempt.started_at is not None and attempt.ended_at is not None:
            self._buffer.record_run(attempt.ended_at - attempt.started_at)

    def _log_fields(self, attempt: Attempt) -> dict[str, Any]:
        job = attempt.job
        return {
            "job": job.id_text, "run": job.run_text, "attempt": job.attempt, "task": job.task, "queue": job.queue,
            "worker": self._process_name,
        }  # fmt: skip

    def _run(self, attempt: Attempt) -> Outcome:
        with self._logs.capture.output_of(attempt):
            return attempt.run(self._pipelines.get(attempt.job.task))

    def _run_traced(self, attempt: Attempt, tracer: Tracer) -> Outcome:
        """Run the attempt as a span of the trace of the job's trigger."""
        job = attempt.job
        attributes: SpanAttributes = {
            "dataloader.job_id": str(job.id),
            "dataloader.queue": job.queue,
            "dataloader.task": job.task,
            "dataloader.attempt": job.attempt,
        }
        wait_span = tracer.record_wait_span(job.traceparent, max(0.0, job.waited_sec), attributes)
        with tracer.attempt_span(wait_span, attributes) as span:
            attempt.traceparent = span.traceparent or job.traceparent
            attempt.job = job._replace(traceparent=attempt.traceparent)
            outcome = self._run(attempt)
            status = outcome.status.value if isinstance(outcome, Settlement) else type(outcome).__name__.lower()
            span.end(status, outcome.error if isinstance(outcome, Settlement) else None)
        return outcome


class WorkerStopper:
    """Stops the worker threads of a pool: attempts end by themselves, are asked to stop, and are released."""

    def __init__(
        self,
        workers: Sequence[Worker],
        running: RunningAttempts,
        settler: Settler,
        key_locks: KeyLocks,
        *,
        stop_wait_sec: float,
    ) -> None:
        self._workers, self._running, self._settler, self._key_locks = workers, running, settler, key_locks
        self._stop_wait_sec = stop_wait_sec
        self._stop_now_requested = threading.Event()
        self._stops_at: float | None = None  # in place of the grace; set by any thread

    @property
    def timeout_sec(self) -> float:
        """How long to wait for attempts that were asked to stop."""
        forced = self._stop_now_requested.is_set()
        return min(_FORCED_TIMEOUT_SEC, self._stop_wait_sec) if forced else self._stop_wait_sec

    def stop_now(self) -> None:
        """Ask all attempts to stop; a `stop` in progress does not wait for the end of the grace period."""
        self._stop_now_requested.set()
        for attempt in self._running.all():
            attempt.stop(StopReason.SHUTDOWN)

    def stop_within(self, sec: float) -> None:
        """Have a `stop`, in progress or to come, ask all attempts to stop in so many seconds."""
        self._stops_at = clock() + sec

    def stop(self, grace_sec: float, grace_by_queue: Mapping[str, float] = _NO_GRACES) -> bool:
        """Wait for all worker threads, or stop their attempts. Return False if some thread still runs.

        Its job is released, but its key stays locked until this process ends.
        """
        began = clock()

        def grace_left_sec() -> float:
            """Ask the attempts to stop whose grace has ended; return the rest of the longest one, from the start."""
            if self._stop_now_requested.is_set():
                return 0.0
            for attempt in self._running.all():
                own = began + grace_by_queue.get(attempt.job.queue, grace_sec)
                attempt.stop_signal.stops_at = own if self._stops_at is None else self._stops_at
                if attempt.stop_signal.stops_at <= clock() and attempt.stop_reason is None:
                    attempt.stop(StopReason.SHUTDOWN)
            if self._stops_at is not None:
                return self._stops_at - began
            return max(grace_sec, *grace_by_queue.values()) if grace_by_queue else grace_sec

        if self._join(grace_left_sec):
            return True
        for attempt in self._running.all():
            attempt.stop(StopReason.SHUTDOWN)
        if self._join(lambda: self.timeout_sec) or self._kill_processes():
            return True
        stuck = [a for worker in self._workers if worker.is_alive() and (a := worker.current_attempt) is not None]
        _end_sessions(stuck)
        for attempt in stuck:
            _log.error("job.stop_timeout", job=str(attempt.job.id), task=attempt.job.task)
            self._key_locks.discard([attempt])  # forgotten, not unlocked: the session keeps it
            self._settler.submit(attempt, attempt.complete(Released(ReleaseReason.SHUTDOWN)))
        return False

    def _join(self, timeout_sec: Callable[[], float]) -> bool:
        """Wait for all worker threads; return False on timeout. The timeout may shrink meanwhile."""
        began = clock()
        while alive := [worker for worker in self._workers if worker.is_alive()]:
            if clock() - began >= timeout_sec():
                return False
            alive[0].join(_JOIN_SLICE_SEC)
        return True

    def _kill_processes(self) -> bool:
        """Kill isolated processes, which must not outlive this one. Return whether no worker thread is left."""
        isolated = [
            (worker, a) for worker in self._workers if (a := worker.current_attempt) is not None and not a.in_thread
        ]
        for _, attempt in isolated:
            attempt.stop_signal.kill()
        timeout_sec = _FORCED_TIMEOUT_SEC if self._stop_now_requested.is_set() else _KILL_TIMEOUT_SEC
        deadline = clock() + timeout_sec
        for worker, _ in isolated:
            worker.join(max(0.0, deadline - clock()))
        return not any(worker.is_alive() for worker in self._workers)


def _end_sessions(attempts: Sequence[Attempt]) -> None:
    """End the sessions of attempts before they are released: their threads go on, their statements must not."""
    threads = [threading.Thread(target=attempt.end_sessions, daemon=True) for attempt in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * END_SESSIONS_TIMEOUT_SEC + 1)
