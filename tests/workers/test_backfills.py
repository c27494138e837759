"""Making the jobs of backfills: each mode, concurrency, pause and cancel, slices that others load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.errors import BackfillEnded
from dataloader.app.features.backfills.duty import BackfillsDuty
from dataloader.app.features.backfills.rows import (
    Backfill,
    BackfillMode,
    BackfillOptions,
    Backfills,
    BackfillState,
    limit_of,
)
from dataloader.app.queue.job import SUCCEEDED, Settlement, Status
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.partitions import Daily
from tests.support.queue_fixture import QueueFixture

FAILED = Settlement(Status.FAILED, error="it broke")


class BackfillFixture:
    def __init__(self, queue: QueueFixture) -> None:
        self.queue, self.backfills = queue, Backfills(queue.session)
        self.duty = BackfillsDuty(queue.session, Pipelines(), default_lease_sec=60)

    def create(self, first: str = "2026-01-01", last: str = "2026-01-31", **options: Any) -> Backfill:
        slices = Daily(first, end=last, zone="Europe/Moscow")
        backfill, _ = self.backfills.create(
            "t", queue="q", slices=slices.to_json(), total=slices.count(), template={"args": {"day": "{partition}"}},
            options=BackfillOptions(**options),
        )  # fmt: skip
        return backfill

    def make(self) -> None:
        while self.duty.run() == 0.0:
            pass

    def load(self, day: str, settlement: Settlement = SUCCEEDED) -> None:
        """A job of its own for one slice, from its request to its end."""
        self.queue.enqueue(day, live_key=f"slice:t:{day}", partition_key=day)
        (run,) = self.queue.claim()
        self.queue.queue.settle([(run, settlement)])

    def finish(self, count: int, settlement: Settlement = SUCCEEDED) -> list[str]:
        runs = self.queue.claim(count)
        self.queue.queue.settle([(run, settlement) for run in runs])
        return [run.partition_key for run in runs]

    def limits(self) -> dict[UUID, int]:
        rows = self.queue.sql("SELECT name, concurrency FROM dl_limits")
        return {UUID(name.removeprefix("backfill:")): concurrency for name, concurrency in rows}

    def queued(self) -> list[str]:
        rows = self.queue.sql("SELECT partition_key FROM dl_jobs WHERE status = 'queued' ORDER BY created_at")
        return [key for (key,) in rows]


@pytest.fixture
def fixture(dsn: str) -> Iterator[BackfillFixture]:
    queue = QueueFixture(dsn)
    yield BackfillFixture(queue)
    queue.close()


def test_each_slice_is_loaded_once_and_the_backfill_ends(fixture):
    backfill = fixture.create()
    fixture.make()
    assert fixture.queued() == [f"2026-01-{n:02}" for n in range(1, 32)]
    job = fixture.queue.fetch_row("SELECT args FROM dl_jobs ORDER BY created_at LIMIT 1")
    assert job == {"day": "2026-01-01"}

    loaded = []
    while days := fixture.finish(10):
        assert len(days) <= 2, "its concurrency"
        loaded += days
    fixture.make()

    ended = fixture.backfills.get(backfill.backfill_id)
    assert sorted(loaded) == [f"2026-01-{n:02}" for n in range(1, 32)]
    assert (ended.state, ended.made, ended.by_state) == (BackfillState.DONE, 31, {"succeeded": 31})
    assert fixture.queue.sql("SELECT count(*) FROM dl_limits") == [(0,)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("missing", "23"), ("failed", "2"), ("unfinished", "23"), ("all", "123")],
)
def test_modes(fixture, mode, expected):
    fixture.load("2026-01-01")
    fixture.load("2026-01-02", FAILED)
    if mode == "failed":
        fixture.load("2026-01-02", FAILED)
    backfill = fixture.create(last="2026-01-03", mode=BackfillMode(mode))
    fixture.make()

    assert fixture.queued() == [f"2026-01-0{n}" for n in expected]
    made = fixture.backfills.get(backfill.backfill_id)
    assert (made.made, made.skipped) == (len(expected), 3 - len(expected))


def test_the_newest_come_first_if_asked_for(fixture):
    fixture.create(last="2026-01-03", newest_first=True)
    fixture.make()

    assert fixture.queued() == ["2026-01-03", "2026-01-02", "2026-01-01"]


def test_a_slice_that_another_job_loads_is_adopted(fixture):
    other = fixture.queue.enqueue("live", live_key="slice:t:2026-01-02", partition_key="2026-01-02")
    backfill = fixture.create(last="2026-01-03")
    fixture.make()

    slices = fixture.backfills.slices(backfill_id=backfill.backfill_id)
    assert [(s.partition_key, s.job_id == other) for s in slices] == [
        ("2026-01-01", False),
        ("2026-01-02", True),
        ("2026-01-03", False),
    ]
    assert fixture.queue.fetch_row("SELECT count(*) FROM dl_jobs") == 3


def test_a_paused_backfill_starts_nothing_and_a_canceled_one_makes_nothing(fixture):
    backfill = fixture.create()
    fixture.make()
    fixture.backfills.change(backfill.backfill_id, state=BackfillState.PAUSED)
    assert fixture.finish(5) == []
    fixture.backfills.change(backfill.backfill_id, state=BackfillState.OPEN, concurrency=3)
    assert len(fixture.finish(5)) == 3

    second = fixture.create("2025-01-01", "2025-12-31")
    read = fixture.backfills.get(second.backfill_id)
    fixture.backfills.change(second.backfill_id, state=BackfillState.CANCELED)
    assert fixture.backfills.make(read, "2025-01-01", [], passed=0) is None
    fixture.make()
    assert fixture.queue.fetch_row("SELECT count(*) FROM dl_jobs WHERE partition_key < '2026'") == 0
    with pytest.raises(BackfillEnded):
        fixture.backfills.change(second.backfill_id, state=BackfillState.OPEN)


def test_failures_in_a_row_pause_it_and_what_failed_is_loaded_again(fixture):
    backfill = fixture.create(last="2026-01-05", stop_after_failures=2, concurrency=1)
    fixture.make()
    fixture.finish(1, FAILED)
    fixture.finish(1)
    fixture.finish(1, FAILED)
    fixture.make()
    assert fixture.backfills.get(backfill.backfill_id).state is BackfillState.OPEN
    fixture.finish(1, FAILED)
    fixture.make()
    paused = fixture.backfills.get(backfill.backfill_id)
    assert (paused.state, paused.reason) == (BackfillState.PAUSED, "2 slices in a row did not succeed")

    fixture.backfills.change(backfill.backfill_id, state=BackfillState.OPEN)
    fixture.finish(1)
    fixture.make()
    assert fixture.backfills.get(backfill.backfill_id).state is BackfillState.DONE
    fixture.backfills.retry(backfill.backfill_id)
    fixture.make()
    assert fixture.queued() == ["2026-01-01", "2026-01-03", "2026-01-04"]


def test_jobs_are_made_some_ahead_of_need(fixture):
    backfill = fixture.create("2020-01-01", "2026-01-31")
    fixture.make()
    assert fixture.backfills.get(backfill.backfill_id).by_state == {"queued": 1000}
    fixture.queue.sql("UPDATE dl_jobs SET status = 'canceled' WHERE partition_key < '2022'")
    fixture.make()

    states = Counter(fixture.backfills.get(backfill.backfill_id).by_state)
    assert states["queued"] == 1000
    limit = fixture.queue.sql("SELECT concurrency FROM dl_limits WHERE name = %s", limit_of(backfill.backfill_id))
    assert limit == [(2,)]


def test_args_that_fit_no_slice_pause_it_with_the_reason(fixture):
    slices = Daily("2026-01-01", end="2026-01-02", zone="UTC")
    backfill, _ = fixture.backfills.create(
        "t", queue="q", slices=slices.to_json(), total=2, template={"args": {"day": "{partition}"}, "limits": {"w": 0}}
    )
    fixture.make()

    assert fixture.backfills.get(backfill.backfill_id).state is BackfillState.PAUSED


def test_jobs_keep_the_limit_of_their_backfill_when_another_one_asks_for_their_slices(fixture):
    first = fixture.create(last="2026-01-10", concurrency=1)
    fixture.make()
    second = fixture.create(last="2026-01-10", concurrency=5, mode=BackfillMode.ALL)
    fixture.make()
    assert fixture.backfills.get(first.backfill_id).by_state == {}, "the slices count in the second one"
    assert fixture.backfills.get(first.backfill_id).state is BackfillState.OPEN, "its jobs wait"

    canceled = fixture.create("2026-02-01", "2026-02-02")
    fixture.backfills.change(canceled.backfill_id, state=BackfillState.CANCELED)
    fixture.make()
    assert fixture.limits() == {first.backfill_id: 1, second.backfill_id: 5}, "that of the canceled one is deleted"
    fixture.backfills.change(first.backfill_id, state=BackfillState.CANCELED)
    fixture.make()
    assert fixture.limits() == {first.backfill_id: 1, second.backfill_id: 5}
    while days := fixture.finish(10):
        assert len(days) == 1
    fixture.make()

    assert fixture.backfills.get(second.backfill_id).state is BackfillState.DONE
    fixture.make()
    assert fixture.limits() == {}


def test_the_limit_follows_a_backfill_that_two_change_at_once(fixture):
    """One changes the concurrency, the other pauses it meanwhile: whichever commits last, nothing starts."""
    backfill = fixture.create()
    fixture.make()
    changes = "UPDATE dl_backfills SET concurrency = 7 WHERE backfill_id = %s"
    with fixture.queue.connect() as other, ThreadPoolExecutor(1) as threads:
        cursor = other.cursor()
        cursor.execute(changes, (str(backfill.backfill_id),))
        pausing = threads.submit(fixture.backfills.change, backfill.backfill_id, state=BackfillState.PAUSED)
        watcher = QueueFixture(fixture.queue.dsn)
        watcher.wait_for_lock_waiters()
        cursor.execute("SELECT dl_set_backfill_limit(%s)", (str(backfill.backfill_id),))
        other.commit()
        assert pausing.result(30).concurrency == 7
        watcher.close()

    assert fixture.limits() == {backfill.backfill_id: 0}
    assert fixture.finish(10) == []


def test_a_step_that_finds_a_problem_lets_none_of_its_jobs_start(fixture):
    backfill = fixture.create()
    made = fixture.backfills.make(backfill, "2026-01-01", [{"queue": "q", "task": ""}], passed=0)

    assert made is not None
    assert made.problem is not None
    assert fixture.backfills.get(backfill.backfill_id).state is BackfillState.PAUSED
    assert fixture.limits() == {backfill.backfill_id: 0}
