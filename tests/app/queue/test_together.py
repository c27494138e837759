"""Jobs that are asked for at the same time go into the queue in one transaction, and none is another's hostage."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import psycopg2
import pytest

from app.errors import DatabaseUnavailable, IdempotencyConflict, InvalidJob
from app.queue.audit import Act, acting
from app.queue.job import Enqueued, NewJob, Status
from app.queue.jobqueue import JobQueue
from app.queue.pool import Pool
from app.queue.together import Together
from tests.support import eventually
from tests.support.desk import Aside, Desk


class Held(JobQueue):
    """A queue whose first message alone is away until it is told to go on."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.go, self.first, self.messages = threading.Event(), True, list[int]()

    def put(self, asked):
        first, self.first = self.first, False
        if first:
            assert self.go.wait(30)
        self.messages.append(1)
        return super().put(asked)

    def put_together(self, asked):
        asked = list(asked)
        self.messages.append(len(asked))
        return super().put_together(asked)


class Serialization(psycopg2.OperationalError):
    pgcode = "40001"


class Crowd:
    """Threads that ask while the first of them is away."""

    def __init__(self, desk: Desk, pool: Pool, *, overtaken: bool = False) -> None:
        self.desk, self.queue = desk, Held(pool)
        self.together = Together(self.queue)
        self._overtaken = overtaken

    def ask(self, *news: NewJob) -> list[Aside]:
        """Each in a thread, in this order; the first is away meanwhile."""
        asking = []
        for n, new in enumerate(news):
            asking.append(Aside(self._ask, new, n))
            if n == 0:
                eventually(lambda: not self.queue.first)
            else:
                eventually(partial(self._gathered, n))
        self.queue.go.set()
        return asking

    def _gathered(self, n: int) -> bool:
        return len(self.together._waiting) == n

    def _ask(self, new: NewJob, n: int) -> Enqueued:
        with acting(Act(action="trigger", actor=f"caller {n}", via="key", request_id=f"request {n}")):
            return self.together.enqueue(new)


@pytest.fixture
def pool(shared_dsn: str) -> Iterator[Pool]:
    made = Pool(shared_dsn, size=10)
    yield made
    made.close()


@pytest.fixture
def crowd(desk, pool, monkeypatch) -> Crowd:
    monkeypatch.setattr("app.queue.together._LONG", 30.0)  # the first is away for as long as the test wants
    return Crowd(desk, pool)


def job(key: str = "k", **more: Any) -> NewJob:
    return NewJob(queue="q", task="t", lock_key=key, **more)


def results(asking: Sequence[Aside]) -> list[Enqueued]:
    return [one.result() for one in asking]


def test_those_that_gather_behind_one_go_in_one_transaction_in_their_order(crowd, desk):
    made = results(crowd.ask(*(job(str(n), args={"n": n, "text": 'a "quoted" é\\'}) for n in range(6))))

    assert crowd.queue.messages == [1, 5]
    assert all(one.created and one.status is Status.QUEUED for one in made)
    rows = desk.sql("SELECT job_id::text, lock_key, xmin::text, args ->> 'text' FROM dl_jobs ORDER BY created_at")
    assert [(row[0], row[1]) for row in rows] == [(str(one.job_id), str(n)) for n, one in enumerate(made)]
    assert [len({row[2] for row in rows}), {row[3] for row in rows}] == [2, {'a "quoted" é\\'}]
    assert desk.sql("SELECT kind, count(*) FROM dl_job_events GROUP BY 1") == [("queued", 6)]
    assert [run.id for run in desk.claim(6)] == [one.job_id for one in made]


def test_everybody_is_written_down_for_his_own_job(crowd, desk):
    desk.sql("DELETE FROM dl_audit")
    made = results(crowd.ask(*(job(str(n)) for n in range(4))))

    assert desk.sql("SELECT subject_id, actor, request_id, after ->> 'lock_key' FROM dl_audit ORDER BY actor") == [
        (str(one.job_id), f"caller {n}", f"request {n}", str(n)) for n, one in enumerate(made)
    ]


def test_everything_that_can_be_asked_for_is_kept_as_by_one_alone(crowd, desk):
    told = job(
        "full", args={"deep": [1, {"a": None}]}, idempotency_key="i", partition_key="p", priority=3, max_attempts=7,
        lease_ttl_sec=90, time_limit_sec=50, producer="x", consumer_group="y", retry={"kind": "fixed", "seconds": 5},
        webhook={"url": "https://example.org/a", "events": ["job.failed"]},
        traceparent="00-11111111111111111111111111111111-2222222222222222-01",
    )  # fmt: skip
    _, together, alone = crowd.ask(job("first"), told, job("other"))
    columns = (
        "queue, task, args, lock_key, partition_key, priority, max_attempts, lease_ttl_sec, time_limit_sec, producer,"
        " consumer_group, retry, webhook, traceparent, place, status, request_hash, live_key, attempt"
    )
    kept = desk.sql(f"SELECT {columns} FROM dl_jobs WHERE job_id = %s", str(together.result().job_id))
    alone.result()
    desk.sql("DELETE FROM dl_jobs")

    again = desk.queue.enqueue(told)
    assert desk.sql(f"SELECT {columns} FROM dl_jobs WHERE job_id = %s", str(again.job_id)) == kept


def test_a_key_that_is_taken_is_answered_with_its_job_and_a_conflict_is_its_callers_alone(crowd, desk):
    there = desk.queue.enqueue(job("there", idempotency_key="old"))
    asking = crowd.ask(
        job("first"),
        job("there", idempotency_key="old"),
        job("there", idempotency_key="old", args={"other": 1}),
        job("new", idempotency_key="new"),
        job("new", idempotency_key="new"),
        job("plain"),
    )

    again, twice = asking[1].result(), {asking[n].result().job_id for n in (3, 4)}
    assert (again.job_id, again.created) == (there.job_id, False)
    with pytest.raises(IdempotencyConflict):
        asking[2].result()
    assert len(twice) == 1
    assert sorted(asking[n].result().created for n in (3, 4)) == [False, True]
    assert asking[5].result().created
    assert desk.one("SELECT count(*) FROM dl_jobs") == 4


def test_a_key_of_a_deleted_job_is_answered_with_what_is_kept_of_it(crowd, desk):
    old = desk.queue.enqueue(job("old", idempotency_key="i"))
    desk.sql("UPDATE dl_jobs SET status = 'succeeded', finished_at = now()")
    desk.sql(
        "INSERT INTO dl_retired_keys (key_hash, job_id, status, request_hash)"
        " SELECT dl_key_hash(idempotency_key), job_id, status, request_hash FROM dl_jobs"
    )
    desk.sql("DELETE FROM dl_jobs")

    asking = crowd.ask(job("first"), job("old", idempotency_key="i"), job("plain"))

    assert asking[1].result() == Enqueued(old.job_id, Status.SUCCEEDED, created=False)
    assert asking[2].result().created


def test_a_value_that_the_database_refuses_costs_the_others_nothing(crowd, desk):
    asking = crowd.ask(job("first"), job("fine"), job("too many", max_attempts=-1), job("fine too"))

    assert [asking[n].result().created for n in (0, 1, 3)] == [True] * 3
    with pytest.raises(InvalidJob):
        asking[2].result()
    assert desk.one("SELECT count(*) FROM dl_jobs") == 3


def test_a_key_that_a_transaction_holds_keeps_only_its_own_caller_waiting(crowd, desk):
    holder = desk.connect()
    with holder.cursor() as cursor:
        cursor.execute("INSERT INTO dl_jobs (queue, task, lock_key, idempotency_key) VALUES ('q', 't', 'k', 'held')")
    asking = crowd.ask(job("first"), job("k", idempotency_key="held"), job("a"), job("b", idempotency_key="free"))

    assert [asking[n].result().created for n in (0, 2, 3)] == [True] * 3
    assert not asking[1].over
    holder.rollback()
    assert asking[1].result().created


def test_what_is_away_for_long_is_overtaken(desk, pool):
    crowd = Crowd(desk, pool)
    first = Aside(crowd.together.enqueue, job("first"))
    eventually(lambda: not crowd.queue.first)
    later = [Aside(crowd.together.enqueue, job(str(n))) for n in range(5)]

    assert all(one.created for one in results(later))
    assert not first.over
    crowd.queue.go.set()
    assert first.result().created
    assert Aside(crowd.together.enqueue, job("after")).result().created


def test_an_outage_is_everybodys(crowd, desk):
    class Away(Held):
        def put_together(self, asked):
            raise DatabaseUnavailable("gone")

    crowd.queue = Away(crowd.queue.source)
    crowd.together = Together(crowd.queue)
    asking = crowd.ask(job("first"), job("a"), job("b"))

    assert asking[0].result().created
    for one in asking[1:]:
        with pytest.raises(DatabaseUnavailable, match="gone"):
            one.result()
    assert Aside(crowd.together.enqueue, job("after")).result().created


@pytest.mark.parametrize(
    "error",
    [
        DatabaseUnavailable("could not serialize"),  # from one that stood in one's way
        psycopg2.errors.RaiseException("an operator's trigger says no"),
        RuntimeError("whatever else"),
    ],
    ids=["serialization", "raised", "a bug"],
)
def test_what_is_one_of_thems_fault_is_found_out_alone(crowd, desk, error):
    class Refusing(Held):
        def put_together(self, asked):
            if isinstance(error, DatabaseUnavailable):
                raise error from Serialization()
            raise error

    crowd.queue = Refusing(crowd.queue.source)
    crowd.together = Together(crowd.queue)
    asking = crowd.ask(job("first"), job("a"), job("b"))
    if isinstance(error, RuntimeError):  # nobody knows whether it came to pass
        with pytest.raises(RuntimeError):
            asking[1].result()
        with pytest.raises(DatabaseUnavailable):
            asking[2].result()
    else:
        assert all(one.created for one in results(asking))
    assert Aside(crowd.together.enqueue, job("after")).result().created


def test_a_live_key_is_asked_for_alone(crowd, desk):
    crowd.queue.go.set()
    made = [crowd.together.enqueue(job("k", live_key="one")) for _ in range(2)]

    assert [one.created for one in made] == [True, False]
    assert made[0].job_id == made[1].job_id


def test_one_caller_may_ask_for_many_and_is_told_which_must_be_asked_for_alone(desk, pool):
    there = desk.queue.enqueue(job("old", idempotency_key="old"))
    together = Together(JobQueue(pool))
    news = [
        job("a"), job("b", idempotency_key="new"), job("old", idempotency_key="old"), job("live", live_key="l"),
        job("c", args={"x": object()}), job("d", idempotency_key="new"),
    ]  # fmt: skip

    made = together.enqueue_all([(new, None) for new in news])

    kept = dict(desk.sql("SELECT lock_key, job_id::text FROM dl_jobs"))
    assert [isinstance(one, Enqueued) for one in made] == [True, True, False, False, False, False]
    assert [str(one.job_id) for one in made if isinstance(one, Enqueued)] == [kept["a"], kept["b"]]
    assert kept.keys() == {"a", "b", "old"}
    assert kept["old"] == str(there.job_id)
    assert together.enqueue_all([]) == []


def test_very_many_at_once_are_each_answered(desk, pool):
    together = Together(JobQueue(pool))

    def several(thread: int) -> list[Enqueued]:
        return [together.enqueue(job(f"{thread} {n}", idempotency_key=f"{n} of {thread % 4}")) for n in range(25)]

    made = [one for aside in [Aside(several, thread) for thread in range(16)] for one in aside.result()]

    assert sum(one.created for one in made) == 100 == desk.one("SELECT count(*) FROM dl_jobs")
    assert len({one.job_id for one in made}) == 100
    assert not together._waiting
    assert together._leader is None
