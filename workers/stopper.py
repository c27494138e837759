"""Escalates the stop of attempts in threads, one step after each grace period.

An isolated process is stopped by the thread that watches it (`isolation/child.py`), with signals that cannot fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dataloader.app import log
from dataloader.pipelines.contract import StopReason
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.stop_signal import StopStep
from dataloader.workers.threads import BackgroundThread

_log = log.get(__name__)
_CHECK_INTERVAL_SEC = 0.25
_IDLE_INTERVAL_SEC = 1.0  # while nothing runs: an attempt that starts meanwhile is looked at so much later
_STEPS = (StopStep.REQUEST, StopStep.CANCEL_QUERY, StopStep.INTERRUPT, StopStep.TERMINATE_SESSION, StopStep.PENDING)


class StopEscalator:
    """Stops attempts that reach their time limit, and takes the next stop step where the last one did not help."""

    def __init__(
        self,
        running: RunningAttempts,
        *,
        record_pending: Callable[..., None],  # of JobQueue
        on_crash: Callable[[str], None],
    ) -> None:
        self._running, self._record_pending = running, record_pending
        self._last_step_at: dict[str, float] = {}  # by run id
        self.thread = BackgroundThread("stop-escalation", self.run_once, on_crash=on_crash)

    def run_once(self) -> float:
        now = clock()
        running = [a for a in self._running.all() if a.started_at is not None and a.ended_at is None]
        for attempt in running:
            limit = attempt.time_limit
            if limit is not None and attempt.started_at is not None and now - attempt.started_at > limit:
                attempt.stop(StopReason.TIME_LIMIT)
            if attempt.in_thread and attempt.stop_reason is not None and not attempt.is_stopping_offloads:
                if attempt.stop_reason is StopReason.LEASE_LOST and not attempt.refuses_sessions:
                    self._end_sessions(attempt)  # at once: another worker may start the job when the lease runs out
                self._escalate(attempt, now)
        if self._last_step_at:
            run_ids = {attempt.job.run_text for attempt in running}
            self._last_step_at = {run: at for run, at in self._last_step_at.items() if run in run_ids}
        return _CHECK_INTERVAL_SEC if running else _IDLE_INTERVAL_SEC

    def _escalate(self, attempt: Attempt, now: float) -> None:
        run_id = attempt.job.run_text
        since = self._last_step_at.setdefault(run_id, attempt.stop_signal.requested_at or now)
        last = attempt.stop_signal.step or StopStep.REQUEST
        if last is StopStep.PENDING or now - since < attempt.settings.stop_step_sec:
            return
        step = next(step for step in _STEPS[_STEPS.index(last) + 1 :] if _is_applicable(attempt, step))
        attempt.stop_signal.step, self._last_step_at[run_id] = step, now
        reason = str(attempt.stop_reason)
        _log.info("stop.escalated", stop_step=step, job=str(attempt.job.id), task=attempt.job.task, reason=reason)
        self._apply(attempt, step)

    def _apply(self, attempt: Attempt, step: StopStep) -> None:
        match step:
            case StopStep.CANCEL_QUERY if attempt.connections is not None:
                self._in_background(attempt.connections.cancel)
            case StopStep.INTERRUPT:
                attempt.interrupt()
            case StopStep.TERMINATE_SESSION:
                self._end_sessions(attempt)
            case _:
                self._end_sessions(attempt)
                self._give_up(attempt)

    def _end_sessions(self, attempt: Attempt) -> None:
        attempt.refuse_sessions()
        if attempt.connections is not None:
            self._in_background(attempt.end_sessions)

    def _give_up(self, attempt: Attempt) -> None:
        """Record that the thread does not stop: a thread cannot be ended from outside."""
        job, reason = attempt.job, str(attempt.stop_reason)
        _log.error("stop.pending", job=str(job.id), task=job.task, reason=reason)
        error = f"stop pending ({reason}): the pipeline does not react; only the end of its worker process will end it"
        self._in_background(lambda: self._record_pending(job, reason=reason, error=error))

    def _in_background(self, call: Callable[[], object]) -> None:
        """A call that waits for a server must not delay the stops and time limits of other attempts."""

        def run() -> None:
            try:
                call()
            except Exception as error:
                _log.warning("stop.failed", error=str(error))

        threading.Thread(target=run, name="stop-step", daemon=True).start()


def _is_applicable(attempt: Attempt, step: StopStep) -> bool:
    if step in (StopStep.CANCEL_QUERY, StopStep.TERMINATE_SESSION):
        return attempt.connections is not None and attempt.connections.in_use
    return step is not StopStep.INTERRUPT or attempt.options.interrupt
