"""A worker thread: waits for an attempt, runs it, submits its outcome to the settler, and waits again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from app import log
from app.queue.job import Settlement
from app.tracing import NoTracing, SpanAttributes, Tracer
from pipelines.contract import Pipelines
from workers.attempt import Attempt
from workers.dispatcher import Dispatcher
from workers.logs.writer import JobLogWriter
from workers.outcome import Outcome
from workers.settler import Settler

_log = log.get(__name__)


class Worker:
    """Runs one attempt at a time until the dispatcher stops."""

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
        tracer: Tracer,
        registered: threading.Event,
    ) -> None:
        self.name, self.queue = name, queue
        self.current_attempt: Attempt | None = None  # set by the thread, read by any
        self._dispatcher, self._settler, self._pipelines, self._logs = dispatcher, settler, pipelines, logs
        self._process_name, self._on_crash, self._tracer = process_name, on_crash, tracer
        self._registered = registered  # without a row the death of the process could not be proved
        self._tracing_off = isinstance(tracer, NoTracing)
        self._buffer = dispatcher.queues[queue]
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; return False if it still runs."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run_loop(self) -> None:
        try:
            self._registered.wait()
            while (attempt := self._dispatcher.next_attempt(self._buffer)) is not None:
                self.current_attempt = attempt
                self._run_attempt(attempt)
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
            outcome = self._run(attempt) if self._tracing_off else self._run_traced(attempt, self._tracer)
        finally:
            log.unbind(bound)
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
        with self._logs.capture.output_of(attempt.job_id, attempt.attempt):
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
            attempt.job = job._replace(traceparent=span.traceparent or job.traceparent)
            outcome = self._run(attempt)
            status = outcome.status.value if isinstance(outcome, Settlement) else type(outcome).__name__.lower()
            span.end(status, outcome.error if isinstance(outcome, Settlement) else None)
        return outcome
