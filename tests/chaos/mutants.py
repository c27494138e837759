"""The protocol, broken on purpose in one place each: every one must be caught, or the campaign proves nothing.

A mutant changes statements as they are read, or a method, in the processes under test alone, before they start. The
product has no switch for it. Each is tried in a short scene that gives it the chance to do harm; the unbroken protocol
passes the same scenes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SCHEMA = Path(__file__).parents[2] / "schema.sql"
_NAME = re.compile(r"^(-- name: [^\n]*\n)", re.MULTILINE)


@dataclass(frozen=True)
class StatementEdit:
    """A change of one statement's text. `times`: how often the pattern must be found, at least."""

    statement: str
    pattern: str
    replacement: str
    min_matches: int = 1

    def applied(self, text: str) -> str:
        changed, found = re.subn(self.pattern, self.replacement, text)
        if found < self.min_matches:
            raise LookupError(
                f"{self.statement} has {found} of {self.min_matches} places like {self.pattern!r}: mend the mutant"
            )
        return changed


@dataclass(frozen=True)
class FunctionEdit:
    """A change of a function of schema.sql."""

    function: str
    pattern: str
    replacement: str

    def statement(self) -> str:
        """The CREATE FUNCTION of the changed function."""
        (text,) = re.findall(
            rf"^CREATE OR REPLACE FUNCTION {self.function}\(.*?^(?:END )?\$\$;$",
            _SCHEMA.read_text(encoding="utf-8"),
            re.MULTILINE | re.DOTALL,
        )
        return StatementEdit(self.function, self.pattern, self.replacement).applied(text)


@dataclass(frozen=True)
class Mutant:
    name: str
    description: str  # what is missing, in words
    scene: str
    edits: Sequence[StatementEdit] = ()
    patch: Callable[[], None] = lambda: None
    schema_changes: Sequence[str] = ()  # what is done to the tables, once they are there
    functions: Sequence[FunctionEdit] = ()
    server: Mapping[str, str] = field(default_factory=dict)  # settings of the server
    expects: Sequence[str] = ()  # the rules of which at least one must speak; none: the others do what this one did

    def apply(self) -> None:
        """In this process, for good."""
        patch_statements(self.edits)
        self.patch()


def patch_statements(edits: Sequence[StatementEdit]) -> None:
    from app.db import statements as room

    read = room.parse_statements
    room.parse_statements = lambda text, schema: read(edit_statements(text, edits), schema)
    room.statements.cache_clear()


def edit_statements(text: str, edits: Sequence[StatementEdit]) -> str:
    """A file of statements with those changed that are in it; what is composed of them changes with them."""
    pieces = _NAME.split(text)
    for edit in edits:
        for n, piece in enumerate(pieces):
            if piece == f"-- name: {edit.statement}\n":
                pieces[n + 1] = edit.applied(pieces[n + 1])
    return "".join(pieces)


# ── what is broken in Python ────────────────────────────────────────────────────────────────────────────────────────


def _replace(owner: Any, name: str, value: Any) -> Any:
    """Replace what `owner` has under the name, and return it."""
    if not hasattr(owner, name):
        raise LookupError(f"{owner.__name__} has no {name}: mend the mutant")
    replaced = getattr(owner, name)
    setattr(owner, name, value)
    return replaced


def _never_expire_lease() -> None:
    from workers.attempt import Lease

    _replace(Lease, "is_trusted", lambda self, now: True)


def _check_lease_once() -> None:
    from workers.reaper import Reaper

    def reap_at_once(self: Reaper, now: float) -> None:
        self._heartbeat_sec = -3600.0  # the answer, from which it is counted, comes after the check began
        check(self, now)

    check = _replace(Reaper, "_check_leases", reap_at_once)


def _never_repair_blocked() -> None:
    from workers.maintenance import BlockedJobsDuty

    _replace(BlockedJobsDuty, "run", lambda self: None)


def _ignore_cancels() -> None:
    from workers.pool import WorkerPool

    _replace(WorkerPool, "_on_control", lambda self, command: None)


def _random_follow_up_keys() -> None:
    from uuid import uuid4

    from workers.follow_ups import FollowUps

    _replace(FollowUps, "make_key", lambda self, task, args, queue: f"{uuid4()}")


def _submit_before_intent() -> None:
    from workers.offloads.calls import OffloadCalls
    from workers.offloads.handle import RemoteHandle

    intend, submit = OffloadCalls._intend, RemoteHandle.submit
    waiting: dict[str, Callable[[], None]] = {}

    def intend_later(self: OffloadCalls, work: Any, **call: Any) -> None:
        waiting[work.name] = lambda: intend(self, work, **call)

    def submit_first(self: RemoteHandle) -> None:
        submit(self)
        waiting.pop(self.name, lambda: None)()

    OffloadCalls._intend = intend_later  # type: ignore[method-assign]
    RemoteHandle.submit = submit_first  # type: ignore[method-assign]


def _never_attach() -> None:
    from workers.offloads.calls import OffloadCalls

    OffloadCalls._reusable = lambda self, rows, digest, options: None  # type: ignore[method-assign]


def _leave_offloads() -> None:
    from workers.offloads.stopping import OffloadStopper

    OffloadStopper.run = lambda self: None  # type: ignore[method-assign]


def _never_reap() -> None:
    from workers.reaper import Reaper

    _replace(Reaper, "_check_leases", lambda self, now: None)


def _keep_dead_sessions() -> None:
    from app.queue import attempt_sessions

    def report_only(reports: Any, target: str, *_: Any) -> None:
        reports[target] = attempt_sessions.ServerSessions(target, is_reached=True)

    _replace(attempt_sessions, "_end_sessions_on", report_only)


def _prove_by_pid_alone() -> None:
    from workers.process_identity import Identity

    _replace(Identity, "shares_host", lambda self, other: True)


def _never_sweep_limits() -> None:
    from workers.maintenance import LimitsDuty

    _replace(LimitsDuty, "run", lambda self: None)


def _count_times_from_now() -> None:
    from datetime import timedelta

    from workers import schedules

    def forgetful(timing: Any, *, last_at: Any, now: Any, **rules: Any) -> Any:
        return plan(timing, last_at=max(last_at, now - timedelta(seconds=1.2)), now=now, **rules)

    plan = _replace(schedules, "plan_firings", forgetful)


def _fire_in_two_transactions() -> None:
    import time

    from app.admin.schedules import Schedules

    def account_first(self: Schedules, batch: Any) -> Any:
        fire(self, [item | {"firings": [], "updates": []} for item in batch])
        time.sleep(0.4)
        return fire(self, [item | {"read_last_at": item["last_at"]} for item in batch])

    fire = _replace(Schedules, "fire", account_first)


def _fire_from_every_process() -> None:
    from workers import maintenance, schedules

    def without_key(*arguments: Any, **more: Any) -> Any:
        made = request(*arguments, **more)
        made.pop("idempotency_key")
        return made

    _replace(maintenance, "_FOLLOW_INTERVAL_SEC", 0.0)
    _replace(maintenance, "_LATE_SCHEDULES_INTERVAL_SEC", 0.0)
    _replace(maintenance, "LATE_SEC", 0.0)
    request = _replace(schedules, "scheduled_job", without_key)


def _make_backfills_from_every_process() -> None:
    from app.admin.queues import Queues

    def acquire_nothing(self: Queues) -> bool:
        return acquire(self) or True

    _replace(Queues, "is_maintenance_lock_held", lambda self: False)
    acquire = _replace(Queues, "acquire_maintenance_lock", acquire_nothing)


# ── the mutants ─────────────────────────────────────────────────────────────────────────────────────────────────────

_KEY_TRANSACTION_LOCK = r"pg_advisory_xact_lock\(1684828526, hash(text\(lock_key\))?\)"
_RUNNING_CONDITION = r"AND j\.status::text = 'running'"
_NO_SESSION_LOCK = [
    StatementEdit("start", r"pg_try_advisory_lock\(key_hash\)", "true"),
    StatementEdit("lock_keys", r"pg_try_advisory_lock\(runs\.key_hash\)", "true"),
]
_DROP_RUNNING_KEY_INDEX = "DROP INDEX dl_jobs_running_key_idx"

MUTANTS: Mapping[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "settle-without-fence",
            "a settlement names the job and not the run, and a dead attempt's sessions are not ended",
            "stubborn runs",
            edits=[StatementEdit("settle", r"AND j\.run_id = settlements\.run_id", "")],
            patch=_keep_dead_sessions,
            expects=("result of another run", "invalid event sequence", "overlapping runs"),
        ),
        Mutant(
            "settle-without-guard",
            "a settlement does not ask whether the job is running",
            "stubborn runs",
            edits=[StatementEdit("settle", _RUNNING_CONDITION, "")],
            expects=("invalid event sequence",),
        ),
        Mutant(
            "renew-without-fence",
            "a renewal names the job and not the run",
            "stubborn runs",
            edits=[
                StatementEdit("renew", r"AND j\.run_id = requested\.run_id", ""),
                StatementEdit(
                    "renew",
                    r"SELECT j\.job_id, requested\.progress",
                    "SELECT j.job_id, requested.run_id AS requested_run_id, requested.progress",
                ),
                StatementEdit(
                    "renew", r"RETURNING j\.job_id, j\.run_id", "RETURNING j.job_id, owned.requested_run_id AS run_id"
                ),
                StatementEdit("renew", r"AND j\.run_id = runs\.run_id", ""),
            ],
            expects=("result of another run", "overlapping runs"),
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
            patch=_keep_dead_sessions,
            expects=("part written twice",),
        ),
        Mutant(
            "no-exclusion",
            "nothing keeps two runs of a key apart: no index, no look at it, no session lock",
            "hot",
            edits=[
                StatementEdit(
                    "start",
                    r"row_number\(\) OVER \(PARTITION BY j\.lock_key[^>]*> 1\s+OR EXISTS \(.*?'running'\)",
                    "false",
                ),
                *_NO_SESSION_LOCK,
            ],
            schema_changes=[_DROP_RUNNING_KEY_INDEX],
            expects=("overlapping runs", "overlapping runs in events"),
        ),
        Mutant(
            "no-exclusion-in-the-table",
            "no index and no look at it: the session lock alone keeps the runs of a key apart",
            "hot",
            edits=[
                StatementEdit(
                    "start",
                    r"row_number\(\) OVER \(PARTITION BY j\.lock_key[^>]*> 1\s+OR EXISTS \(.*?'running'\)",
                    "false",
                ),
            ],
            schema_changes=[_DROP_RUNNING_KEY_INDEX],
            expects=("overlapping runs in events", "overlapping runs"),
        ),
        Mutant(
            "no-session-lock",
            "a successor does not wait for a run that lost its lease and continues",
            "frozen stubborn runs",
            edits=_NO_SESSION_LOCK,
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
            patch=_keep_dead_sessions,
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
            edits=[StatementEdit("find_oldest", r"FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE")],
            expects=("job not finished",),
        ),
        Mutant(
            "claim-without-locks",
            "a claim locks neither rows nor keys, and asks nothing again",
            "concurrent claims",
            edits=[
                StatementEdit("find_oldest", r"(LIMIT %\(scan_limit\)s::int)\s+FOR NO KEY UPDATE SKIP LOCKED", r"\1"),
                StatementEdit("find_oldest", r"pg_try_advisory_xact_lock\(1684828526, hashtext\(lock_key\)\)", "true"),
            ],
            expects=("invalid event sequence", "run without claim", "inconsistent row"),
        ),
        Mutant(
            "no-block-lock-no-repair",
            "blocking and unblocking do not meet under the key's lock, and no repair follows",
            "key freed during a claim",
            edits=[
                *(StatementEdit(name, _KEY_TRANSACTION_LOCK, "1") for name in ("settle", "release", "reap", "cancel")),
                StatementEdit("find_oldest", r"pg_try_advisory_xact_lock\(1684828526, hashtext\(lock_key\)\)", "true"),
            ],
            patch=_never_repair_blocked,
            expects=("job not finished",),
        ),
        Mutant(
            "cancel-forgotten",
            "an error after a cancel goes back to the queue",
            "cancels",
            edits=[
                StatementEdit(
                    "settle", r"WHEN j\.cancel_requested AND settlements\.status <> 'succeeded'", "WHEN false"
                ),
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
            "a worker gets no cancel, neither by its control channel nor with its renewals",
            "cancels",
            edits=[StatementEdit("renew", r"bool_or\(cancel_requested\)", "false")],
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
        Mutant(
            "limit-without-lock",
            "nothing locks a limit: two claims count before either has started its jobs",
            "limits",
            functions=[FunctionEdit("dl_lock_limits", r"(?s)PERFORM pg_advisory.*?ordered;", "NULL;")],
            expects=("limit exceeded",),
        ),
        Mutant(
            "limit-counted-before-lock",
            "a claim counts the running jobs before it has the limit's lock",
            "limits",
            functions=[
                FunctionEdit(
                    "dl_apply_limits",
                    r"(?s)PERFORM dl_lock_limits\(names \|\| woken_names\);(.*?FROM dl_limit_states\(names\) s;)",
                    r"\1 PERFORM dl_lock_limits(names || woken_names);",
                )
            ],
            expects=("limit exceeded",),
        ),
        Mutant(
            "limit-no-wake-no-sweep",
            "the end of a run wakes no limited job, and no sweep follows",
            "limits",
            functions=[FunctionEdit("dl_wake_after", r"IF names <> '\{}'", "IF false")],
            patch=_never_sweep_limits,
            expects=("job left limited",),
        ),
        Mutant(
            "limit-no-sweep",
            "no sweep wakes limited jobs: the ends of runs wake all of them",
            "limits",
            patch=_never_sweep_limits,
        ),
        Mutant(
            "graph-without-lock",
            "nothing locks a graph: two last parents that commit together each see the other's edge open",
            "graphs over many processes",
            functions=[
                FunctionEdit(
                    "dl_decide_children",
                    r"(?s)IF coalesce\(current_setting\('dl\.graph_changes'.*?END IF;(.*)(IF changed = coalesce)",
                    r"\1 PERFORM pg_sleep(0.3); \2",  # the other parent ends before this end is visible
                )
            ],
            expects=("job left waiting", "job not finished"),
        ),
        Mutant(
            "graph-end-not-recorded",
            "the end of a job that did not succeed is not recorded for its children",
            "graphs",
            functions=[
                FunctionEdit(
                    "dl_jobs_graph_ended", r"VALUES \(NEW\.job_id\)", "SELECT NEW.job_id WHERE NEW.status = 'succeeded'"
                )
            ],
            expects=("job left waiting", "job not finished"),
        ),
        Mutant(
            "graph-first-parent-decides",
            "the first parent that ended as asked is enough, whatever the job needs",
            "graphs",
            functions=[
                FunctionEdit(
                    "dl_decide_children",
                    r"WHEN bool_and\(e\.met IS NOT NULL\) THEN false END END",
                    "WHEN bool_or(e.met) THEN false END END",
                )
            ],
            expects=("started before parents ended",),
        ),
        Mutant(
            "graph-conditions-ignored",
            "a parent that failed counts as one that ended as asked",
            "graphs",
            functions=[
                FunctionEdit(
                    "dl_decide_children", r"WHEN 'succeeded' THEN p\.status = 'succeeded'", "WHEN 'succeeded' THEN true"
                )
            ],
            expects=("started before parents ended", "not skipped"),
        ),
        Mutant(
            "graph-skip-ends-there",
            "a skipped job's own children are not decided",
            "graphs",
            functions=[
                FunctionEdit(
                    "dl_jobs_graph_ended", r"VALUES \(NEW\.job_id\)", "SELECT NEW.job_id WHERE NEW.skipped IS NOT TRUE"
                )
            ],
            expects=("job left waiting", "job not finished"),
        ),
        Mutant(
            "pause-not-asked",
            "a claim does not look whether the task is paused",
            "paused task",
            functions=[
                FunctionEdit("dl_limit_states", r"task = n\.name AND state <> 'closed'", "task = n.name AND false")
            ],
            expects=("started while paused",),
        ),
        Mutant(
            "breaker-closes-without-wake",
            "a breaker that closes wakes no job, and no sweep follows",
            "failing task",
            functions=[
                FunctionEdit("dl_count_outcomes", r"closed := coalesce\(closed, '\[\]'\) \|\| [^;]*;", "NULL;"),
            ],
            patch=_never_sweep_limits,
            expects=("job left limited", "job not finished"),
        ),
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
                StatementEdit(
                    "due_schedules", r"(next_at <= \(SELECT due_at FROM bound\)) AND paused_at IS NULL", r"\1"
                )
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
                    "dl_jobs_record_slice",
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
            functions=[FunctionEdit("dl_make_backfill", r"AND b\.cursor IS NOT DISTINCT FROM read_cursor", "")],
            patch=_make_backfills_from_every_process,
            expects=("incomplete backfill",),
        ),
        Mutant(
            "offload-intent-after-submission",
            "work is submitted to the engine, and its intent written afterwards",
            "offloads",
            patch=_submit_before_intent,
            expects=("offload without intent",),
        ),
        Mutant(
            "offload-not-attached",
            "an attempt ignores what an earlier one has submitted",
            "offloads",
            patch=_never_attach,
            expects=("offload executed again",),
        ),
        Mutant(
            "offload-orphans-not-stopped",
            "neither the attempt that ends nor the poller stops work of a job that has ended",
            "offloads",
            patch=_leave_offloads,
            edits=[
                StatementEdit(
                    "claim_offload_polls",
                    r" OR coalesce\(j\.status::text NOT IN \('queued', 'running'\), true\)\)",
                    ")",
                )
            ],
            expects=("offload left running",),
        ),
        Mutant(
            "rate-not-recorded",
            "a start of a rate is not recorded",
            "rates",
            functions=[FunctionEdit("dl_apply_limits", r"(?s)INSERT INTO dl_limit_starts.*?tat = excluded\.tat;", "")],
            expects=("rate exceeded",),
        ),
    )
}


def search_mutants(only: Sequence[str], *, log: Callable[[str], None], report: Any, keep: bool) -> bool:
    """Each mutant in its scene, and the unbroken protocol in every scene; True: all were caught, and nothing else."""
    from tests.chaos.mutant_search import search_all

    return search_all(only or list(MUTANTS), log=log, report=report, keep=keep)
