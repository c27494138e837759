"""Which nominal times are to be fired now, and which are skipped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dataloader.pipelines.schedule_fields import CatchUp
from dataloader.pipelines.schedule_times import Timing

MAX_FIRINGS = 100  # of one schedule in one step; the rest follow in the next


class FiringPlan(NamedTuple):
    fire_at: list[datetime]  # in their order
    skipped: tuple[datetime, datetime] | None  # the first and the last of a range of times
    last_at: datetime  # times up to here are accounted for
    next_at: datetime | None


def plan_firings(
    timing: Timing,
    *,
    last_at: datetime,
    now: datetime,
    grace_sec: int,
    catch_up: CatchUp,
    catch_up_max: int,
    catch_up_window_sec: int,
) -> FiringPlan:
    """Account for the times after `last_at` up to now. Those older than `grace_sec` are missed ones: `catch_up` says
    which of them are fired."""
    missed_until = now - timedelta(seconds=grace_sec)
    first = timing.next_after(last_at)
    if first is None or first.at.astimezone(UTC) > now:
        return FiringPlan([], None, last_at, first and first.at)
    fire_at: list[datetime] = []
    skipped = None
    if first.at.astimezone(UTC) <= missed_until:
        oldest = last_at if catch_up == "last" else max(last_at, now - timedelta(seconds=catch_up_window_sec))
        limit = {"skip": 0, "last": 1, "all": catch_up_max}[catch_up]
        fire_at = _latest(timing, after=oldest, until=missed_until, limit=limit)
        last_skipped = timing.previous(fire_at[0] if fire_at else missed_until + timedelta(microseconds=1))
        if last_skipped is not None and last_skipped.astimezone(UTC) >= first.at.astimezone(UTC):
            skipped = (first.at, last_skipped)
    accounted = fire_at[-1] if fire_at else skipped[1] if skipped else last_at
    for time in timing.after(accounted):
        if time.at.astimezone(UTC) > now or len(fire_at) >= MAX_FIRINGS:
            break
        fire_at.append(time.at)
    if fire_at:
        fire_at = fire_at[:MAX_FIRINGS]
        accounted = fire_at[-1]
    following = timing.next_after(accounted)
    return FiringPlan(fire_at, skipped, accounted, following and following.at)


def _latest(timing: Timing, *, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """At most so many times up to `until`, the latest, in their order."""
    found: list[datetime] = []
    if timing.starts_at is not None:  # `previous` knows no beginning
        after = max(after, timing.starts_at - timedelta(microseconds=1))
    before = until + timedelta(microseconds=1)
    while len(found) < limit:
        time = timing.previous(before)
        if time is None or time.astimezone(UTC) <= after.astimezone(UTC):
            break
        found.append(time)
        before = time
    return found[::-1]
