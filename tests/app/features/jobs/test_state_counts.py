"""When the counts of the list's tabs are taken again."""

from __future__ import annotations

import pytest

from dataloader.app.features.jobs import state_counts
from dataloader.app.features.jobs.job_rows import STATES
from dataloader.app.features.jobs.job_search import Filter, MatchCount
from dataloader.app.features.jobs.state_counts import StateCounter
from dataloader.app.queue.job import Status


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class SlowRows:
    """Counts one job more at each call."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock, self.calls, self.duration_sec = clock, 0, 0.1

    def count_states(self, job_filter: Filter) -> dict[str, MatchCount]:
        self._clock.advance(self.duration_sec)
        self.calls += 1
        return dict.fromkeys(STATES, MatchCount(self.calls, True, 0))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def rows(clock) -> SlowRows:
    return SlowRows(clock)


@pytest.fixture
def counter(rows, clock) -> StateCounter:
    return StateCounter(rows, clock=clock)


ANY_JOB = Filter()


def counted(counter: StateCounter, job_filter: Filter = ANY_JOB) -> tuple[int, float]:
    counts = counter.count(job_filter)
    jobs = counts.by_state["ready"]
    assert jobs is not None
    return jobs.jobs, round(counts.age_sec, 1)


def test_slow_counts_are_kept_five_seconds_with_their_age(counter, clock):
    assert counted(counter) == (1, 0.0)
    clock.advance(4.0)
    assert counted(counter) == (1, 4.1), "from when the count began"
    clock.advance(1.0)
    assert counted(counter) == (2, 0.0)


def test_quick_counts_are_never_kept(counter, rows):
    rows.duration_sec = 0.01

    assert [counted(counter) for _ in range(2)] == [(1, 0.0), (2, 0.0)]


def test_states_of_a_filter_share_its_counts(counter, rows):
    counted(counter, Filter(queue="q", status=frozenset({Status.FAILED})))
    counted(counter, Filter(queue="q", status=frozenset({Status.QUEUED}), wait_state="ready"))
    assert rows.calls == 1

    counted(counter, Filter(queue="other"))
    assert rows.calls == 2


def test_counts_are_taken_again_after_an_action(counter):
    counted(counter)
    counter.forget()

    assert counted(counter) == (2, 0.0)


def test_oldest_of_many_filters_is_dropped(counter, rows, monkeypatch):
    monkeypatch.setattr(state_counts, "_MAX_FILTERS", 2)
    for queue in ("a", "b", "c", "b", "a"):
        counted(counter, Filter(queue=queue))

    assert rows.calls == 4
