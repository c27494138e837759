"""That a backfill of a task is paused."""

from __future__ import annotations

from collections.abc import Iterator

from dataloader.app.acts.reasons import ExplanationReason, ReasonCode, Reasons
from dataloader.app.features.backfills.rows import Backfill, Backfills, BackfillState


class BackfillReasons(Reasons):
    def of_task(self, task: str) -> Iterator[ExplanationReason]:
        for backfill in Backfills(self.executor).newest(task=task, is_open=True):
            if backfill.state is BackfillState.PAUSED:
                yield backfill_reason(backfill)

    def queues_of_task(self, task: str, default_queue: str) -> set[str]:
        return {backfill.queue for backfill in Backfills(self.executor).newest(task=task, is_open=True)}


def backfill_reason(backfill: Backfill) -> ExplanationReason:
    by = f" by {backfill.changed_by}" if backfill.changed_by else ""
    reason = f": {backfill.reason}" if backfill.reason else ""
    message = f"The backfill {backfill.backfill_id} has been paused{by}{reason}."
    details = {"backfill_id": backfill.backfill_id, "by": backfill.changed_by, "reason": backfill.reason}
    return ExplanationReason(ReasonCode.BACKFILL_PAUSED, message, details)
