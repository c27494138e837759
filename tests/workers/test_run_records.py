"""When the row of a running job is renewed, and when its progress is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.queue.job import RenewalRequest, RunRef
from dataloader.workers import run_records
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.run_records import RunRecords
from tests.support.claimed_jobs import claimed_job


class Queue:
    """Records what is written, and for which second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rows: list[tuple[float, RenewalRequest]] = []
        self.saved: list[tuple[float, Any]] = []
        self.is_locked = self.is_lost = False

    def renew(self, requests: Sequence[RenewalRequest]) -> set[UUID]:
        if self.is_locked:
            return set()
        self.rows += [(self.now, request) for request in requests]
        return {UUID(str(request.run_id)) for request in requests}

    def save_progress(self, values: Sequence[tuple[RunRef, Mapping[str, Any]]]) -> set[UUID]:
        if self.is_lost:
            return set()
        self.saved += [(self.now, progress) for _, progress in values]
        return {UUID(str(run.run_id)) for run, _ in values}


class Run:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue = Queue()
        monkeypatch.setattr(run_records, "clock", lambda: self.queue.now)
        self.records = RunRecords(self.queue)  # type: ignore[arg-type]
        self.attempt = Attempt(claimed_job(), claimed_at=0.0, settings=AttemptSettings())

    def go_to(self, second: float, *, every: float = 1.0, progress: bool = False) -> list[Attempt]:
        """Write once a second until then, as the heartbeat does."""
        lost: list[Attempt] = []
        while self.queue.now < second:
            self.queue.now += every
            if progress:
                self.attempt.reported.replace_progress({"n": self.queue.now})
            lost += self.records.write([self.attempt], self.queue.now)
        return lost


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_row_is_renewed_ever_more_seldom(run):
    run.go_to(3 * 3600)

    times = [second for second, _ in run.queue.rows]
    assert times[:8] == [30, 60, 90, 135, 203, 305, 458, 687]
    assert len(times) < 20
    for (second, request), following in zip(run.queue.rows, times[1:], strict=False):
        assert second + request.next_sec <= following < second + request.next_sec + 60, "the row's lease is valid"
    run.go_to(3 * 86_400, every=60.0)
    last, before = run.queue.rows[-1][0], run.queue.rows[-2][0]
    assert last - before == 3600, "and at least once an hour"


def test_lease_of_the_row_ends_unless_it_is_renewed(run):
    run.attempt.lease.renewed_at = 1e9
    run.queue.is_locked = True
    run.go_to(50)
    assert run.attempt.lease.ends_at == 60

    run.queue.is_locked = False
    run.go_to(51)

    assert [second for second, _ in run.queue.rows] == [51]
    assert run.attempt.lease.ends_at == 51 + 30 + 60


def test_progress_is_saved_when_it_has_changed(run):
    run.go_to(600, progress=True)

    times = [second for second, _ in run.queue.saved]
    assert times[:60] == list(range(1, 61)), "each second in the first minute"
    later = [after - before for before, after in pairwise(times[60:])]
    assert max(later) == 5, "then every five seconds"
    saved = len(times)
    run.go_to(640)
    assert len(run.queue.saved) <= saved + 1, "not again"
    with_progress = [request.progress for _, request in run.queue.rows]
    assert None not in with_progress[:-1], "the row gets the progress when it is renewed"


def test_progress_of_a_followed_job_is_saved_at_once(run):
    run.go_to(100, progress=True)
    run.records.follow(run.attempt.job.run_text)
    run.records.follow("another")
    before = len(run.queue.saved)

    run.go_to(125, progress=True)

    assert len(run.queue.saved) == before + 25
    run.go_to(200, progress=True)
    assert len(run.queue.saved) < before + 60


def test_checkpoint_goes_to_the_row_at_once(run):
    run.go_to(5)
    run.attempt.reported.record_checkpoint({"page": 1})

    run.go_to(7)

    ((second, request),) = run.queue.rows
    assert (second, request.checkpoint) == (6, {"page": 1})


def test_checkpoints_are_written_ever_more_seldom(run):
    for second in range(1, 3 * 3600):
        run.attempt.reported.record_checkpoint({"page": second})
        run.go_to(second)

    times = [second for second, _ in run.queue.rows]
    assert times[:50] == list(range(1, 51)), "each second at first"
    assert len(times) < 400
    gaps = [(before, after - before) for before, after in pairwise(times)]
    assert all(gap <= min(60, 0.02 * before) + 1 for before, gap in gaps), "a minute's work at most is done again"
    run.go_to(3 * 3600 + 60)
    assert run.queue.rows[-1][1].checkpoint == {"page": 3 * 3600 - 1}, "the last one is written, too"
    assert run.attempt.reported.unsaved()[1] is None


def test_run_whose_progress_was_not_taken_may_be_lost(run):
    run.queue.is_lost = True

    assert run.go_to(1, progress=True) == [run.attempt]
    assert run.attempt.reported.unsaved()[0] == {"n": 1.0}
