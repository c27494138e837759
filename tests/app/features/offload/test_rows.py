"""Rows of offloads: only the run that owns the job moves the position in its log."""

from __future__ import annotations

from dataloader.app.features.offload.rows import NewOffload, Offloads
from dataloader.app.queue.job import ClaimedJob
from dataloader.app.queue.job_records import LogEntry, LogPosition
from tests.support.queue_fixture import QueueFixture


def intend(queue_db: QueueFixture, job: ClaimedJob) -> str:
    name = f"dl-{job.id}-1"
    Offloads(queue_db.session.execute).intend(
        NewOffload(
            name=name, job_id=job.id, run_id=job.run_id, call="1", number=1, engine="fake", address="", fingerprint="f",
            fence_token="t", timeout_sec=None, engine_timeout_sec=900, grace_sec=30, stop_on_shutdown=False,
            is_abandoned=False,
        )
    )  # fmt: skip
    return name


def test_late_position_of_a_lost_run_has_no_effect(queue_db: QueueFixture):
    run = queue_db.enqueue_and_claim()
    name = intend(queue_db, run)
    position = "SELECT log_position FROM dl_offloads"

    def write(run: ClaimedJob, line: str) -> str:
        entry = LogEntry(run.id, run.attempt, 0.0, "INFO", "fake", line, 0)
        queue_db.queue.write_logs([entry], [LogPosition(name, str(run.run_id), line)])
        return str(queue_db.fetch_row(position))

    assert write(run, "1") == "1"
    queue_db.lose_attempt(run)
    (other,) = queue_db.claim()

    assert write(run, "9") == "1"
    assert write(other, "2") == "2"
    lines = [line for (line,) in queue_db.sql("SELECT line FROM dl_job_logs ORDER BY log_id")]
    assert lines == ["1", "9", "2"], "its lines are kept"
