"""The row of a job, and what statements do to it.

Each move takes a row and returns the next one with the event that the same transaction writes. It raises `Refused`
where the statement would match no row. The explorer makes moves from every state; the trace check makes those that a
campaign recorded. Ids are small numbers there and uuids here: nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.model.rules import ALL, Rules

FINAL = frozenset({"succeeded", "failed", "canceled", "lost"})  # the other statuses: absent, queued, running
NO_PROCESS, GONE = -1, -2  # worker_id: NULL, or that of a process that is no more


class Refused(Exception):
    """The statement changes nothing."""


class Row(NamedTuple):
    status: str = "queued"
    wait: str = "ready"  # ready | scheduled | blocked | waiting | limited, of a queued job; else scheduled
    attempt: int = 0
    run: Any = 0  # run_id: drawn by each claim, kept when the attempt ends
    owner: Any = NO_PROCESS  # worker_id, while it runs
    cancel: bool = False
    silent: bool = False  # the last heartbeat of the owner is older than the lease
    lapsed: bool = False  # the row's own lease_expires_at has passed
    tries: int = 0  # attempts that began and were not given back: what `attempt` is to be


class Event(NamedTuple):
    """What the transaction writes into dl_job_events."""

    kind: str
    reason: str = ""
    run: Any = 0


Move = tuple[Row, Event]


def require(condition: object, problem: str) -> None:
    if not condition:
        raise Refused(problem)


def require_owner(row: Row, run: Any, rules: Rules = ALL) -> None:
    """The fence: the run is the last that claimed the job, and the job is running."""
    require(row.run == run or not rules.fence, "the run_id is another one")
    require(row.status == "running" or not rules.guard, "the job is not running")


# ── queued -> running ───────────────────────────────────────────────────────────────────────────────────────────────


def claim(row: Row, run: Any, owner: Any, max_attempts: int, rules: Rules = ALL) -> Move:
    require((row.status, row.wait) == ("queued", "ready") or not rules.row_lock, "the job is not ready")
    attempt = min(row.attempt + 1, max_attempts)
    return Row("running", "scheduled", attempt, run, owner, row.cancel, tries=row.tries + 1), Event("picked", run=run)


# ── running -> … ────────────────────────────────────────────────────────────────────────────────────────────────────


def settle(row: Row, run: Any, outcome: str, max_attempts: int, *, refund: int = 0, rules: Rules = ALL) -> Move:
    """`outcome`: succeeded, failed, canceled, or queued for another attempt."""
    require_owner(row, run, rules)
    if row.cancel and outcome != "succeeded" and rules.cancel_wins:
        outcome = "canceled"
    elif outcome == "queued" and row.attempt - refund >= max_attempts:
        outcome = "failed"
    kind = {"succeeded": "done", "queued": "requeue"}.get(outcome, outcome)
    return _end(row, outcome, refund * (outcome == "queued")), Event(kind, "error" * (outcome == "queued"), run)


def release(row: Row, run: Any, reason: str, rules: Rules = ALL) -> Move:
    """The owner stops, could not start, or waits for other jobs: the attempt does not count."""
    require_owner(row, run, rules)
    if row.cancel and rules.cancel_wins:
        return _end(row, "canceled"), Event("canceled", reason, run)
    wait = {"lock_busy": "blocked", "waits": "waiting"}.get(reason, "ready")
    return _end(row, "queued", int(rules.refund), wait), Event("requeue", reason, run)


def reap(row: Row, run: Any, reason: str, max_attempts: int, rules: Rules = ALL) -> Move:
    """The lease has expired, or the process is proved dead. What the attempt did is not known, so it counts."""
    require(row.run == run and row.status == "running", "another run owns the job, or none")
    if row.cancel and rules.cancel_wins:
        return _end(row, "canceled"), Event("canceled", reason, run)
    if row.attempt >= max_attempts and rules.budget:
        return _end(row, "lost"), Event("lost", reason, run)
    return _end(row, "queued"), Event("requeue", reason, run)


def _end(row: Row, status: str, refund: int = 0, wait: str = "ready") -> Row:
    attempt, wait = max(row.attempt - refund, 0), wait if status == "queued" else "scheduled"
    return Row(status, wait, attempt, row.run, NO_PROCESS, row.cancel, tries=row.tries - refund)


# ── by callers, operators and other programs ────────────────────────────────────────────────────────────────────────


def cancel(row: Row) -> Move:
    """Queued: at once, in any wait state. Running: the flag, of which the owner learns."""
    require(row.status in ("queued", "running") and not row.cancel, "the job has ended, or its cancel is requested")
    if row.status == "running":
        return row._replace(cancel=True), Event("cancel_requested")
    return end_queued(row._replace(cancel=True))


def end_queued(row: Row, status: str = "canceled", kind: str = "canceled", reason: str = "") -> Move:
    """A cancel, an expiry, a skipped child of a graph, or a job that may have no attempt."""
    require(row.status == "queued", "the job is not queued")
    return row._replace(status=status, wait="scheduled"), Event(kind, reason)


def retry(row: Row, reason: str = "retry") -> Move:
    """The same job with all its attempts."""
    require(row.status in ("failed", "canceled", "lost"), "the job has not ended, or has succeeded")
    return Row(run=row.run), Event("requeue", reason)


def requeue_by_hand(row: Row) -> Move:
    """An UPDATE of another program sets the status to queued: as a release, or as a retry."""
    require(row.status != "queued", "the job is queued")
    left = int(row.status == "running")
    attempt, tries = left * max(row.attempt - 1, 0), left * (row.tries - 1)
    return Row("queued", "ready", attempt, row.run, tries=tries), Event("requeue", "by_hand")


# From which wait state a statement leads to which, and its event. A job waits for one thing at a time.
WAITS = {
    "block": ("ready", "blocked", Event("")),  # a claim found the key busy
    "unblock": ("blocked", "ready", Event("")),
    "limit": ("ready", "limited", Event("limited")),
    "wake": ("limited", "ready", Event("released")),
    "decide": ("waiting", "ready", Event("released")),
    "promote": ("scheduled", "ready", Event("")),
    "defer": ("ready", "scheduled", Event("requeue", "unknown_task")),
}


def move_wait(row: Row, move: str) -> Move:
    before, after, event = WAITS[move]
    require(row.status == "queued" and row.wait == before, f"the job does not wait so that a statement could {move} it")
    return row._replace(wait=after), event


# ── what other rows allow ───────────────────────────────────────────────────────────────────────────────────────────


def fits(used: int, weight: int, allowed: int | None) -> bool:
    """Whether a job may start within a limit. What counts are the running rows."""
    return allowed is None or used + weight <= allowed


def verdict(met: Sequence[bool | None], *, any_is_enough: bool = False) -> str:
    """What the ends of its parents decide for a waiting job; `met`: whether each ended as asked, None: not yet."""
    if any_is_enough:
        return "ready" if any(met) else "waiting" if None in met else "canceled"
    return "canceled" if False in met else "waiting" if None in met else "ready"


def is_met(wants: str, status: str) -> bool | None:
    """Whether a parent has ended as its child asks; None: it has not ended."""
    if status not in FINAL:
        return None
    return {"succeeded": status == "succeeded", "failed": status in ("failed", "lost")}.get(wants, True)
