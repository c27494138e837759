"""Mutants of claims, leases, settlements and the reaper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.chaos.mutant import FunctionEdit, Mutant, StatementEdit, replace_attribute

_KEY_TRANSACTION_LOCK = r"pg_advisory_xact_lock\(1684828526, hash\)"
_RUNNING_CONDITION = r"AND j\.status::text = 'running'"
_NO_LOOK_AT_KEY = (
    (r"row_number\(\) OVER \(PARTITION BY f\.lock_key[^>]*> 1\s+OR EXISTS \(.*?'running' OFFSET 0\)", "false"),
    (
        r"NOT EXISTS \(SELECT FROM dl_jobs r WHERE r\.lock_key BETWEEN f\.lock_key AND [^)]*'running' OFFSET 0\)",
        "true",
    ),
)
_NO_SESSION_LOCK = (r"pg_try_advisory_lock\(hashtext\(f\.lock_key\)::bigint\)", "true")
_NO_LATER_SESSION_LOCK = StatementEdit("lock_keys", r"pg_try_advisory_lock\(runs\.key_hash\)", "true")
_NO_KEY_LOCK_OF_CLAIM = (r"pg_try_advisory_xact_lock\(1684828526, hashtext\(c\.lock_key\)\)", "true")
_DROP_RUNNING_KEY_INDEX = "DROP INDEX dl_jobs_running_key_idx"


def _never_expire_lease() -> None:
    from dataloader.workers.attempt import Lease

    replace_attribute(Lease, "is_trusted", lambda self, now: True)


def _check_lease_once() -> None:
    from dataloader.workers.reaper import Reaper

    def reap_at_once(self: Reaper, now: float) -> None:
        self._heartbeat_sec = -3600.0  # the answer, from which it is counted, comes after the check began
        check(self, now)

    check = replace_attribute(Reaper, "_check_leases", reap_at_once)


def _never_repair_blocked() -> None:
    from dataloader.workers.maintenance import BlockedJobsDuty

    replace_attribute(BlockedJobsDuty, "run", lambda self: None)


def _ignore_cancels() -> None:
    from dataloader.workers.pool import WorkerPool

    replace_attribute(WorkerPool, "_on_control", lambda self, command: None)


def _random_follow_up_keys() -> None:
    from uuid import uuid4

    from dataloader.workers.follow_ups import FollowUps

    replace_attribute(FollowUps, "make_key", lambda self, task, args, queue: f"{uuid4()}")


def _never_reap() -> None:
    from dataloader.workers.reaper import Reaper

    replace_attribute(Reaper, "_check_leases", lambda self, now: None)


def keep_dead_sessions() -> None:
    from dataloader.app.queue import attempt_sessions

    def report_only(reports: Any, target: str, *_: Any) -> None:
        reports[target] = attempt_sessions.ServerSessions(target, is_reached=True)

    replace_attribute(attempt_sessions, "_end_sessions_on", report_only)


def _prove_by_pid_alone() -> None:
    from dataloader.workers.takeover.process_identity import Identity

    replace_attribute(Identity, "shares_host", lambda self, other: True)


ATTEMPT_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "settle-without-fence",
        "a settlement names the job and not the run, and a dead attempt's sessions are not ended",
        "stubborn runs",
        functions=[FunctionEdit("dl_settle", r"AND j\.run_id = settlements\.run_id", "")],
        patch=keep_dead_sessions,
        expects=("result of another run", "invalid event sequence", "overlapping runs"),
    ),
    Mutant(
        "settle-without-guard",
        "a settlement does not ask whether the job is running",
        "stubborn runs",
        functions=[FunctionEdit("dl_settle", _RUNNING_CONDITION, "")],
        expects=("invalid event sequence",),
    ),
    Mutant(
        "renew-without-fence",
        "a heartbeat, the renewal of a row and saved progress name the job and not the run",
        "stubborn runs",
        edits=[
            StatementEdit("beat", r"AND j\.run_id = r\.run_id", ""),
            StatementEdit("save_progress", r"AND j\.run_id = r\.run_id", ""),
            StatementEdit("renew", r"AND j\.run_id = requested\.run_id", ""),
            StatementEdit(
                "renew",
                r"SELECT j\.job_id, requested\.progress",
                "SELECT j.job_id, requested.run_id AS requested_run_id, requested.progress",
            ),
            StatementEdit("renew", r"RETURNING j\.run_id", "RETURNING owned.requested_run_id"),
        ],
        expects=("result of another run", "overlapping runs", "progress went back", "progress of a lost run"),
    ),
    Mutant(
        "lease-always-trusted",
        "a worker continues when it could not renew its lease",
        "stubborn runs",
        patch=_never_expire_lease,
        expects=("overlapping runs",),
    ),
    Mutant(
        "effects-without-fence",
        "what a run writes commits whether it owns its job or not, and a dead attempt's sessions are not ended",
        "stubborn runs",
        edits=[
            StatementEdit("save_checkpoint", r"AND run_id = %\(run_id\)s::uuid\s+AND status::text = 'running'", ""),
            StatementEdit("assert_owned", r"SELECT 1\s.*", "SELECT 1 WHERE %(job_id)s <> %(run_id)s"),
        ],
        patch=keep_dead_sessions,
        expects=("part written twice",),
    ),
    Mutant(
        "no-exclusion",
        "nothing keeps two runs of a key apart: no index, no look at it, no session lock",
        "hot",
        edits=[_NO_LATER_SESSION_LOCK],
        functions=[FunctionEdit("dl_claim", *_NO_SESSION_LOCK, _NO_LOOK_AT_KEY)],
        schema_changes=[_DROP_RUNNING_KEY_INDEX],
        expects=("overlapping runs", "overlapping runs in events"),
    ),
    Mutant(
        "no-exclusion-in-the-table",
        "no index and no look at it: the session lock alone keeps the runs of a key apart",
        "hot",
        functions=[FunctionEdit("dl_claim", *_NO_LOOK_AT_KEY[0], _NO_LOOK_AT_KEY[1:])],
        schema_changes=[_DROP_RUNNING_KEY_INDEX],
        expects=("overlapping runs in events", "overlapping runs"),
    ),
    Mutant(
        "no-session-lock",
        "a successor does not wait for a run that lost its lease and continues",
        "frozen stubborn runs",
        edits=[_NO_LATER_SESSION_LOCK],
        functions=[FunctionEdit("dl_claim", *_NO_SESSION_LOCK)],
        expects=("overlapping runs",),
    ),
    Mutant(
        "reaper-without-budget",
        "the reaper gives every job back, whatever tries it has left",
        "killed workers",
        edits=[
            StatementEdit("reap", r"WHEN attempt < max_attempts THEN 'queued' ELSE 'lost'", "ELSE 'queued'"),
            StatementEdit(
                "reap",
                r"CASE WHEN cancel_requested OR attempt >= max_attempts THEN reaped_at END",
                "CASE WHEN cancel_requested THEN reaped_at END",
            ),
        ],
        expects=("wrong attempt count", "invalid event sequence"),
    ),
    Mutant(
        "reaper-checks-once",
        "the reaper takes a run at the first look",
        "killed workers",
        patch=_check_lease_once,
        expects=("reaped too early",),
    ),
    Mutant(
        "no-reaper",
        "no process reaps dead runs",
        "killed workers",
        patch=_never_reap,
        expects=("job not finished",),
    ),
    Mutant(
        "sessions-left-open",
        "a dead attempt's sessions are not ended before its job is given on",
        "killed workers with SQL",
        patch=keep_dead_sessions,
        expects=("effects after successor start",),
    ),
    Mutant(
        "proof-by-pid-alone",
        "a process is taken for dead when its pid is another process's, also in another namespace",
        "containers",
        edits=[
            StatementEdit(
                "other_workers",
                r"AND boot_id = %\(boot_id\)s::text\s+AND pid_namespace[^\n]* AND time_namespace[^\n]*",
                "",
                min_matches=2,
            ),
        ],
        patch=_prove_by_pid_alone,
        expects=("overlapping runs", "active after proof of death"),
    ),
    Mutant(
        "claim-without-skip-locked",
        "a claim waits for a locked row, without SKIP LOCKED",
        "held row",
        functions=[
            FunctionEdit("dl_claim", r"(LIMIT scan_limit)\s+FOR NO KEY UPDATE SKIP LOCKED", r"\1 FOR NO KEY UPDATE")
        ],
        expects=("job not finished",),
    ),
    Mutant(
        "claim-without-locks",
        "a claim locks neither rows nor keys, and asks nothing again",
        "concurrent claims",
        functions=[
            FunctionEdit(
                "dl_claim", r"(LIMIT scan_limit)\s+FOR NO KEY UPDATE SKIP LOCKED", r"\1", [_NO_KEY_LOCK_OF_CLAIM]
            )
        ],
        expects=("invalid event sequence", "run without claim", "inconsistent row"),
    ),
    Mutant(
        "no-block-lock-no-repair",
        "blocking and unblocking do not meet under the key's lock, and no repair follows",
        "key freed during a claim",
        edits=[StatementEdit(name, _KEY_TRANSACTION_LOCK, "1") for name in ("release", "reap")],
        functions=[
            FunctionEdit("dl_cancel_jobs", _KEY_TRANSACTION_LOCK, "1"),
            FunctionEdit("dl_settle", r"PERFORM pg_advisory_xact_lock\(1684828526, k\.hash\)", "PERFORM 1"),
            FunctionEdit("dl_claim", *_NO_KEY_LOCK_OF_CLAIM),
        ],
        patch=_never_repair_blocked,
        expects=("job not finished",),
    ),
    Mutant(
        "cancel-forgotten",
        "an error after a cancel goes back to the queue",
        "cancels",
        functions=[
            FunctionEdit("dl_settle", r"WHEN j\.cancel_requested AND settlements\.status <> 'succeeded'", "WHEN false")
        ],
        edits=[
            StatementEdit("reap", r"WHEN cancel_requested THEN 'canceled' ", ""),
            StatementEdit(
                "release",
                r"CASE WHEN cancel_requested THEN 'canceled' ELSE 'queued' END",
                "CASE WHEN true THEN 'queued' END",
            ),
        ],
        expects=("run started after cancel", "inconsistent row", "invalid event sequence"),
    ),
    Mutant(
        "cancel-not-delivered",
        "a worker gets no cancel, neither by its control channel nor with its heartbeats",
        "cancels",
        edits=[StatementEdit("beat", r"coalesce\(j\.cancel_requested, false\)", "false")],
        patch=_ignore_cancels,
        expects=("run continued after cancel",),
    ),
    Mutant(
        "follow-ups-without-key",
        "a second attempt enqueues its follow-ups without keys",
        "failing parents",
        patch=_random_follow_up_keys,
        expects=("wrong follow ups",),
    ),
    Mutant(
        "asynchronous-commit",
        "the server answers before a commit is on its disk",
        "crashes",
        server={"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "0"},
        expects=("job missing after acceptance", "run without claim"),
    ),
)
