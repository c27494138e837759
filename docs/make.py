"""Writes docs/job-lifecycle.md from the code that runs: `python -m docs.make`."""

from __future__ import annotations

from pathlib import Path

from app.queue.job import TRANSITIONS, Move, Release, Status

PAGE = Path(__file__).with_name("job-lifecycle.md")

STATUSES = {
    Status.QUEUED: "It waits: for its time, for a thread, or for its key.",
    Status.RUNNING: "A run holds it by a lease. Only that run's words count.",
    Status.SUCCEEDED: "The pipeline returned. Its return value is `result`.",
    Status.FAILED: "The pipeline raised and no attempt was left, or it could not be run at all. `error` says why.",
    Status.CANCELED: "Someone asked for the end before it was done.",
    Status.LOST: "Its worker vanished in its last attempt: what that attempt did is not known.",
}

MOVES = {
    Move.CLAIM: "by a worker: takes the job for one attempt, with a fresh `run_id` and a lease; `attempt` grows by one",
    Move.SETTLE: "by the owning run: how the attempt ended; `queued` after an error with attempts left, and a pause",
    Move.RELEASE: "by the owning run: handed back, and the attempt with it; `canceled` if that was asked for",
    Move.CANCEL: "by a caller: at once while it is queued, also when a plain `UPDATE` sets `cancel_requested`. Of a "
    "running one only that flag is raised, and its worker is notified",
    Move.REAP: "by any reaper: the lease ran out; `queued` with attempts left, else `lost`; or `canceled` if asked for",
    Move.REFUSE: "by the database: `max_attempts` is 0, so that the job may have no attempt",
    Move.RETRY: "by a person: the same job under the same id, with all its attempts before it",
}

RELEASES = {
    Release.SHUTDOWN: "the worker stops, and the job did not end within the grace",
    Release.LOCK_BUSY: "another process still holds the session lock of its key; the job is parked",
    Release.NOT_STARTED: "claimed, and then no thread was free, or the database went away before its key was locked",
}


def job_lifecycle() -> str:
    """The page, whole."""
    return "\n".join([_HEAD, _diagram(), _statuses(), _transitions(), _RULES, _PLACES, _EVENTS, _reasons()]) + "\n"


def _diagram() -> str:
    arrows = [f"    {start} --> {end}: {move}" for start, move, end in _arrows()]
    ends = [f"    {status} --> [*]" for status in Status if status.final]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> queued: enqueue", *arrows, *ends, "```", ""])


def _arrows() -> list[tuple[str, str, str]]:
    return [(start, move, end) for (start, move), ends in TRANSITIONS.items() for end in Status if end in ends]


def _statuses() -> str:
    rows = [f"| `{status}` | {'yes' if status.final else ''} | {STATUSES[status]} |" for status in Status]
    return "\n".join(["## Statuses", "", "| status | final | |", "|---|---|---|", *rows, ""])


def _transitions() -> str:
    head = ["## Moves", "", "| from | " + " | ".join(Move) + " |", "|---|" + "---|" * len(Move)]
    rows = [f"| `{start}` | " + " | ".join(_cell(start, move) for move in Move) + " |" for start in Status]
    said = [f"- **{move}**, {MOVES[move]}." for move in Move]
    return "\n".join([*head, *rows, "", *said, ""])


def _cell(start: Status, move: Move) -> str:
    ends = TRANSITIONS.get((start, move), frozenset())
    return ", ".join(f"`{end}`" for end in Status if end in ends)


def _reasons() -> str:
    rows = [f"| `{why}` | yes | {RELEASES[why]} |" for why in Release]
    return "\n".join([*_REASONS, *rows])


_HEAD = """\
# A job's life

This page is made from `TRANSITIONS` in `app/queue/job.py` by `python -m docs.make`; a test compares the two. Another
test drives every statement from every status and compares what happens with the same table.
"""

_RULES = """\
What holds for all of them:

- A move is one guarded statement. Of two that meet, one wins; the other finds nothing and changes nothing.
- A run's statements name `job_id` and `run_id`. A run that is not the owner any more changes nothing.
- A job whose cancel was asked for never goes back to `queued`. A success that came before the flag was seen stays one.
- `attempt` counts tries that began and were not taken away by us. It never exceeds `max_attempts`.
- `error` and `traceback` tell of the last attempt: a claim clears them, and a success has none. `started_at` is when
  the first attempt began; `finished_at` is set in the final statuses only.
"""

_PLACES = """\
## Where a queued job waits

Callers see `queued`. The column `place` says why it waits; each place has an index of its own, so that a claim
looks at nothing but what it may take.

| place | waits for | leaves it |
|---|---|---|
| `timed` | its `available_at`, or to be sorted in, as after a plain INSERT | when it is due and any worker claims |
| `ready` | a thread of its queue | with a claim, by `priority`, then age |
| `parked` | its `lock_key`, which another job has | when the key is freed: one job a key, the best by order |

A job whose task no live worker of its queue knows is set aside: `timed`, with `stray` set and an `error` that says so.
It is looked at again after a pause of 5 seconds to 10 minutes that grows with its age, and at once when a worker that
knows the task appears.
"""

_EVENTS = """\
## The journal

Each move writes a line to `dl_job_events` in its own transaction. `payload` holds `status` and `attempt` as they were
after the move, and `run_id` where a run made it.

| kind | when |
|---|---|
| `queued` | the job was inserted, by whomever |
| `picked` | claimed; with `worker` |
| `heartbeat` | a renewal came late, over three heartbeats after the last; with `late_sec`. No line for ordinary ones |
| `cancel_requested` | a running job was asked to stop |
| `stop_pending` | it was told to stop, everything was tried, and it goes on; with `reason` |
| `edited` | somebody changed the waiting job; with `before` and `after` |
| `requeue` | back to `queued`, or set aside; `reason` says why |
| `done` | ended as `succeeded` |
| `failed` | ended as `failed` |
| `canceled` | ended as `canceled` |
| `lost` | ended as `lost` |
"""

_REASONS = [
    "| reason of a `requeue` | costs no attempt | |",
    "|---|---|---|",
    "| `error` | | the pipeline raised; with `error` and `pause_sec`, by default 30 s × attempt |",
    "| `lease_expired` | | the reaper took it from a run that went silent |",
    "| `process_died` | | its worker process is proved dead; from the second time on with a pause |",
    "| `retry` | yes | a person queued a finished job again; `attempt` starts at 0 |",
    "| `by_hand` | yes | someone set a job to `queued` with an UPDATE of their own |",
    "| `unknown_task` | yes | no live worker of the queue knows the task; the status was `queued` before, too |",
    "| `upgrade` | yes | it ran while the tables were upgraded, and another run had the same key |",
]


if __name__ == "__main__":
    PAGE.write_text(job_lifecycle(), encoding="utf-8")
