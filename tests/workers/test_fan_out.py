"""A running job makes jobs, and a successor that waits for them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Context, Pipelines
from dataloader.pipelines.testing import FakeContext
from tests.support import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture


class FanOut:
    """The task `split`, which fans out to `part` and `total`, in a pool."""

    def __init__(self, worker_pools: WorkerPoolFixture) -> None:
        self.pools, self.queue_db = worker_pools, worker_pools.queue_fixture
        self.made: list[tuple[list[UUID], UUID]] = []
        self.failures_left = 0
        self.tasks = Pipelines()
        self.tasks.register("split", retry=_AT_ONCE)(self._split)
        self.tasks.register("part", no_retry=[ValueError])(self._part)
        self.tasks.register("total")(self._total)

    def _split(self, args: dict[str, Any], ctx: Context) -> None:
        jobs = [
            {"task": "part", "args": {"n": n, **args.get("part", {})}, "lock_key": f"part-{n}"}
            for n in range(args["parts"])
        ]
        then: dict[str, Any] = {"task": "total", "args": {"of": args["parts"]}, **args.get("then", {})}
        options = {name: args[name] for name in ("on", "need") if name in args}
        if args.get("in_transaction"):
            with ctx.transaction():
                self.made.append(ctx.fan_out(jobs, then=then, **options))
                self._fail_if_asked()
        else:
            self.made.append(ctx.fan_out(jobs, then=then, **options))
            self._fail_if_asked()

    def _fail_if_asked(self) -> None:
        if self.failures_left:
            self.failures_left -= 1
            raise ConnectionError("again")

    def _part(self, args: dict[str, Any]) -> int:
        if args.get("fails"):
            raise ValueError("broken")
        return int(args["n"])

    def _total(self, args: dict[str, Any], ctx: Context) -> dict[str, Any]:
        statuses = sorted(parent.status for parent in ctx.upstream.values())
        return {"statuses": statuses, "sum": sum(parent.result or 0 for parent in ctx.upstream.values())}

    def run(self, **args: Any) -> UUID:
        job_id: UUID = self.queue_db.enqueue("split", task="split", args=args)
        self.pools.pool(pipelines=self.tasks)
        eventually(lambda: self.queue_db.status(job_id).final)
        return job_id

    def end_of(self, job_id: UUID) -> tuple[Status, Any]:
        eventually(lambda: self.queue_db.status(job_id).final)
        job = self.queue_db.job(job_id)
        return job.status, job.result


class _AtOnce:
    def pause(self, attempt: int) -> float:
        return 0.0


_AT_ONCE = _AtOnce()


@pytest.fixture
def fan_out(worker_pools: WorkerPoolFixture) -> FanOut:
    return FanOut(worker_pools)


def test_the_successor_starts_after_all_jobs(fan_out: FanOut):
    split = fan_out.run(parts=5)

    ((parts, total),) = fan_out.made
    assert len(parts) == 5
    assert fan_out.end_of(total) == (Status.SUCCEEDED, {"statuses": ["succeeded"] * 5, "sum": 10})
    job = fan_out.queue_db.job(total)
    assert (job.parent_id, job.args) == (split, {"of": 5})
    early = "SELECT count(*) FROM dl_jobs WHERE task = 'part' AND finished_at > %s"
    assert fan_out.queue_db.fetch_row(early, job.started_at) == 0


def test_without_jobs_the_successor_is_ready_at_once(fan_out: FanOut):
    fan_out.run(parts=0)

    ((parts, total),) = fan_out.made
    assert parts == []
    assert fan_out.end_of(total) == (Status.SUCCEEDED, {"statuses": [], "sum": 0})


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_repeated_attempt_makes_no_second_set(fan_out: FanOut, in_transaction: bool):
    fan_out.failures_left = 2

    fan_out.run(parts=3, in_transaction=in_transaction)

    assert len(fan_out.made) == 3
    total = fan_out.made[-1][1]
    assert fan_out.end_of(total)[1] == {"statuses": ["succeeded"] * 3, "sum": 3}
    if not in_transaction:  # else the failed attempts rolled theirs back
        assert fan_out.made[0] == fan_out.made[1] == fan_out.made[2]
    assert fan_out.queue_db.sql("SELECT task, count(*) FROM dl_jobs GROUP BY 1 ORDER BY 1") == [
        ("part", 3), ("split", 1), ("total", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("on", "end"), [("succeeded", Status.CANCELED), ("ended", Status.SUCCEEDED)])
def test_a_failed_job_counts_as_the_condition_says(fan_out: FanOut, on: str, end: Status):
    fan_out.run(parts=2, part={"fails": True}, on=on)

    assert fan_out.end_of(fan_out.made[0][1])[0] is end


def test_all_are_created_or_none(fan_out: FanOut):
    split = fan_out.run(parts=3, then={"lock_key": "x" * 3000, "max_attempts": 1})

    job = fan_out.queue_db.job(split)
    assert job.status is not Status.SUCCEEDED
    assert "lock_key" in (job.error or "")
    assert fan_out.queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 1


def test_what_cannot_be_fanned_out_is_refused():
    ctx = FakeContext()
    with pytest.raises(ValueError, match="at most 1,000 others, not 1,001"):
        ctx.fan_out([{"task": "part"}] * 1001, then={"task": "total"})
    with pytest.raises(ValueError, match="on is"):
        ctx.fan_out([], then={"task": "total"}, on="done")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="colour"):
        ctx.fan_out([{"task": "part", "colour": 1}], then={"task": "total"})


def test_a_fake_context_records_what_was_fanned_out():
    ctx = FakeContext()
    as_declared: Context = ctx

    parts, total = as_declared.fan_out([{"task": "part", "args": {"n": n}} for n in range(2)], then={"task": "total"})

    assert [follow_up.job_id for follow_up in ctx.follow_ups] == [*parts, total]
    assert ctx.follow_ups[-1].options == {"after": parts, "on": "succeeded", "need": "all"}
