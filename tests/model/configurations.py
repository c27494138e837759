"""What is explored. The small ones run with each test; the large ones add jobs, processes and faults to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.model.rows import Row
from tests.model.state import Configuration, Job

_ONE = (Job(),)
_SHARED_KEY = (Job(), Job())
_WAITING = Row(wait="waiting")
_ABSENT = Row("absent")
# After an asynchronous failover, and until the next heartbeat, a run may act whose claim was lost.
_UNTIL_NEXT_HEARTBEAT = frozenset({"only_the_owner_may_act"})
_AFTER_LOST_CLAIM = frozenset(
    {
        "only_the_owner_may_act",
        "one_run_of_a_key_may_act",
        "the_key_lock_excludes",
        "acknowledged_is_kept",
        "a_live_run_has_a_live_row",
    }
)


def _graph(*edges: tuple[int, int, str], jobs: int) -> tuple[tuple[Job, ...], tuple[tuple[int, int, str], ...]]:
    children = {child for child, _, _ in edges}
    return tuple(Job(job, 1, first=_WAITING if job in children else Row()) for job in range(jobs)), edges


_JOIN, _JOIN_EDGES = _graph((2, 0, "succeeded"), (2, 1, "succeeded"), jobs=3)
_CHAIN, _CHAIN_EDGES = _graph((1, 0, "succeeded"), (2, 1, "succeeded"), (3, 2, "failed"), jobs=4)


def _make(name: str, jobs: tuple[Job, ...], *groups: str, **more: object) -> Configuration:
    return Configuration(name, jobs, groups=frozenset(groups), **more)  # type: ignore[arg-type]


SMALL = (
    _make("keys", _SHARED_KEY, "crash", "freeze"),
    _make("cancels", _SHARED_KEY, "cancel", "release"),
    _make("answers", _ONE, "crash", "lost_answers", "cancel"),
    _make("sessions", _ONE, "freeze", "sessions", "lost_answers"),
    _make("rows", _ONE, "freeze", "rows", "release"),
    _make("forgotten runs", _ONE, "rows", "forget"),
    _make("old process", _ONE, "crash", "freeze", "rows", old=frozenset({1})),
    _make("by hand", _ONE, "freeze", "by_hand", left_out=_UNTIL_NEXT_HEARTBEAT),
    _make("retries", _ONE, "crash", "retry", "cancel"),
    _make("locks", _SHARED_KEY, "two_step", "cancel"),
    _make("held row", (Job(), Job(1)), held=0, processes=1),
    _make("limit", (Job(0, 1, True), Job(1, 1, True), Job(2, 1, True)), "two_step", "limits", allowed=1),
    _make("pause", (Job(0, 1, True), Job(1, 1, True)), "limits", "pause", allowed=2),
    _make("rate", (Job(0, 1, True), Job(1, 1, True)), "limits", "rate", rate=1),
    _make("join", _JOIN, "two_step", edges=_JOIN_EDGES),
    _make("chain", _CHAIN, edges=_CHAIN_EDGES, processes=1),
    _make("backfill", (), "backfill"),
    _make("statements", _ONE, "crash", "freeze", "statements"),
    _make("progress", _ONE, "crash", "freeze", "progress"),
    _make("effects", _ONE, "freeze", "effects", "follow_ups"),
    _make("server", (Job(first=_ABSENT),), "enqueue", "crash_server", "lost_answers"),
    _make("server, disk", (Job(first=_ABSENT),), "enqueue", "crash_server", "failover"),
    _make("failover", (Job(max_attempts=1),), "rows", "failover", "promote", left_out=_AFTER_LOST_CLAIM),
    _make("target", _ONE, "target", "freeze", "sessions"),
    _make("target, crash", _ONE, "target", "crash"),
    _make(
        "target, failover",
        (Job(max_attempts=1),),
        "target",
        "failover",
        "promote",
        left_out=_AFTER_LOST_CLAIM | {"progress"},
    ),
)
LARGE = (
    _make("3 x 3 x 2", (Job(), Job(), Job(1)), "crash", "freeze", "cancel", processes=3),
    _make("3 x 3 x 1", (Job(max_attempts=1),) * 3, "crash", "freeze", "cancel", processes=3),
    _make("all faults of a job", _ONE, "crash", "freeze", "cancel", "lost_answers", "rows", "sessions", "release"),
    _make(
        "all faults of a key", _SHARED_KEY, "crash", "freeze", "cancel", "lost_answers", "rows", "sessions", "release"
    ),
    _make("three processes", _ONE, "crash", "freeze", "lost_answers", "rows", "sessions", processes=3),
    _make("old processes", _SHARED_KEY, "crash", "freeze", "rows", "cancel", old=frozenset({1})),
    _make("by hand, retries", _ONE, "crash", "freeze", "by_hand", "retry", left_out=_UNTIL_NEXT_HEARTBEAT),
    _make("target, three runs", (Job(max_attempts=3),), "target", "crash", "freeze", "lost_answers", processes=3),
    _make(
        "limit of two",
        (Job(0, 2, True), Job(1, 2, True), Job(1, 2, True)),
        "two_step",
        "limits",
        "pause",
        allowed=2,
        processes=3,
    ),
    _make(
        "target, failover, rows",
        (Job(max_attempts=1),),
        "target",
        "rows",
        "failover",
        "promote",
        left_out=_AFTER_LOST_CLAIM,
    ),
)
# Where states count as one that differ in what no later step reads: there are too many otherwise.
FORGETTING = frozenset({"3 x 3 x 2"})
CONFIGURATIONS: Mapping[str, Configuration] = {config.name: config for config in (*SMALL, *LARGE)}


def without_rules(name: str, *rules: str) -> Configuration:
    """A configuration under a protocol that lacks these rules."""
    config = CONFIGURATIONS[name]
    return replace(config, rules=replace(config.rules, **dict.fromkeys(rules, False)))
