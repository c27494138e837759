"""The protocol, broken on purpose in one place each: every one must be caught, or the campaign proves nothing.

A mutant changes statements as they are read, or a method, in the processes under test alone, before they start. The
product has no switch for it. Each is tried in a short scene that gives it the chance to do harm; the unbroken protocol
passes the same scenes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NAME = re.compile(r"^(-- name: [^\n]*\n)", re.MULTILINE)


@dataclass(frozen=True)
class Edit:
    """A change of one statement's text. `times`: how often the pattern must be found, at least."""

    statement: str
    pattern: str
    replacement: str
    times: int = 1

    def applied(self, text: str) -> str:
        changed, found = re.subn(self.pattern, self.replacement, text)
        if found < self.times:
            raise LookupError(
                f"{self.statement} has {found} of {self.times} places like {self.pattern!r}: mend the mutant"
            )
        return changed


@dataclass(frozen=True)
class Mutant:
    name: str
    broken: str  # what is missing, in words
    scene: str
    edits: Sequence[Edit] = ()
    patch: Callable[[], None] = lambda: None
    tables: Sequence[str] = ()  # what is done to the tables, once they are there
    server: Mapping[str, str] = field(default_factory=dict)  # settings of the server
    expects: Sequence[str] = ()  # the rules of which at least one must speak

    def break_it(self) -> None:
        """In this process, for good."""
        _edit_statements(self.edits)
        self.patch()


def _edit_statements(edits: Sequence[Edit]) -> None:
    from app.queue import statements as room

    read = room.read
    room.read = lambda text, schema: read(mutilated(text, edits), schema)
    room.statements.cache_clear()


def mutilated(text: str, edits: Sequence[Edit]) -> str:
    """A file of statements with those changed that are in it; what is composed of them changes with them."""
    pieces = _NAME.split(text)
    for edit in edits:
        for n, piece in enumerate(pieces):
            if piece == f"-- name: {edit.statement}\n":
                pieces[n + 1] = edit.applied(pieces[n + 1])
    return "".join(pieces)


# ── what is broken in Python ────────────────────────────────────────────────────────────────────────────────────────


def _trust_for_ever() -> None:
    from workers.lease import Lease

    Lease.trusted = lambda self, now: True  # type: ignore[method-assign]


def _look_once() -> None:
    from workers.reaper import Reaper

    look = Reaper._look

    def once(self: Any, now: float) -> None:
        self._heartbeat = -3600.0  # the answer, from which it is counted, comes after the look began
        look(self, now)

    Reaper._look = once  # type: ignore[method-assign]


def _never_sweep() -> None:
    from workers.reaper import Reaper

    Reaper._sweep = lambda self, now: None  # type: ignore[method-assign]


def _deaf_to_cancels() -> None:
    from workers.pool import WorkerPool

    WorkerPool._control = lambda self, word: None  # type: ignore[method-assign]


def _other_keys_for_follow_ups() -> None:
    from uuid import uuid4

    from workers.context import JobContext

    JobContext._follow_up_key = lambda self, task, args, queue: f"{uuid4()}"  # type: ignore[method-assign]


def _never_reap() -> None:
    from workers.reaper import Reaper

    Reaper._look = lambda self, now: None  # type: ignore[method-assign]


def _leave_sessions() -> None:
    from app.queue import attempt_sessions as room

    def report_only(reports: Any, target: str, *_: Any) -> None:
        reports[target] = room.ServerSessions(target, is_reached=True)

    room._end_on = report_only  # type: ignore[assignment]  # it takes what it does not need as one


def _prove_by_pid_alone() -> None:
    from workers.process_identity import Identity

    Identity.shares_host = lambda self, other: True  # type: ignore[method-assign]


# ── the mutants ─────────────────────────────────────────────────────────────────────────────────────────────────────

_PARK_LOCK = r"pg_advisory_xact_lock\(1684828526, hash(text\(lock_key\))?\)"
_LOCKED_RUN = r"AND j\.status::text = 'running'"
_NO_SESSION_LOCK = [
    Edit("claim", r"pg_try_advisory_lock\(key_hash\)", "true"),
    Edit("guard", r"pg_try_advisory_lock\(held\.key_hash\)", "true"),
]
_BEGUN_BEFORE = "DROP INDEX dl_jobs_running_key_idx"

MUTANTS: Mapping[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "settle-without-fence",
            "a settlement names the job and not the run",
            "zombies",
            edits=[Edit("settle", r"AND j\.run_id = told\.run_id", "")],
            expects=("words of another run", "impossible journal", "overlapping runs"),
        ),
        Mutant(
            "settle-without-guard",
            "a settlement does not ask whether the job is running",
            "zombies",
            edits=[Edit("settle", _LOCKED_RUN, "")],
            expects=("impossible journal",),
        ),
        Mutant(
            "renew-without-fence",
            "a renewal names the job and not the run",
            "zombies",
            edits=[
                Edit("renew", r"AND j\.run_id = held\.run_id", ""),
                Edit(
                    "renew", r"SELECT j\.job_id, held\.progress", "SELECT j.job_id, held.run_id AS said, held.progress"
                ),
                Edit("renew", r"RETURNING j\.job_id, j\.run_id", "RETURNING j.job_id, mine.said AS run_id"),
                Edit("renew", r"AND j\.run_id = runs\.run_id", ""),
            ],
            expects=("words of another run", "overlapping runs"),
        ),
        Mutant(
            "lease-trusted-for-ever",
            "a worker goes on when it could not renew its lease",
            "zombies",
            patch=_trust_for_ever,
            expects=("overlapping runs",),
        ),
        Mutant(
            "effects-without-fence",
            "what a run writes commits whether it owns its job or not",
            "zombies",
            edits=[
                Edit("save_checkpoint", r"AND run_id = %\(run_id\)s::uuid\s+AND status::text = 'running'", ""),
                Edit("still_owned", r"SELECT 1\s.*", "SELECT 1 WHERE %(job_id)s <> %(run_id)s"),
            ],
            expects=("written twice",),
        ),
        Mutant(
            "no-exclusion",
            "nothing keeps two runs of a key apart: no index, no look at it, no session lock",
            "hot",
            edits=[
                Edit(
                    "claim",
                    r"row_number\(\) OVER \(PARTITION BY j\.lock_key[^>]*> 1\s+OR EXISTS \(.*?'running'\)",
                    "false",
                ),
                *_NO_SESSION_LOCK,
            ],
            tables=[_BEGUN_BEFORE],
            expects=("overlapping runs", "overlap in the journal"),
        ),
        Mutant(
            "no-exclusion-in-the-table",
            "no index and no look at it: the session lock alone keeps the runs of a key apart",
            "hot",
            edits=[
                Edit(
                    "claim",
                    r"row_number\(\) OVER \(PARTITION BY j\.lock_key[^>]*> 1\s+OR EXISTS \(.*?'running'\)",
                    "false",
                ),
            ],
            tables=[_BEGUN_BEFORE],
            expects=("overlap in the journal", "overlapping runs"),
        ),
        Mutant(
            "no-session-lock",
            "a successor does not wait for a run that lost its lease and goes on",
            "frozen zombies",
            edits=_NO_SESSION_LOCK,
            expects=("overlapping runs",),
        ),
        Mutant(
            "reaper-without-budget",
            "the reaper gives every job back, whatever tries it has left",
            "deaths",
            edits=[
                Edit("reap", r"WHEN attempt < max_attempts THEN 'queued' ELSE 'lost'", "ELSE 'queued'"),
                Edit(
                    "reap",
                    r"CASE WHEN cancel_requested OR attempt >= max_attempts THEN at END",
                    "CASE WHEN cancel_requested THEN at END",
                ),
            ],
            expects=("attempt count off", "impossible journal"),
        ),
        Mutant(
            "reaper-looks-once",
            "the reaper takes a run at the first look",
            "deaths",
            patch=_look_once,
            expects=("taken at the first look",),
        ),
        Mutant(
            "nobody-reaps",
            "nobody settles for the dead",
            "deaths",
            patch=_never_reap,
            expects=("not ended",),
        ),
        Mutant(
            "sessions-left-open",
            "a dead attempt's sessions are not ended before its job is given on",
            "sql deaths",
            patch=_leave_sessions,
            expects=("effects after a successor began",),
        ),
        Mutant(
            "proof-by-pid-alone",
            "a process is taken for dead when its pid is another process's, also in another namespace",
            "containers",
            edits=[
                Edit("register_worker", r"w\.boot_id = %\(boot_id\)s::text AND w\.pid_namespace[^\n]*\n[^\n]*", "true"),
            ],
            patch=_prove_by_pid_alone,
            expects=("overlapping runs", "proved dead and acting"),
        ),
        Mutant(
            "claim-waits-for-rows",
            "a claim waits for a row that somebody holds, without SKIP LOCKED",
            "held row",
            edits=[Edit("claim", r"FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE")],
            expects=("not ended",),
        ),
        Mutant(
            "claim-without-locks",
            "a claim locks neither rows nor keys, and asks nothing again",
            "crowd",
            edits=[
                Edit("claim", r"(LIMIT %\(look\)s::int)\s+FOR NO KEY UPDATE SKIP LOCKED", r"\1"),
                Edit("claim", r"pg_try_advisory_xact_lock\(1684828526, hashtext\(lock_key\)\)", "true"),
            ],
            expects=("impossible journal", "run without a claim", "untrue row"),
        ),
        Mutant(
            "no-park-lock-no-sweep",
            "parking and freeing do not meet under the key's lock, and nobody looks after what slipped through",
            "pairs",
            edits=[
                *(Edit(name, _PARK_LOCK, "1") for name in ("settle", "release", "reap", "cancel")),
                Edit("claim", r"pg_try_advisory_xact_lock\(1684828526, hashtext\(lock_key\)\)", "true"),
            ],
            patch=_never_sweep,
            expects=("not ended",),
        ),
        Mutant(
            "cancel-forgotten",
            "an error after a cancel goes back to the queue",
            "cancels",
            edits=[
                Edit("settle", r"WHEN j\.cancel_requested AND told\.status <> 'succeeded'", "WHEN false"),
                Edit("reap", r"WHEN cancel_requested THEN 'canceled' ", ""),
                Edit(
                    "release",
                    r"CASE WHEN cancel_requested THEN 'canceled' ELSE 'queued' END",
                    "CASE WHEN true THEN 'queued' END",
                ),
            ],
            expects=("canceled and begun", "untrue row", "impossible journal"),
        ),
        Mutant(
            "cancel-unheard",
            "a worker hears of no cancel, neither by its control channel nor with its renewals",
            "cancels",
            edits=[Edit("renew", r"bool_or\(cancel_requested\)", "false")],
            patch=_deaf_to_cancels,
            expects=("canceled and ran on",),
        ),
        Mutant(
            "follow-ups-without-key",
            "a second try asks for its follow-ups as if nobody had",
            "failing parents",
            patch=_other_keys_for_follow_ups,
            expects=("follow ups off",),
        ),
        Mutant(
            "commits-not-waited-for",
            "the server answers before a commit is on its disk",
            "crashes",
            server={"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "0"},
            expects=("accepted and gone", "run without a claim"),
        ),
    )
}


def hunt(only: Sequence[str], *, say: Callable[[str], None], report: Any, keep: bool) -> bool:
    """Each mutant in its scene, and the unbroken protocol in every scene; True: all were caught, and nothing else."""
    from tests.chaos.hunt import hunt_all

    return hunt_all(only or list(MUTANTS), say=say, report=report, keep=keep)
