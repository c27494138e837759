"""The part of the overview: tasks that are paused, or whose breaker is open."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from urllib.parse import urlencode

from dataloader.app.acts.service_problems import MAX_OF_A_KIND, Impact, Problem, ProblemAct
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.features.limits.breakers import BreakerState, read_open_breakers
from dataloader.app.state.queues import read_queue_statuses
from dataloader.app.wording import format_count


def breaker_problems(reads: SharedReads) -> Iterator[Problem]:
    for breaker in islice(reads.get(read_open_breakers), MAX_OF_A_KIND):
        is_paused = breaker.state is BreakerState.OPEN and breaker.probe_at is None
        by = f" by {breaker.changed_by}" if breaker.changed_by else ""
        state = f" is paused{by}" if is_paused else f": its circuit breaker is {breaker.state.value.replace('_', '-')}"
        reason = f": {breaker.reason}" if breaker.reason else ""
        waiting = f"; {format_count(breaker.waiting, 'job')} waiting" if breaker.waiting else ""
        yield Problem(
            kind="paused" if is_paused else "breaker open",
            subject=("task", breaker.task),
            impact=Impact.NOT_STARTED,
            state="warning" if is_paused else "alert",
            after=f"{state}{reason}{waiting}",
            since=breaker.opened_at,
            acts=(
                ProblemAct("Failures", "/failures?" + urlencode({"task": breaker.task})),
                ProblemAct("Resume", "/breakers", {"task": breaker.task, "action": "resume"}),
            ),
            covers=frozenset({"breaker_open"}),
        )


def count_limited_jobs(reads: SharedReads) -> int:
    return sum(status.limited for status in reads.get(read_queue_statuses))
