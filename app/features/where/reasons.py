"""That a statement of a running job waits for a lock, and what is different from the usual run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from dataloader.app.acts.reasons import ExplanationReason, ReasonCode, Reasons
from dataloader.app.db.statements import Executor
from dataloader.app.features.where.accounts import Accounts
from dataloader.app.features.where.locks import describe_lock, find_blocked, read_sessions
from dataloader.app.features.where.sampler_options import WhereOptions
from dataloader.app.features.where.usual import compare, usual_run
from dataloader.app.queue.job import Job

_MIN_LOCK_WAIT_SEC = 1.0  # shorter waits are ordinary
_TARGET_WAIT_SEC = 1.0  # pages show reasons


class WhereReasons(Reasons):
    def __init__(self, executor: Executor, options: Any = None) -> None:
        super().__init__(executor, options)
        self._servers, self._accounts = (options or WhereOptions()).servers, Accounts(executor)

    def of_running(self, job: Job) -> Iterator[ExplanationReason]:
        """Of the targets those are asked that the job or its task names."""
        servers = read_sessions(self.executor, self._servers, job, only_named=True, wait_sec=_TARGET_WAIT_SEC)
        for server, session in find_blocked(servers):
            if session.state_sec is not None and session.state_sec < _MIN_LOCK_WAIT_SEC:
                continue
            text = describe_lock(server, session)
            blockers = [asdict(blocker) for blocker in server.blockers]
            details = {"server": server.server, "session": asdict(session), "blockers": blockers}
            yield ExplanationReason(ReasonCode.SQL_BLOCKED, f"{text[:1].upper()}{text[1:]}.", details)
            break
        yield from self._of_account(job, "The attempt is already ")

    def of_ended(self, job: Job) -> Iterator[ExplanationReason]:
        """What is different from the usual run."""
        yield from self._of_account(job, "The last attempt was ")

    def _of_account(self, job: Job, beginning: str) -> Iterator[ExplanationReason]:
        account = next((found for found in self._accounts.of_job(job.id) if found.run_id == job.run_id), None)
        usual = None if account is None else usual_run(self._accounts.usual(job.task, except_job=job.id))
        if account is None or usual is None:
            return
        found = compare(account, usual)
        if found.is_slower:
            yield ExplanationReason(ReasonCode.SLOWER_THAN_USUAL, f"{beginning}{found.sentence}", asdict(found))
