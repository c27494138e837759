"""The rules of limits, rates and pauses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from tests.chaos.history import CLOCK_SLACK_SEC, Findings, History, LimitChange
from tests.support.event_replay import Event

_CLAIM_SEC = 2.0  # within which a claim has ended, on a busy machine too


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def limit_exceeded(history: History) -> Findings:
    """A run began although more weight was running then than its limit allowed.

    A start gets the number of its event under the limit's lock, an end gets it before others see the end. So by these
    numbers there are never more runs at once than there were. While a setting was changed, either one may have applied.
    """
    used: Counter[str] = Counter()
    held: dict[UUID, Mapping[str, int]] = {}
    settings = {name: history.settings(name) for row in history.rows.values() for name in row.weights}
    for event_id, event in history.event_log:
        if event.payload.get("status") != "running" or event.kind == "picked":
            used.subtract(held.pop(event.job_id, {}))
        if event.kind != "picked" or event.job_id not in history.rows:
            continue
        held[event.job_id] = history.rows[event.job_id].weights
        used.update(held[event.job_id])
        for name in held[event.job_id]:
            allowed = _max_concurrency(settings[name], event_id)
            if allowed is not None and used[name] > allowed:
                yield (
                    event.job_id,
                    f"run {event.payload.get('run_id')} began at event {event_id}; then a weight of {used[name]} was "
                    f"running in the limit {name!r}, which allowed {allowed}",
                )


def _max_concurrency(settings: Sequence[LimitChange], event_id: int) -> int | None:
    """The most that a setting allows which may have been in force at a claim. None: any number."""
    possible: list[LimitChange] = []
    for change in settings:
        if change.event_after < event_id:
            possible.clear()
        if change.event_before < event_id:
            possible.append(change)
    if not possible or any(change.concurrency is None for change in possible):
        return None
    return max(change.concurrency or 0 for change in possible)


def rate_exceeded(history: History) -> Findings:
    """More runs of a rate began in one of its periods than `rate + burst - 1`. A rate does not change in a campaign.

    The event of a start is written some time after the decision, and the next decision waits for its commit. So of
    the starts in a period only the first ones, a burst of them, may have been decided before it.
    """
    starts: dict[str, list[Event]] = defaultdict(list)
    for _, event in history.event_log:
        if event.kind == "picked" and event.job_id in history.rows:
            for name, weight in history.rows[event.job_id].weights.items():
                starts[name] += [event] * weight
    for name, events in starts.items():
        for change in history.settings(name)[:1]:
            if change.rate is None or change.per_sec is None:
                continue
            count = change.rate + 2 * change.burst  # of starts, which cannot fall into one period
            for first, last in zip(events, events[count - 1 :], strict=False):
                took = (last.at - first.at).total_seconds()
                if took < change.per_sec - CLOCK_SLACK_SEC:
                    yield last.job_id, f"the last of {count} starts of {name!r} in {took:.3f} s"


def started_while_paused(history: History) -> Findings:
    """A job started although its task was paused. A claim that was under way when it was paused may still start one."""
    for _, event in history.event_log:
        row = history.rows.get(event.job_id)
        if event.kind != "picked" or row is None:
            continue
        for pause in history.pauses:
            began = pause.since + timedelta(seconds=_CLAIM_SEC)
            if row.task == pause.name and began < event.at < pause.until:
                late = (event.at - pause.since).total_seconds()
                yield row.job_id, f"it started {late:.3f} s after {pause.name} had been paused"


def job_left_limited(history: History) -> Findings:
    """After quiet, a job waits for a limit."""
    for row in history.rows.values():
        if row.wait_state == "limited":
            yield row.job_id, f"{row.task} waits for the limit {row.waits_on!r}"
