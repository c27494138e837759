"""Which action of the model each statement is. A statement that touches what the model has is in one of the tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dataloader.app.db.statements import statements
from dataloader.pipelines import effects

_ROOT = Path(__file__).parents[2]
_TABLES = "dl_jobs|dl_heartbeats|dl_progress|dl_job_targets"
_WRITES = re.compile(rf'\b(?:UPDATE|INSERT INTO|DELETE FROM)\s+(?:"public"\.)?({_TABLES})\b')
_LOCKS_ROWS = re.compile(r'"public"\.dl_jobs\b[^;]*\bFOR (?:NO KEY UPDATE|UPDATE|SHARE)\b')
_LOCKS_KEYS = re.compile(r"pg_(?:try_)?advisory_(?:un)?lock\(")
_FUNCTION = re.compile(r"^CREATE OR REPLACE FUNCTION (\w+)\((.*?)(?=^CREATE |^-- ──|\Z)", re.MULTILINE | re.DOTALL)

# Statement, function of schema.sql, or constant of pipelines/effects.py -> action, or several.
ACTION_OF: Mapping[str, str] = {
    "enqueue": "enqueues", "enqueue_batch": "enqueues", "fan_out": "enqueues", "enqueue_graph": "enqueues",
    "fire_schedules": "enqueues", "record_firing": "enqueues",
    "make_backfill": "enqueues, reads_backfill, makes_backfill",
    "dl_create_jobs": "enqueues", "dl_create_plain_jobs": "enqueues", "dl_jobs_inserted": "enqueues",
    "dl_enqueue_graph": "enqueues", "dl_set_parents": "enqueues", "dl_edges_added": "enqueues",
    "claim": "claims, claim_reads, claim_writes", "prefetch": "claims",
    "dl_claim": "claims, claim_reads, claim_writes", "dl_apply_limits": "claims, claim_reads, claim_writes",
    "lock_keys": "recovers_claim, locks_again", "unlock_keys": "settles, releases",
    "settle": "settles, end_reads, end_writes", "dl_settle": "settles, end_reads, end_writes", "release": "releases",
    "release_waiting": "releases", "release_for_offloads": "releases", "beat": "beats", "renew": "renews",
    "save_progress": "saves_progress",
    "disown": "disowns", "reap": "reaps", "dl_unblock_next": "settles, releases, reaps, cancels, repairs_blocked",
    "unblock_keys": "repairs_blocked", "repair_blocked": "repairs_blocked", "cancel": "cancels",
    "dl_cancel_jobs": "cancels", "cancel_graph": "cancels", "bulk_cancel": "cancels", "expire": "cancels",
    "dl_retry_jobs": "retries", "retry": "retries", "retry_graph": "retries", "bulk_retry": "retries",
    "dl_jobs_updated": "updates_by_hand, cancels",
    "assert_owned": "commits_effect", "save_checkpoint": "commits_effect", "set_limit": "sets_limit",
    "delete_limit": "sets_limit", "set_breaker": "sets_limit", "delete_breaker": "sets_limit",
    "probe_breakers": "sets_limit", "wake_limited": "sweeps_limits",
    "dl_wake_limited": "sweeps_limits, settles, sets_limit", "dl_decide_children": "settles, end_reads, end_writes",
    "dl_graph_job_changed": "settles, end_writes", "draw_fence": "claims_target", "dl_draw_fence": "claims_target",
    "_INSERT_ROW": "claims_target", "_LOCK_ROW": "claims_target", "_RAISE_FENCE": "claims_target",
    "_REQUIRE_FENCE": "opens_target_transaction, commits_target_transaction",
    "_WRITE_POSITION": "commits_target_transaction",
}  # fmt: skip

# Statements that are no action, and why the promises do not need them to be.
OUTSIDE: Mapping[str, str] = {
    "acquire_maintenance_lock": "one leader at a time is a matter of speed: every duty may run twice",
    "await_offloads": "a job that waits for an offload is a queued job with another wait state",
    "wake_offload_job": "a job that waits for an offload is a queued job with another wait state",
    "claim_offload_polls": "offloads are rows of their own, with the campaign's rules for them",
    "record_offload_progress": "progress of a job that no run owns, while an offload does its work",
    "bulk_delete": "deletes jobs that have ended", "delete_finished": "deletes jobs that have ended",
    "delete_job": "deletes jobs that have ended", "dl_graph_jobs_deleted": "deletes jobs that have ended",
    "bulk_reprioritise": "the order of claims is no promise of the model",
    "edit_job": "changes values of a queued job that no action reads",
    "dl_debounce": "changes values of a queued job that no action reads",
    "change_backfill": "sets the limit of a backfill", "create_backfill": "sets the limit of a backfill",
    "retry_backfill": "sets the limit of a backfill", "prune_backfill_limits": "sets the limit of a backfill",
    "defer_unknown_tasks": "a job that is not due is as good as one that no process claims",
    "restore_unknown_tasks": "a job that is not due is as good as one that no process claims",
    "promote_overdue": "a job that is not due is as good as one that no process claims",
    "dl_promote_due": "a job that is not due is as good as one that no process claims",
    "decide_left": "what a decision leaves, because a row was locked or there were too many children",
    "lock_awaited": "jobs that wait for jobs while they run: graphs are fixed in the model",
    "wait_for_jobs": "jobs that wait for jobs while they run: graphs are fixed in the model",
    "dl_wait_for_jobs": "jobs that wait for jobs while they run: graphs are fixed in the model",
    "deregister_worker": "deletes heartbeats of a process that holds no job",
    "prune_heartbeats": "deletes heartbeats that count for nothing",
    "mark_target_rows_deleted": "deletes rows of targets a day after their jobs ended",
    "prune_job_targets": "deletes rows of targets a day after their jobs ended",
    "demo_jobs": "writes the past of the demo, past all triggers",
    "demo_start_earlier": "writes the past of the demo, past all triggers",
    "demo_schedules": "writes the past of the demo, past all triggers",
    "record_late_heartbeat": "an event that changes nothing", "record_stop_pending": "an event that changes nothing",
    "dl_record_reports": "data checks and datasets, written by the settlement",
}  # fmt: skip


def touching() -> set[str]:
    """The statements, functions and constants that write or lock what the model has."""
    bodies = {name: re.sub(r"--.*", "", body) for name, body in _FUNCTION.findall(_schema())}
    writing = {name for name, body in bodies.items() if _WRITES.search(body)}
    calling = set(writing)
    while more := {name for name, body in bodies.items() if name not in calling and _calls(body, calling)}:
        calling |= more
    return (
        writing
        | set(_touching_statements(calling))
        | {n for n, value in vars(effects).items() if _is_of_target(n, value)}
    )


def _touching_statements(functions: set[str]) -> Iterator[str]:
    for name, statement in statements("public").items():
        text = statement.text
        if any(pattern.search(text) for pattern in (_WRITES, _LOCKS_ROWS, _LOCKS_KEYS)) or _calls(text, functions):
            yield name


def _calls(text: str, functions: set[str]) -> bool:
    return not functions.isdisjoint(re.findall(r"\b(dl_\w+)\"?\(", text))


def _is_of_target(name: str, value: object) -> bool:
    return name.isupper() and isinstance(value, str) and "{table}" in value


def _schema() -> str:
    return (_ROOT / "schema.sql").read_text(encoding="utf-8")
