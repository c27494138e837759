"""A field of a job is declared once: these tests name each place that a new field still has to reach."""

from __future__ import annotations

import re
from dataclasses import fields
from uuid import uuid4

from dataloader._job_fields import JOB_FIELDS
from dataloader.app.db.schema import schema_text
from dataloader.app.db.schema_statements import schema_statements
from dataloader.app.db.statements import statements
from dataloader.app.queue.job import Job, NewJob, Status
from dataloader.app.queue.job_records import JobStatus
from dataloader.app.queue.jobs import JobQueue

# Columns that only statements and triggers use, and what a request leaves to them.
INTERNAL = {"wait_state", "unknown_task", "request_hash", "worker_id"}
BY_PROTOCOL = INTERNAL | {
    "job_id", "status", "attempt", "lease_expires_at", "heartbeat_at", "cancel_requested", "progress", "error",
    "created_at", "started_at", "finished_at", "run_id", "worker", "result", "traceback", "checkpoint", "crashes",
    "waits_on", "graph_id", "graph_key", "skipped", "debounce_key", "throttle_key", "error_fingerprint",
    "warnings",
}  # fmt: skip
NEW_JOB = set(JOB_FIELDS)
NO_COLUMN = {name for name, field in JOB_FIELDS.items() if not field.has_column} - {"need"}


def job_columns(queue_db) -> set[str]:
    query = "SELECT attname FROM pg_attribute WHERE attrelid = 'dl_jobs'::regclass AND attnum > 0 AND NOT attisdropped"
    return {name for (name,) in queue_db.sql(query)}


def function_parameters(queue_db, name: str) -> set[str]:
    return set(queue_db.fetch_row("SELECT proargnames FROM pg_proc WHERE proname = %s", name))


def test_every_column_is_a_field_of_the_job_or_internal(queue_db):
    job = {"job_id" if field.name == "id" else field.name for field in fields(Job)}

    assert job_columns(queue_db) - INTERNAL == job


def test_every_column_is_requested_or_set_by_the_protocol(queue_db):
    assert job_columns(queue_db) - BY_PROTOCOL == NEW_JOB - NO_COLUMN


def test_get_job_selects_the_fields_in_their_order():
    select = statements("public")["get_job"].text.partition("FROM")[0].removeprefix("SELECT")
    columns = re.findall(
        r"(?:dl_json_text\()?(\w+)(?:::text|, \d+\))?(?:,|$)",
        re.sub(
            r'"public"\.|dl_last_heartbeat\(.+?(?=heartbeat_at)|dl_current_progress\(.+?(?=progress)',
            "",
            select.strip(),
        )
        .replace("heartbeat_at)", "heartbeat_at")
        .replace("progress),", "progress,"),
    )

    assert columns == ["job_id" if field.name == "id" else field.name for field in fields(Job)]


def test_status_has_the_values_of_the_job(queue_db):
    running, failed = queue_db.enqueue_and_claim("a"), queue_db.enqueue_and_claim("b")
    queue_db.save_progress(running, {"done": 1})
    queue_db.settle(failed, Status.FAILED)

    for job_id in (running.id, failed.id, queue_db.enqueue("c")):
        job, status = queue_db.queue.get(job_id), queue_db.queue.status(job_id)
        assert vars(status) == {field.name: getattr(job, field.name) for field in fields(JobStatus)}
    assert queue_db.queue.status(running.id).progress == {"done": 1}
    assert queue_db.queue.status(uuid4()) is None


def test_every_requested_field_is_written_by_enqueue(queue_db):
    requested = {
        "queue": "q", "task": "t", "lock_key": "k", "args": {"a": 1}, "idempotency_key": "i", "partition_key": "p",
        "priority": 7, "available_at": queue_db.fetch_row("SELECT now() + interval '1 h'"), "max_attempts": 3,
        "lease_ttl_sec": 90, "producer": "p", "consumer_group": "g", "live_key": "l", "time_limit_sec": 5,
        "retry": {"kind": "none"}, "parent_id": uuid4(), "webhook": {"url": "https://x"}, "traceparent": "00-1",
        "limits": {"warehouse": 2}, "fair_key": "acme", "tags": ["finance", '"{,}"'],
        "expires_at": queue_db.fetch_row("SELECT now() + interval '2 h'"),
        "schedule_id": uuid4(), "backfill_id": uuid4(), "logical_at": queue_db.fetch_row("SELECT now()"),
        "interval_start": queue_db.fetch_row("SELECT now() - interval '1 day'"),
        "interval_end": queue_db.fetch_row("SELECT now() + interval '1 h'"),
    }  # fmt: skip
    assert set(requested) == NEW_JOB - (NO_COLUMN | {"need"}), "the new field has a value here"

    job = queue_db.job(JobQueue(queue_db.session).enqueue(NewJob(**requested)).job_id)

    assert {name: getattr(job, name) for name in requested} == requested


def test_every_requested_field_is_accepted_by_sql_functions(queue_db):
    columns = "SELECT attname FROM pg_attribute WHERE attrelid = 'dl_enqueue_request'::regclass AND attnum > 0"
    request = {name for (name,) in queue_db.sql(columns)}

    assert request - {"n", "job_id", "field", "problem"} == NEW_JOB
    assert function_parameters(queue_db, "dl_enqueue") >= NEW_JOB - {
        "webhook",
        "traceparent",
        "schedule_id",
        "backfill_id",
    }
    makers = ("function dl_create_plain_jobs", "function dl_create_jobs")
    source = "\n".join(s.text for s in schema_statements(schema_text()) if s.object_name in makers)
    inserts = [set(re.findall(r"\w+", columns)) for columns in re.findall(r"INSERT INTO dl_jobs \(([^)]*)\)", source)]
    without = {"idempotency_key", "live_key"}  # the first INSERT is for requests without these
    parents = NO_COLUMN | {"need"}  # dl_set_parents writes it
    assert [NEW_JOB - columns for columns in inserts] == [without | parents, parents]
