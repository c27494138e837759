"""Deletes the rows in targets of jobs that need them no more: of those that succeeded a day ago, or were deleted.

The maintenance leader scans the oldest rows in batches, once an hour, and each batch is deleted by a short-lived thread
a target, so that a target that hangs delays nothing else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from uuid import UUID

from dataloader.app import log
from dataloader.app.features.targets.rows import ScannedRow, TargetRows
from dataloader.app.features.targets.server_rows import delete_rows
from dataloader.app.features.targets.servers import Inquiry, TargetServers
from dataloader.pipelines.portable import clock
from dataloader.workers.duties import HOURLY_SEC, PRUNE_BATCH, PRUNE_INTERVAL_SEC, Duty, DutyContext

_log = log.get(__name__)
_FIRST_DELAY_SEC = 120.0
_POLL_INTERVAL_SEC = 0.2
_SLICE_INTERVAL_SEC = 0.05
_STATEMENT_TIMEOUT_SEC = 5
_MAX_INQUIRY_SEC = 15.0
_MAX_ROWS_PER_RUN = 10_000
_MAX_SEC_PER_TARGET = 5.0  # of a run


def create_duties(context: DutyContext) -> list[Duty]:
    servers = context.options.features.get("targets") or TargetServers({})
    duty = TargetRowsDuty(TargetRows(context.executor), servers)
    return [Duty("target-rows", HOURLY_SEC, duty.run, first_delay_sec=_FIRST_DELAY_SEC)]


class TargetRowsDuty:
    """One run after another: first rows in targets are deleted, then what the queue has of them."""

    def __init__(self, rows: TargetRows, servers: TargetServers) -> None:
        self._rows, self._servers = rows, servers
        self._logged: dict[str, str] = {}  # by target: the problem of which a line was written
        self._run = _Run()

    def run(self) -> float | None:
        """Do one slice; return the seconds until the next, or None when the run has ended."""
        run = self._run
        if run.batches:
            self._finish_batches()
            return _POLL_INTERVAL_SEC if run.batches else _SLICE_INTERVAL_SEC
        if not run.is_scanned:
            self._scan()
            return _SLICE_INTERVAL_SEC
        run.pruned_to = self._rows.prune(run.pruned_to, limit=PRUNE_BATCH)
        if run.pruned_to is not None:
            return _SLICE_INTERVAL_SEC
        if run.deleted:
            _log.info("target_rows.deleted", targets=dict(run.deleted))
        self._run = _Run()
        return PRUNE_INTERVAL_SEC if run.has_more else None

    def _scan(self) -> None:
        """Read the next batch, and begin to delete what is due in it."""
        run = self._run
        scanned = self._rows.scan(run.scanned_to, limit=PRUNE_BATCH)
        run.scanned_to = scanned[-1] if scanned else None
        run.is_scanned = len(scanned) < PRUNE_BATCH
        due = defaultdict[str, dict[UUID, int]](dict)
        for row in scanned:
            if row.is_due and row.target not in run.skipped and self._servers.dsn_of(row.target) is not None:
                due[row.target][row.job_id] = row.fence
        for target, fences in due.items():
            run.batches[target] = _Batch(target, fences, self._servers)
        if sum(run.deleted.values()) + sum(map(len, due.values())) >= _MAX_ROWS_PER_RUN:
            run.has_more, run.is_scanned = run.has_more or not run.is_scanned, True

    def _finish_batches(self) -> None:
        run = self._run
        for target, batch in list(run.batches.items()):
            if not batch.is_done:
                continue
            del run.batches[target]
            run.spent_sec[target] += batch.spent_sec
            answer = batch.inquiry.answer
            self._log_problem(target, answer.problem)
            if answer.problem is not None:
                run.skipped.add(target)
                continue
            gone = {job_id: batch.fences[job_id] for job_id in answer.value}
            self._rows.mark_deleted(target, gone)
            run.deleted[target] += len(gone)
            if run.spent_sec[target] > _MAX_SEC_PER_TARGET:
                run.skipped.add(target)
                run.has_more = True

    def _log_problem(self, target: str, problem: str | None) -> None:
        """Write a line once for each problem, and when it has ended."""
        before = self._logged.pop(target, None)
        if problem is None:
            if before is not None:
                _log.info("target_rows.recovered", target=target)
            return
        self._logged[target] = problem
        if problem != before:
            detail = "rows of jobs that have ended stay there; they are deleted when it can be done"
            _log.warning("target_rows.not_deleted", target=target, error=problem, detail=detail)


class _Run:
    """What one run has done so far."""

    def __init__(self) -> None:
        self.scanned_to: ScannedRow | None = None
        self.is_scanned = False  # up to the last row, or as far as a run goes
        self.pruned_to: tuple[UUID, str] | None = None
        self.batches: dict[str, _Batch] = {}  # by target: those that are being deleted
        self.skipped: set[str] = set()  # targets that are left for the next run
        self.spent_sec = defaultdict[str, float](float)
        self.deleted = Counter[str]()  # rows by target
        self.has_more = False


class _Batch:
    """Rows that a thread deletes in a target."""

    def __init__(self, target: str, fences: Mapping[UUID, int], servers: TargetServers) -> None:
        self.fences = dict(fences)
        question = partial(delete_rows, target=target, fences=self.fences, timeout_sec=_STATEMENT_TIMEOUT_SEC)
        self.inquiry: Inquiry = servers.start(target, question)

    @property
    def is_done(self) -> bool:
        if not self.inquiry.done.is_set() and clock() - self.inquiry.started_at > _MAX_INQUIRY_SEC:
            self.inquiry.abort()
        return self.inquiry.done.is_set()

    @property
    def spent_sec(self) -> float:
        return self.inquiry.finished_at - self.inquiry.started_at
