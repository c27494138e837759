"""What the protocol consists of. Each rule can be left out; tests/model/mutants.py says what fails then."""

from __future__ import annotations

from dataclasses import dataclass, field, fields


def _rule(text: str) -> bool:
    return field(default=True, metadata={"text": text})


@dataclass(frozen=True)
class Rules:
    # ── the row of a job
    fence: bool = _rule("a statement of a run names job_id and run_id")
    guard: bool = _rule("a statement of a run requires that the job is running")
    beat_fence: bool = _rule("a heartbeat, a renewal and saved progress compare the run_id")
    effect_fence: bool = _rule("a commit of a run in the queue's database locks its row, and compares the run_id")
    budget: bool = _rule("the reaper returns a job to the queue only while it has attempts")
    cancel_wins: bool = _rule("an error, a release or a reap after a cancel request ends as canceled")
    refund: bool = _rule("a release gives the attempt back")
    # ── leases
    worker_stops_first: bool = _rule("a worker trusts a lease only until its last heartbeat was sent + ttl - margin")
    reads_ownership: bool = _rule("a heartbeat reads which runs the process still owns")
    reads_cancels: bool = _rule("a heartbeat reads which runs are to be canceled")
    looks_twice: bool = _rule("the reaper takes a run at the second look, a heartbeat after the first")
    fresh_beat: bool = _rule("the reaper reads the last heartbeat under the lock that a heartbeat takes")
    reaper: bool = _rule("some process reaps dead runs")
    row_lease: bool = _rule("a lease ends with the row's lease_expires_at, too, which gives up a forgotten run")
    long_row_lease: bool = _rule("a rewritten row has a lease beyond its next rewrite")
    proof: bool = _rule("only a process that is gone counts as proved dead")
    end_sessions: bool = _rule("the sessions of a dead attempt are ended before its job is given on")
    saves_progress: bool = _rule("the row of a reaped job gets the last progress of its run")
    # ── keys
    key_index: bool = _rule("a unique index keeps two running rows of a key apart")
    key_look: bool = _rule("a claim looks whether the key runs, and blocks the job")
    session_lock: bool = _rule("a claim takes the key's session lock, which a former owner may still hold")
    one_holder: bool = _rule("a process starts no attempt while another one of it holds the key")
    row_lock: bool = _rule("a claim locks rows")
    skip_locked: bool = _rule("a claim passes over rows that another session has locked")
    key_lock: bool = _rule("blocking and unblocking meet under the transaction lock of the key")
    unblocks: bool = _rule("the end of a run makes the next blocked job of its key ready")
    repair: bool = _rule("a duty makes blocked jobs of free keys ready")
    # ── limits, graphs
    limit_lock: bool = _rule("a claim holds the lock of a limit from its count to its commit")
    limit_count: bool = _rule("a claim counts the running jobs of a limit under its lock")
    limit_wake: bool = _rule("the end of a run wakes a job that waits for its limit")
    limit_sweep: bool = _rule("a duty wakes limited jobs")
    reopen_wakes: bool = _rule("a limit that is raised, and a breaker that closes, wake the jobs that wait for it")
    asks_pause: bool = _rule("a claim asks whether the job's task is paused")
    records_rate: bool = _rule("a start within a rate is recorded")
    graph_lock: bool = _rule("the ends of a graph's jobs decide its children one after the other")
    records_end: bool = _rule("the end of each parent is recorded for its children, however it ended")
    needs_all: bool = _rule("a job waits for all its parents")
    asks_outcome: bool = _rule("a parent counts only if it ended as its child asks")
    skips_on: bool = _rule("a skipped job's own children are decided")
    backfill_cursor: bool = _rule("a step of a backfill compares the slice up to which it has come")
    # ── callers, servers
    follow_up_keys: bool = _rule("a follow-up has an idempotency key, made of its parent and its task")
    sync_commit: bool = _rule("the server answers a commit when it is on its disk")
    # ── targets
    target_compare: bool = _rule("a transaction in a target compares the fence")
    target_lock: bool = _rule("a transaction in a target locks the row of its job")
    fence_grows: bool = _rule("each claim of a row in a target has a higher fence than all before")
    fence_of_owner: bool = _rule("the fence is drawn while the row is locked, and only for the owner of the job")
    position_with_rows: bool = _rule("the position commits together with the rows")
    reads_done: bool = _rule("an attempt reads whether an earlier one has finished the work")


ALL = Rules()


def rule_texts() -> dict[str, str]:
    return {rule.name: rule.metadata["text"] for rule in fields(Rules)}
