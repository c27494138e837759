"""One thread: wait, run, hand the end over to be settled, and wait again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from app import log
from app.queue.job import Settlement
from app.traces import Facts, Quiet, Tracer
from pipelines.contract import Pipelines
from workers.attempt import Attempt
from workers.desk import Desk
from workers.joblog import JobLogs
from workers.outcome import Ending
from workers.settler import Settler

_log = log.get(__name__)


class Worker:
    def __init__(
        self,
        name: str,
        queue: str,
        *,
        desk: Desk,
        settler: Settler,
        pipelines: Pipelines,
        logs: JobLogs,
        process: str,
        died: Callable[[str], None],
        tracer: Tracer,
        registered: threading.Event,
    ) -> None:
        self.name, self.queue = name, queue
        self.current: Attempt | None = None  # set by the thread, read by anyone
        self._desk, self._settler, self._pipelines, self._logs = desk, settler, pipelines, logs
        self._process, self._died, self._tracer = process, died, tracer
        self._registered = registered  # the death of a process without a row could not be proved: it claims nothing
        self._quiet = isinstance(tracer, Quiet)
        self._line = desk.lines[queue]
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the end; False: it still runs."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._registered.wait()
            while (attempt := self._desk.next(self._line)) is not None:
                self.current = attempt
                self._attempt(attempt)
                self.current = None
        except BaseException:
            _log.exception("worker.died", worker=self.name)
            self._died(self.name)

    def _attempt(self, attempt: Attempt) -> None:
        bound = log.bind(lambda: self._bound(attempt))
        try:
            if log.lines_are_kept():
                log.metric("job.started")
                log.audit("job.started")
            end = self._run(attempt) if self._quiet else self._run_traced(attempt, self._tracer)
        finally:
            log.unbind(bound)
        self._logs.ended(attempt)
        self._settler.write(attempt, end)
        if attempt.began is not None and attempt.ended is not None:
            self._line.ran(attempt.ended - attempt.began)

    def _bound(self, attempt: Attempt) -> dict[str, Any]:
        job = attempt.job
        return {
            "job": job.id_text, "run": job.run_text, "attempt": job.attempt, "task": job.task, "queue": job.queue,
            "worker": self._process,
        }  # fmt: skip

    def _run(self, attempt: Attempt) -> Ending:
        with self._logs.capturing(attempt):
            return attempt.run(self._pipelines.get(attempt.job.task))

    def _run_traced(self, attempt: Attempt, tracer: Tracer) -> Ending:
        """As a part of the trace of whoever asked for the job."""
        job = attempt.job
        facts: Facts = {
            "dataloader.job_id": str(job.id),
            "dataloader.queue": job.queue,
            "dataloader.task": job.task,
            "dataloader.attempt": job.attempt,
        }
        before = tracer.waited(job.traceparent, max(0.0, job.waited_sec), facts)
        with tracer.trying(before, facts) as part:
            attempt.traced_as = part.traceparent
            end = self._run(attempt)
            status = end.status.value if isinstance(end, Settlement) else type(end).__name__.lower()
            part.end(status, end.error if isinstance(end, Settlement) else None)
        return end
