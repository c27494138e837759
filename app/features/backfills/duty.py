"""Makes the jobs of backfills, some ahead of need, and ends those whose slices have all ended."""

from __future__ import annotations

from itertools import islice
from typing import Any

from dataloader.app import log
from dataloader.app.db.statements import Executor
from dataloader.app.errors import BackfillEnded
from dataloader.app.features.backfills.rows import Backfill, Backfills, BackfillState, is_selected, limit_of
from dataloader.app.features.backfills.template import definition_of, job_of
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.partitions import Slice, partitions_from_json
from dataloader.pipelines.schedule_definition import ScheduleDefinition, slice_live_key
from dataloader.workers.duties import Duty, DutyContext

_log = log.get(__name__)
_INTERVAL_SEC = 2.0
_STEP, _MAX_AHEAD, _LOOK_AHEAD = 500, 1_000, 5_000  # jobs; jobs that have not ended; slices
_LIVE = frozenset({Status.QUEUED.value, Status.RUNNING.value})


class BackfillsDuty:
    """One step of each open backfill in turn."""

    def __init__(self, executor: Executor, tasks: Pipelines, *, default_lease_sec: int) -> None:
        self._backfills, self._tasks, self._default_lease_sec = Backfills(executor), tasks, default_lease_sec

    def run(self) -> float | None:
        """Return 0.0 if there is more to make at once."""
        has_more = [self._step(backfill) for backfill in self._backfills.newest(is_open=True)]
        self._backfills.prune_limits()
        return 0.0 if any(has_more) else None

    def _step(self, backfill: Backfill) -> bool:
        if backfill.state is not BackfillState.OPEN or self._has_failed_too_often(backfill):
            return False
        live = self._backfills.count_jobs(backfill.backfill_id)
        if live >= _MAX_AHEAD:
            return False
        partitions = partitions_from_json(backfill.slices)
        following = partitions.slices(backfill.cursor, newest_first=backfill.newest_first)
        selected: list[Slice] = []
        last, looked_at = None, 0
        while looked_at < _LOOK_AHEAD and len(selected) < (wanted := min(_STEP, _MAX_AHEAD - live)):
            considered = list(islice(following, wanted - len(selected)))
            if not considered:
                break
            states = self._backfills.states_of(backfill.task, [part.key for part in considered])
            selected += [
                part for part in considered if is_selected(backfill.mode, *states.get(part.key, (None, False)))
            ]
            last, looked_at = considered[-1], looked_at + len(considered)
        if last is None:
            if live == 0 and not _LIVE & backfill.by_state.keys():  # and no job of others that it waits for
                self._end(backfill)
            return False
        passed = looked_at - len(selected)
        try:
            definition = definition_of(backfill)
            requests = [
                backfill_job(backfill, definition, part, self._tasks, self._default_lease_sec) for part in selected
            ]
        except (ValueError, TypeError) as error:
            self._pause(backfill, str(error))
            return False
        step = self._backfills.make(backfill, last.key, requests, passed=passed)
        if step is None:
            return True
        if step.problem is not None:
            _log.warning("backfill.paused", backfill_id=str(backfill.backfill_id), reason=step.problem)
            return False
        _log.info(
            "backfill.jobs_made",
            backfill_id=str(backfill.backfill_id), created=step.created, adopted=step.adopted, passed=passed,
        )  # fmt: skip
        return True

    def _has_failed_too_often(self, backfill: Backfill) -> bool:
        allowed = backfill.stop_after_failures
        if allowed is None or self._backfills.bad_ends_in_row(backfill, limit=allowed) < allowed:
            return False
        self._pause(backfill, f"{allowed} slices in a row did not succeed")
        return True

    def _pause(self, backfill: Backfill, reason: str) -> None:
        _log.warning("backfill.paused", backfill_id=str(backfill.backfill_id), reason=reason)
        self._change(backfill, BackfillState.PAUSED, reason)

    def _end(self, backfill: Backfill) -> None:
        _log.info("backfill.done", backfill_id=str(backfill.backfill_id))
        self._change(backfill, BackfillState.DONE)

    def _change(self, backfill: Backfill, state: BackfillState, reason: str | None = None) -> None:
        try:
            self._backfills.change(backfill.backfill_id, state=state, reason=reason)
        except BackfillEnded:  # canceled meanwhile
            return


def backfill_job(
    backfill: Backfill, definition: ScheduleDefinition, part: Slice, tasks: Pipelines, default_lease_sec: int
) -> dict[str, Any]:
    """The request of the job of a slice. Raises ValueError."""
    lock_key = slice_live_key(backfill.task, part.key)
    job = job_of(definition, part, tasks, default_lease_sec=default_lease_sec, lock_key=lock_key)
    return job | {
        "backfill_id": str(backfill.backfill_id),
        "producer": f"backfill:{backfill.backfill_id}",
        "limits": {**(job.get("limits") or {}), limit_of(backfill.backfill_id): 1},
    }


def create_duties(context: DutyContext) -> list[Duty]:
    backfills = BackfillsDuty(context.executor, context.tasks, default_lease_sec=context.options.default_lease_sec)
    return [Duty("backfills", _INTERVAL_SEC, backfills.run, has_work="has_backfills")]
