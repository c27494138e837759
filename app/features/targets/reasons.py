"""That a job waits for a transaction in a target, and that what it writes to one is not fenced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataloader.app.acts.reasons import ExplanationReason, ReasonCode, Reasons, WaitingJob
from dataloader.app.db.statements import Executor
from dataloader.app.features.targets.rows import JobTarget, JobTargets
from dataloader.app.queue.job import Job
from dataloader.pipelines.effects import STILL_OPEN

_WAIT_SEC = 1.5  # for the target: pages show reasons


class TargetReasons(Reasons):
    def __init__(self, executor: Executor, options: Any = None) -> None:
        super().__init__(executor, options)
        self._targets = JobTargets(executor, options)

    def of_job(self, waiting: WaitingJob) -> Iterator[ExplanationReason]:
        """That the last attempt was released because a transaction of the one before it is open in a target."""
        error = waiting.job.error
        if error is not None and STILL_OPEN in error:
            for target in self._targets.of_job(waiting.job.id, wait_sec=_WAIT_SEC):
                if f"{STILL_OPEN} {target.target!r}" in error:
                    yield open_transaction_reason(target)

    def of_running(self, job: Job) -> Iterator[ExplanationReason]:
        for target in self._targets.of_job(job.id, is_live=False):
            if target.problem is not None and target.run_id == job.run_id:
                message = (
                    f"What it writes to target {target.target!r} is not fenced: an attempt that has lost the job may "
                    f"go on writing there. The reason: {target.problem}."
                )
                details = {"target": target.target, "problem": target.problem}
                yield ExplanationReason(ReasonCode.TARGET_NOT_FENCED, message, details)


def open_transaction_reason(target: JobTarget) -> ExplanationReason:
    session = target.holder
    details: dict[str, Any] = {"target": target.target, "session": None}
    if session is not None:
        details["session"] = session
        who = f" The job's row there is held by {session.description}."
    elif target.live is None:
        who = f" Who holds the job's row there is not known: {target.unread}." if target.unread else ""
    elif target.live.locked:
        who = " A prepared transaction holds the job's row there."
    else:
        who = " No session holds the job's row there any more."
    message = (
        f"The previous attempt's transaction was still open in target {target.target!r}, so the job was released "
        f"without using up an attempt.{who}"
    )
    return ExplanationReason(ReasonCode.TARGET_BUSY, message, details)
