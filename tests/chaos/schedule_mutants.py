"""Mutants of schedules and backfills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.chaos.mutant import FunctionEdit, Mutant, StatementEdit, replace_attribute


def _count_times_from_now() -> None:
    from datetime import timedelta

    from dataloader.app.features.schedules import duty as schedules

    def forgetful(timing: Any, *, last_at: Any, now: Any, **rules: Any) -> Any:
        return plan(timing, last_at=max(last_at, now - timedelta(seconds=1.2)), now=now, **rules)

    plan = replace_attribute(schedules, "plan_firings", forgetful)


def _fire_in_two_transactions() -> None:
    import time

    from dataloader.app.features.schedules.rows import Schedules

    def account_first(self: Schedules, batch: Any) -> Any:
        fire(self, [item | {"firings": [], "updates": []} for item in batch])
        time.sleep(0.4)
        return fire(self, [item | {"read_last_at": item["last_at"]} for item in batch])

    fire = replace_attribute(Schedules, "fire", account_first)


def _fire_from_every_process() -> None:
    from dataloader.app.features.schedules import duty as schedules
    from dataloader.workers import maintenance

    def without_key(*arguments: Any, **more: Any) -> Any:
        made = request(*arguments, **more)
        made.pop("idempotency_key")
        return made

    replace_attribute(maintenance, "_FOLLOW_INTERVAL_SEC", 0.0)
    replace_attribute(schedules, "_LATE_INTERVAL_SEC", 0.0)
    replace_attribute(schedules, "LATE_SEC", 0.0)
    replace_attribute(maintenance, "LATE_SEC", 0.0)
    request = replace_attribute(schedules, "scheduled_job", without_key)


def _make_backfills_from_every_process() -> None:
    from dataloader.app.queue.queues import QueueControl
    from dataloader.workers import maintenance

    def acquire_nothing(self: QueueControl) -> bool:
        return acquire(self) or True

    replace_attribute(maintenance, "_FOLLOW_INTERVAL_SEC", 0.0)  # heartbeats say that there is a leader
    replace_attribute(QueueControl, "is_maintenance_lock_held", lambda self: False)
    acquire = replace_attribute(QueueControl, "acquire_maintenance_lock", acquire_nothing)


SCHEDULE_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "schedule-counts-from-now",
        "the times of a schedule are counted from now, not from the last one that was accounted for",
        "schedules",
        patch=_count_times_from_now,
        expects=("time not fired",),
    ),
    Mutant(
        "schedule-fires-in-two-steps",
        "a time is accounted for in one transaction, and its job made in another",
        "schedules",
        patch=_fire_in_two_transactions,
        expects=("time not fired",),
    ),
    Mutant(
        "schedule-fires-without-guards",
        "every process fires; neither the last time nor the key of the firing nor that of the job keeps them apart",
        "schedules",
        patch=_fire_from_every_process,
        functions=[
            FunctionEdit(
                "dl_fire_schedules",
                r"(?s)\s+AND s\.last_at IS NOT DISTINCT FROM [^;]*;(.*?ON CONFLICT DO NOTHING;\s+)"
                r"CONTINUE WHEN NOT FOUND;",
                r";\1",
            )
        ],
        expects=("job without firing",),
    ),
    Mutant(
        "schedule-pause-not-asked",
        "a schedule fires whether it is paused or not",
        "schedules",
        edits=[
            StatementEdit("due_schedules", r"(next_at <= \(SELECT due_at FROM bound\)) AND paused_at IS NULL", r"\1")
        ],
        functions=[FunctionEdit("dl_fire_schedules", r"AND s\.paused_at IS NULL", "")],
        expects=("made while paused",),
    ),
    Mutant(
        "schedule-overlap-not-asked",
        "a schedule that leaves out times while its job has not ended does not look for that job",
        "schedules",
        functions=[
            FunctionEdit(
                "dl_fire_schedules", r"IF has_job OR EXISTS \(SELECT FROM dl_jobs j [^;]*? THEN", "IF false THEN"
            )
        ],
        expects=("overlapping scheduled jobs",),
    ),
    Mutant(
        "schedule-update-during-job-forgotten",
        "an update of a dataset is not recorded while a job of its schedule runs",
        "schedules",
        functions=[
            FunctionEdit(
                "dl_record_reports",
                r"(?s)WHERE NOT EXISTS \(SELECT FROM dl_dataset_updates u .*?SKIP LOCKED\)",
                "WHERE NOT EXISTS (SELECT FROM dl_jobs x WHERE x.schedule_id = s.schedule_id"
                " AND x.status IN ('queued', 'running'))",
            )
        ],
        expects=("update not answered",),
    ),
    Mutant(
        "slice-without-index",
        "nothing keeps two jobs of a slice apart",
        "backfills",
        schema_changes=["DROP INDEX dl_jobs_live_key_idx"],
        expects=("two live jobs of a slice",),
    ),
    Mutant(
        "slice-end-not-recorded",
        "the end of a job that did not succeed is not recorded in its slice",
        "backfills",
        functions=[
            FunctionEdit(
                "dl_record_slice",
                r"WHERE s\.job_id = excluded\.job_id OR",
                "WHERE s.job_id = excluded.job_id AND excluded.state = 'succeeded' OR",
            )
        ],
        expects=("slice state differs",),
    ),
    Mutant(
        "backfill-made-after-cancel",
        "the step that makes jobs of a backfill does not ask again whether it is open",
        "backfills",
        functions=[
            FunctionEdit(
                "dl_make_backfill",
                r"(PERFORM FROM dl_backfills b\s+WHERE b\.backfill_id = id) AND b\.state = 'open'",
                r"PERFORM pg_sleep(1.5); \1",
            )
        ],
        expects=("made while paused",),
    ),
    Mutant(
        "backfill-position-not-asked",
        "the step that makes jobs of a backfill does not ask whether another one has passed these slices",
        "backfills",
        functions=[
            FunctionEdit(
                "dl_make_backfill",
                r"(PERFORM FROM dl_backfills b\s+WHERE [^;]*?) AND b\.cursor IS NOT DISTINCT FROM read_cursor",
                r"PERFORM pg_sleep(0.5); \1",
            )
        ],
        patch=_make_backfills_from_every_process,
        expects=("incomplete backfill",),
    ),
)
