"""The queue against a model in plain Python: whatever is done in whatever order, both agree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dataloader.app.errors import NotRetryable
from dataloader.app.queue.job import ClaimedJob, ReleaseReason, Status
from tests.support import Databases
from tests.support.queue_fixture import QueueFixture

KEYS = ("a", "b", "c")
QUEUES = ("q", "r")
QUEUED, RUNNING = Status.QUEUED, Status.RUNNING


@dataclass
class Modelled:
    """What must be true of a job."""

    id: UUID
    key: str
    queue: str
    priority: int
    born: int
    most: int
    status: Status = QUEUED
    attempt: int = 0
    due: bool = True
    flag: bool = False
    expired: bool = False
    runs: list[ClaimedJob] = field(default_factory=list)  # the last one is the owner while it runs

    @property
    def turn(self) -> tuple[int, int]:
        return self.priority, self.born


def exists(*statuses: Status) -> Any:
    """A rule that needs a job in one of these."""
    return precondition(lambda self: bool(self.of(*statuses)))


class QueueMachine(RuleBasedStateMachine):
    queue_db: QueueFixture

    @initialize()
    def begin(self) -> None:
        self.jobs: list[Modelled] = []
        self.queue_db.sql("TRUNCATE dl_jobs, dl_job_events")

    def of(self, *statuses: Status) -> list[Modelled]:
        return [job for job in self.jobs if job.status in statuses]

    def pick(self, data: st.DataObject, *statuses: Status) -> Modelled:
        return data.draw(st.sampled_from(self.of(*statuses) if statuses else self.jobs))

    # ── by callers ──────────────────────────────────────────────────────────────────────────────────────────────

    @rule(
        key=st.sampled_from(KEYS),
        queue=st.sampled_from(QUEUES),
        priority=st.integers(0, 2),
        most=st.integers(1, 3),
        due=st.booleans(),
        plain=st.booleans(),
    )
    def enqueue(self, key: str, queue: str, priority: int, most: int, due: bool, plain: bool) -> None:
        values: dict[str, Any] = {"priority": priority, "max_attempts": most}
        if not due:
            values["available_at"] = self.queue_db.fetch_row("SELECT now() + interval '1 h'")
        make = self.queue_db.insert if plain else self.queue_db.enqueue
        job_id = make(key, queue=queue, **values)
        self.jobs.append(Modelled(job_id, key, queue, priority, len(self.jobs), most, due=due))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = self.pick(data)
        after = self.queue_db.queue.cancel(job.id)
        if job.status is QUEUED:
            job.status = Status.CANCELED
        elif job.status is RUNNING:
            job.flag = True
        assert after.status is job.status

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job = self.pick(data)
        if job.status in (Status.FAILED, Status.CANCELED, Status.LOST):
            self.queue_db.queue.retry(job.id)
            job.status, job.attempt, job.flag, job.due = QUEUED, 0, False, True
        else:
            with pytest.raises(NotRetryable):
                self.queue_db.queue.retry(job.id)

    # ── by workers ──────────────────────────────────────────────────────────────────────────────────────────────

    def claimable(self, queue: str) -> list[Modelled]:
        """Of each key that no one holds the best one in this queue, in order; others wait for these."""
        held = {job.key for job in self.of(RUNNING)}
        best: dict[str, Modelled] = {}
        for job in sorted(self.of(QUEUED), key=lambda job: job.turn):
            if job.queue == queue and job.due and job.key not in held:
                best.setdefault(job.key, job)
        return sorted(best.values(), key=lambda job: job.turn)

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 4))
    def claim(self, queue: str, count: int) -> None:
        # A job that was parked behind one of the other queue which has not started yet comes back by the sweep.
        while self.queue_db.repair_blocked():
            pass
        expected = self.claimable(queue)[:count]
        runs = self.queue_db.claim(count, queue=queue)
        by_id = {job.id: job for job in self.jobs}
        assert len(runs) == len(expected)
        for run in runs:
            job = by_id[run.id]
            assert job in self.claimable(queue) or job.key in {other.key for other in expected}
            job.runs.append(run)
        assert {by_id[run.id].key for run in runs} == {job.key for job in expected}
        for run in runs:
            job = by_id[run.id]
            job.status, job.attempt, job.expired = RUNNING, job.attempt + 1, False
            assert run.attempt == job.attempt

    @exists(RUNNING)
    @rule(
        data=st.data(),
        end=st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.CANCELED, QUEUED]),
        pause=st.sampled_from([0.0, 3600.0]),
    )
    def settle(self, data: st.DataObject, end: Status, pause: float) -> None:
        job = self.pick(data, RUNNING)
        fate = self.queue_db.settle(job.runs[-1], end, retry_in_sec=pause)
        job.status = end
        if end is QUEUED and job.attempt >= job.most:
            job.status = Status.FAILED
        if job.flag and end is not Status.SUCCEEDED:
            job.status = Status.CANCELED
        job.due = pause == 0
        assert (fate.outcome, fate.status) == ("applied", job.status)

    @exists(RUNNING)
    @rule(data=st.data(), why=st.sampled_from(ReleaseReason))
    def release(self, data: st.DataObject, why: ReleaseReason) -> None:
        job = self.pick(data, RUNNING)
        fate = self.queue_db.release(job.runs[-1], why)
        if job.flag:
            job.status = Status.CANCELED
        else:
            job.status, job.attempt, job.due = QUEUED, job.attempt - 1, True
        assert (fate.outcome, fate.status) == ("applied", job.status)

    @exists(RUNNING)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        job = self.pick(data, RUNNING)
        assert self.queue_db.renew(job.runs[-1], {"heartbeat": job.attempt}) is job.flag
        job.expired = False

    @precondition(lambda self: any(job.runs for job in self.jobs))
    @rule(data=st.data(), end=st.sampled_from(Status))
    def a_stale_run_tries_everything(self, data: st.DataObject, end: Status) -> None:
        job = data.draw(st.sampled_from([job for job in self.jobs if job.runs]))
        stale = job.runs[:-1] if job.status is RUNNING else job.runs
        if stale:
            run = data.draw(st.sampled_from(stale))
            assert self.queue_db.renew(run) is None
            assert self.queue_db.release(run).outcome != "applied"
            assert self.queue_db.settle(run, end).outcome != "applied"

    # ── for the dead ────────────────────────────────────────────────────────────────────────────────────────────

    @exists(RUNNING)
    @rule(data=st.data())
    def a_worker_dies(self, data: st.DataObject) -> None:
        job = self.pick(data, RUNNING)
        self.queue_db.expire_lease(job.id)
        job.expired = True

    @rule(pause=st.sampled_from([0.0, 3600.0]))
    def reap(self, pause: float) -> None:
        dead = [job for job in self.of(RUNNING) if job.expired]
        reaped = self.queue_db.reap(pause_sec=pause)
        assert {one.job_id for one in reaped} == {job.id for job in dead}
        for job in dead:
            if job.flag:
                job.status = Status.CANCELED
            elif job.attempt < job.most:
                job.status, job.due = QUEUED, pause == 0
            else:
                job.status = Status.LOST

    @exists(QUEUED)
    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        job = self.pick(data, QUEUED)
        self.queue_db.make_due(job.id)
        job.due = True

    @rule()
    def promote(self) -> None:
        self.queue_db.promote()

    @rule()
    def sweep(self) -> None:
        self.queue_db.repair_blocked()

    # ── after each step ─────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def rows_and_journal_and_model_agree(self) -> None:
        result = self.queue_db.check_invariants()
        assert {job.id: (job.status, job.attempt) for job in self.jobs} == {
            job_id: (life.status, life.attempt) for job_id, life in result.items()
        }

    @invariant()
    def no_job_is_forgotten(self) -> None:
        """A key with parked jobs has one that runs, or one that will wake them; else the sweep would find them now."""
        parked = {row[0] for row in self.queue_db.sql("SELECT lock_key FROM dl_jobs WHERE wait_state = 'blocked'")}
        for key in parked:
            assert any(job.key == key and job.status is QUEUED for job in self.jobs)
        not_due = {job.id for job in self.of(QUEUED) if not job.due}
        waiting = self.queue_db.sql(
            "SELECT job_id FROM dl_jobs WHERE status = 'queued' AND available_at > clock_timestamp()"
        )
        assert not_due == {UUID(row[0]) for row in waiting}


@pytest.fixture(scope="module")
def shared_desk(databases: Databases) -> Iterator[QueueFixture]:
    with databases.fresh() as dsn:
        made = QueueFixture(dsn)
        yield made
        made.close()


@pytest.mark.timeout(600)
def test_the_queue_does_what_a_model_of_it_does(shared_desk):
    class Machine(QueueMachine):
        queue_db = shared_desk

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=int(os.environ.get("DL_TEST_EXAMPLES", "40")),
            stateful_step_count=30,
            derandomize="DL_TEST_EXAMPLES" not in os.environ,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
