"""The mutants of the fault campaign, as rules that the model's protocol lacks, and what shows that they are needed.

Of a campaign's mutant that leaves out several mechanisms at once all are left out here. `promise` is part of the
problem that the explorer is to find; empty: the mutant does no harm, and it finds none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelMutant:
    name: str
    configuration: str
    rules: Sequence[str]
    promise: str


def _mutant(name: str, configuration: str, promise: str, *rules: str) -> ModelMutant:
    return ModelMutant(name, configuration, rules, promise)


_OWNER = "only the owner may act"
_STUCK = "progress"

CAMPAIGN_MUTANTS: Sequence[ModelMutant] = (
    _mutant("settle-without-fence", "sessions", "which it does not own", "fence"),
    _mutant("settle-without-guard", "keys", "which it does not own", "guard"),
    _mutant("renew-without-fence", "sessions", _OWNER, "beat_fence"),
    _mutant("lease-always-trusted", "keys", _OWNER, "worker_stops_first"),
    _mutant("effects-without-fence", "effects", "which it does not own", "effect_fence"),
    _mutant("no-exclusion", "keys", "one running row", "key_index", "key_look", "session_lock"),
    _mutant("no-exclusion-in-the-table", "locks", "one running row", "key_index", "key_look"),
    _mutant("no-session-lock", "keys", "the key lock excludes", "session_lock"),
    _mutant("reaper-without-budget", "keys", "attempts are counted", "budget"),
    _mutant("reaper-checks-once", "keys", "had no time for a heartbeat", "looks_twice"),
    _mutant("no-reaper", "keys", _STUCK, "reaper"),
    _mutant("sessions-left-open", "statements", "nothing of a dead attempt", "end_sessions"),
    _mutant("proof-by-pid-alone", "keys", _OWNER, "proof"),
    _mutant("claim-without-skip-locked", "held row", _STUCK, "skip_locked"),
    _mutant("claim-without-locks", "locks", "to running by picked", "row_lock", "key_lock"),
    _mutant("no-block-lock-no-repair", "locks", _STUCK, "key_lock", "repair"),
    _mutant("cancel-forgotten", "cancels", "rows are consistent", "cancel_wins"),
    _mutant("cancel-not-delivered", "cancels", "does not learn of it", "reads_cancels"),
    _mutant("follow-ups-without-key", "effects", "follow ups exist once", "follow_up_keys"),
    _mutant("asynchronous-commit", "server, disk", "acknowledged is kept", "sync_commit"),
    _mutant("beat-without-ownership", "keys", _OWNER, "reads_ownership"),
    _mutant("row-lease-too-short", "rows", "a live run has a live row", "long_row_lease"),
    _mutant("reap-without-progress", "progress", "goes back", "saves_progress"),
    _mutant("lease-end-without-row", "forgotten runs", _STUCK, "row_lease"),
    _mutant("progress-without-fence", "progress", "which it does not own", "beat_fence"),
    _mutant("limit-without-lock", "limit", "limits hold", "limit_lock"),
    _mutant("limit-counted-before-lock", "limit", "limits hold", "limit_count"),
    _mutant("limit-start-not-in-look", "limit", "limits hold", "limit_count"),
    _mutant("limit-no-wake-no-sweep", "limit", _STUCK, "limit_wake", "limit_sweep"),
    _mutant("limit-no-sweep", "limit", "", "limit_sweep"),
    _mutant("graph-without-lock", "join", _STUCK, "graph_lock"),
    _mutant("graph-end-not-recorded", "join", _STUCK, "records_end"),
    _mutant("graph-first-parent-decides", "join", "parents end first", "needs_all"),
    _mutant("graph-conditions-ignored", "join", "parents end first", "asks_outcome"),
    _mutant("graph-skip-ends-there", "chain", _STUCK, "skips_on"),
    _mutant("pause-not-asked", "pause", "a job starts while it is paused", "asks_pause"),
    _mutant("breaker-closes-without-wake", "pause", _STUCK, "reopen_wakes", "limit_sweep"),
    _mutant("rate-not-recorded", "rate", "limits hold", "records_rate"),
    _mutant("backfill-position-not-asked", "backfill", "slices are asked for once", "backfill_cursor"),
    _mutant("target-fence-not-compared", "target", "parts are written once", "target_compare"),
)

# Mutants of what is not explored, and part of what the trace check says of a campaign that has one.
TRACE_MUTANTS: Mapping[str, str] = {
    "schedule-counts-from-now": "has passed over",
    "schedule-fires-in-two-steps": "has passed over",
    "schedule-fires-without-guards": "is fired again",
    "schedule-pause-not-asked": "the paused schedule",
    "schedule-overlap-not-asked": "with the same schedule",
    "schedule-update-during-job-forgotten": "does not learn of it",
    "slice-without-index": "with the same live_key",
    "slice-end-not-recorded": "its slice is not changed",
    "backfill-made-after-cancel": "jobs of a backfill are made that is",
    "offload-intent-after-submission": "before its intent was committed",
    "offload-not-attached": "it submitted its work again",
    "offload-orphans-not-stopped": "has no end",
}

# Of rules that no mutant of the campaign leaves out alone.
MORE_MUTANTS: Sequence[ModelMutant] = (
    _mutant("release-counts", "cancels", "attempts are counted", "refund"),
    _mutant("reaper-reads-no-beat", "keys", _OWNER, "fresh_beat"),
    _mutant("second-attempt-of-a-key-starts", "sessions", "the key lock excludes", "one_holder"),
    _mutant("no-unblock-no-repair", "keys", _STUCK, "unblocks", "repair"),
    _mutant("target-not-locked", "target", "parts are written once", "target_lock", "target_compare"),
    _mutant("attempt-as-fence", "target, failover", "parts are written once", "fence_grows"),
    _mutant("fence-without-owner", "target", "commits after a later run", "fence_of_owner"),
    _mutant("position-of-its-own", "target", "parts are written once", "position_with_rows"),
    _mutant("done-not-read", "target", "parts are written once", "reads_done"),
)
