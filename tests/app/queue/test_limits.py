"""Limits: jobs that may not start wait as limited, and the end of a run wakes as many as may start."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest
from psycopg2.extras import Json

from dataloader.app.errors import InvalidJob, LimitNotFound
from dataloader.app.features.bulk.rows import BulkAction, BulkOperations
from dataloader.app.features.jobs.job_search import Filter
from dataloader.app.features.limits.rows import Limits
from dataloader.app.queue.job import ReleaseReason, Settlement, Status
from tests.support import eventually

SUCCESS = Settlement(Status.SUCCEEDED)
SLOW = "interval '5 ms'"  # what takes longer is slow


@pytest.fixture
def limits(queue_db) -> Limits:
    return Limits(queue_db.session)


@pytest.fixture(params=["index", "look"], autouse=True)
def source(request, queue_db) -> Iterator[str]:
    """Where the jobs of a limit are found: in the indexes, as if each look was quick, or in the last look."""
    names = "('dl_apply_limits', 'dl_take_limit_look', 'dl_wake_limited')"
    found = queue_db.sql(f"SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname IN {names}")
    for (definition,) in found:
        assert SLOW in definition
        queue_db.sql(definition.replace(SLOW, "interval '-1 s'" if request.param == "look" else "interval '1 hour'"))
    yield request.param
    for (definition,) in found:
        queue_db.sql(definition)


def enqueue(queue_db, count: int, first: int = 0, **more):
    return [queue_db.enqueue(f"k{first + n}", **more) for n in range(count)]


def wait_states(queue_db) -> list[str]:
    return [
        status if status != "queued" else state
        for status, state in queue_db.sql("SELECT status::text, wait_state::text FROM dl_jobs ORDER BY job_id")
    ]


def test_no_more_jobs_run_than_the_limit_allows(queue_db, limits):
    limits.set("warehouse", concurrency=2)
    enqueue(queue_db, 5, limits={"warehouse": 1})

    runs = queue_db.claim(5)

    assert len(runs) == 2
    assert wait_states(queue_db) == ["running"] * 2 + ["limited"] * 3
    assert [status.used for status in limits.statuses()] == [2]
    assert limits.status("warehouse").waiting == 3
    assert {holder.job_id for holder in limits.holders("warehouse")} == {run.id for run in runs}


def cancel(queue_db, job_id, way: str) -> None:
    if way == "cancel of the next":
        queue_db.queue.cancel(job_id)
    elif way == "cancel of the next by SQL":
        queue_db.sql("UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s", str(job_id))
    else:
        bulk = BulkOperations(queue_db.session)
        bulk.start(BulkAction.CANCEL, Filter(job_id=frozenset({job_id})), expected=1, requested_by="operator")
        while bulk.run_batch():
            pass


CANCELS_OF_THE_NEXT = ["cancel of the next", "bulk cancel of the next", "cancel of the next by SQL"]


@pytest.mark.parametrize("end", ["settle", "retry later", "release", "reap", *CANCELS_OF_THE_NEXT])
def test_the_end_of_a_run_wakes_the_next(queue_db, limits, end):
    limits.set("warehouse", concurrency=1)
    ids = enqueue(queue_db, 3, limits={"warehouse": 1})
    (run,) = queue_db.claim(3)
    assert run.id == ids[0]

    if end == "settle":
        queue_db.settle(run)
    elif end == "retry later":
        queue_db.queue.settle([(run, Settlement(Status.QUEUED, error="x", retry_in_sec=60))])
    elif end == "release":
        queue_db.release(run, ReleaseReason.SHUTDOWN)
        assert wait_states(queue_db) == ["ready", "ready", "limited"]
        return
    elif end == "reap":
        queue_db.lose_attempt(run, pause_sec=60)
    else:
        queue_db.settle(run)
        cancel(queue_db, ids[1], end)  # it was woken, and hands the place on

    (next_run,) = queue_db.claim(3)
    assert next_run.id == (ids[2] if end in CANCELS_OF_THE_NEXT else ids[1])
    queue_db.check_invariants()


def test_weights_count(queue_db, limits):
    limits.set("warehouse", concurrency=5)
    enqueue(queue_db, 1, limits={"warehouse": 3})
    enqueue(queue_db, 1, first=1, limits={"warehouse": 3})
    enqueue(queue_db, 1, first=2, limits={"warehouse": 2})

    runs = queue_db.claim(3)

    assert wait_states(queue_db) == ["running", "limited", "running"]
    queue_db.settle(runs[1])  # 2 free, of 3 that the next one needs
    assert wait_states(queue_db) == ["running", "limited", "succeeded"]
    queue_db.settle(runs[0])
    assert wait_states(queue_db) == ["succeeded", "ready", "succeeded"]


def test_a_job_waits_for_each_of_its_limits(queue_db, limits):
    limits.set("a", concurrency=1)
    limits.set("b", concurrency=1)
    enqueue(queue_db, 1, limits={"a": 1})
    enqueue(queue_db, 1, first=1, limits={"b": 1})
    both, only_a = enqueue(queue_db, 1, first=2, limits={"a": 1, "b": 1}) + enqueue(
        queue_db, 1, first=3, limits={"a": 1}
    )
    first, second = queue_db.claim(4)

    queue_db.settle(first)  # wakes `both`, which then waits for b and hands the place in a on
    (run,) = queue_db.claim(2)

    assert run.id == only_a
    assert queue_db.job(both).waits_on == "b"
    queue_db.settle(second)
    queue_db.settle(run)
    assert [run.id for run in queue_db.claim(2)] == [both]


def test_a_woken_job_with_a_busy_key_hands_its_place_on(queue_db, limits):
    limits.set("a", concurrency=1)
    holder = queue_db.enqueue("busy")
    first = queue_db.enqueue("k0", limits={"a": 1})
    queue_db.enqueue("busy", limits={"a": 1}, priority=50)
    third = queue_db.enqueue("k2", limits={"a": 1})
    queue_db.sql(
        "UPDATE dl_jobs SET wait_state = 'limited', waits_on = 'a' WHERE limits IS NOT NULL AND lock_key <> 'k0'"
    )
    runs = {run.id: run for run in queue_db.claim(4)}
    assert set(runs) == {holder, first}

    queue_db.settle(runs[first])

    assert [run.id for run in queue_db.claim(2)] == [third]
    assert limits.wake().repaired == 0


def test_limits_of_a_queue_and_a_task_apply_by_themselves(queue_db, limits):
    limits.set("queue:q", concurrency=3)
    limits.set("task:slow", concurrency=1)
    enqueue(queue_db, 2, task="slow")
    enqueue(queue_db, 3, first=2, task="t")

    runs = queue_db.claim(5, tasks=("slow", "t"))

    assert [run.task for run in runs] == ["slow", "t", "t"]
    assert queue_db.sql("SELECT waits_on FROM dl_jobs WHERE waits_on IS NOT NULL ORDER BY 1") == [
        ("queue:q",),
        ("task:slow",),
    ]


def test_a_default_applies_to_each_name(queue_db, limits):
    limits.set("tenant:*", concurrency=1)
    limits.set("tenant:big", concurrency=2)
    for n, tenant in enumerate(("a", "a", "b", "big", "big", "big")):
        queue_db.enqueue(f"k{n}", limits={f"tenant:{tenant}": 1})

    assert len(queue_db.claim(6)) == 4
    assert wait_states(queue_db) == ["running", "limited", "running", "running", "running", "limited"]

    limits.set("tenant:*", concurrency=2)
    assert len(queue_db.claim(6)) == 1
    assert limits.wake().repaired == 0


def test_a_name_without_a_setting_has_no_limit(queue_db, limits):
    enqueue(queue_db, 3, limits={"unheard of": 1})

    assert len(queue_db.claim(3)) == 3
    with pytest.raises(LimitNotFound):
        limits.status("unheard of")


def test_a_closed_limit_holds_jobs_until_it_is_raised_or_deleted(queue_db, limits):
    limits.set("a", concurrency=0)
    limits.set("b", concurrency=0)
    enqueue(queue_db, 2, limits={"a": 1})
    enqueue(queue_db, 2, first=2, limits={"b": 1})
    assert queue_db.claim(4) == []

    limits.set("a", concurrency=1)
    limits.delete("b")

    assert len(queue_db.claim(4)) == 3
    with pytest.raises(LimitNotFound):
        limits.delete("b")


def test_each_queue_that_waits_gets_the_place(queue_db, limits):
    limits.set("a", concurrency=1)
    enqueue(queue_db, 2, limits={"a": 1})
    other = queue_db.enqueue("other", queue="other", limits={"a": 1})
    (run,) = queue_db.claim(2)
    assert queue_db.claim(2, queue="other") == []

    queue_db.settle(run)  # the threads of q are busy

    assert [run.id for run in queue_db.claim(1, queue="other")] == [other]
    assert queue_db.claim(1) == []


def test_a_limited_job_keeps_its_time_and_waits_on(queue_db, limits):
    limits.set("a", concurrency=0)
    (job_id,) = enqueue(queue_db, 1, limits={"a": 1})
    assert queue_db.claim(1) == []

    queue_db.sql("UPDATE dl_jobs SET available_at = now() + interval '1 h'")
    assert wait_states(queue_db) == ["limited"]
    limits.set("a", concurrency=1)
    assert wait_states(queue_db) == ["scheduled"]
    assert queue_db.job(job_id).waits_on is None


def test_events_say_what_it_waited_for(queue_db, limits):
    limits.set("a", concurrency=1)
    _, second = enqueue(queue_db, 2, limits={"a": 1})
    (run,) = queue_db.claim(2)
    queue_db.settle(run)
    queue_db.claim(2)

    events = [
        (event.kind, event.payload.get("waits_on") or event.payload.get("limit"))
        for event in queue_db.queue.events(second)
    ]
    assert events == [("queued", None), ("limited", "a"), ("released", "a"), ("picked", None)]


# ── rates ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_starts_of_a_rate_are_spaced(queue_db, limits):
    limits.set("api", rate=1, per_sec=60)
    enqueue(queue_db, 3, limits={"api": 1})

    assert len(queue_db.claim(3)) == 1
    assert wait_states(queue_db) == ["running", "limited", "limited"]
    result = limits.wake()
    assert result.repaired == 0
    assert 40 < result.next_start_in_sec <= 60
    assert 40 < limits.status("api").next_start_in_sec <= 60

    queue_db.sql("UPDATE dl_limit_starts SET tat = now()")  # a minute later
    limits.wake()
    assert len(queue_db.claim(3)) == 1
    assert wait_states(queue_db) == ["running", "running", "limited"]


def test_a_burst_starts_at_once(queue_db, limits):
    limits.set("api", rate=10, per_sec=600, burst=3)
    enqueue(queue_db, 5, limits={"api": 1})

    assert len(queue_db.claim(5)) == 3


def test_calls_of_a_job_share_the_rate(queue_db, limits):
    limits.set("api", rate=10, per_sec=600, burst=2)

    assert limits.acquire("api") == 0
    assert limits.acquire("api") == 0
    assert 40 < limits.acquire("api") <= 60
    enqueue(queue_db, 1, limits={"api": 1})
    assert queue_db.claim(1) == []
    assert limits.acquire("no such rate", 5) == 0
    with pytest.raises(ValueError, match="burst of 2"):
        limits.acquire("api", 3)


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("requested", "problem"),
    [
        ({"warehouse": 0}, "whole numbers"),
        ({"warehouse": 1.5}, "whole numbers"),
        ({"warehouse": "1"}, "whole numbers"),
        ({"warehouse": 10**12}, "whole numbers"),
        ({f"l{n}": 1 for n in range(5)}, "at most 4"),
        ({"": 1}, "1 to 200 bytes"),
        ({"x" * 201: 1}, "1 to 200 bytes"),
        ({"tenant:*": 1}, "no \\* at the end"),
        ({"queue:q": 1}, "applies by itself"),
        ({"small": 3}, 'asks for 3 of "small", which has 2'),
        ({"api": 2}, "burst of 1"),
    ],
)
def test_limits_that_cannot_be_are_refused(queue_db, limits, requested, problem):
    limits.set("small", concurrency=2)
    limits.set("api", rate=1, per_sec=1)

    with pytest.raises(InvalidJob, match=problem):
        queue_db.enqueue(limits=requested)
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match=problem):
        queue_db.sql("SELECT dl_enqueue('q', 't', 'k', limits => %s)", Json(requested))
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match=problem):
        queue_db.insert(limits=Json(requested))
    rows = queue_db.sql(
        "SELECT outcome, field FROM dl_enqueue_many(%s)",
        Json(
            [
                {"queue": "q", "task": "t", "lock_key": "k", "limits": requested},
                {"queue": "q", "task": "t", "lock_key": "k"},
            ]
        ),
    )
    assert rows == [("invalid", "limits"), ("created", None)]


def test_sql_functions_pass_limits_on(queue_db):
    job_id = queue_db.fetch_row("SELECT dl_enqueue('q', 't', 'k', limits => '{\"warehouse\": 2}')")

    assert queue_db.fetch_row("SELECT limits FROM dl_jobs WHERE job_id = %s", job_id) == {"warehouse": 2}


# ── at the same time ────────────────────────────────────────────────────────────────────────────────────────────────


def test_claims_and_ends_at_the_same_time_never_exceed_the_limit(queue_db, limits):
    limits.set("a", concurrency=3)
    limits.set("task:t", concurrency=4)
    ids = enqueue(queue_db, 120, limits={"a": 1}) + enqueue(queue_db, 60, first=120)
    stop, sweeper = threading.Event(), Limits(queue_db.new_session())

    def work() -> int:
        queue, done = queue_db.new_queue(), 0
        while not stop.is_set():
            runs, _ = queue_db.claim_once(3, by=queue)
            for run in runs:
                queue.settle([(run, SUCCESS)])
            done += len(runs)
        return done

    with ThreadPoolExecutor(4) as threads:
        workers = [threads.submit(work) for _ in range(4)]

        def finished() -> bool:
            sweeper.wake()
            return bool(queue_db.fetch_row("SELECT count(*) = %s FROM dl_jobs WHERE status = 'succeeded'", len(ids)))

        try:
            eventually(finished)
        finally:
            stop.set()
        assert sum(worker.result() for worker in workers) == len(ids)

    assert max_running(queue_db, "a") <= 3
    assert max_running(queue_db, None) <= 4
    queue_db.check_invariants()


def max_running(queue_db, limit: str | None) -> int:
    """The largest number of runs at a time by the event log, whose ids are in the order of the moves."""
    events = queue_db.sql(
        "SELECT e.kind FROM dl_job_events e JOIN dl_jobs j USING (job_id)"
        " WHERE e.kind IN ('picked', 'done') AND (%s IS NULL OR j.limits ? %s) ORDER BY e.event_id",
        limit,
        limit,
    )
    running = largest = 0
    for (kind,) in events:
        running += 1 if kind == "picked" else -1
        largest = max(largest, running)
    return largest


def test_limits_of_a_queue_are_those_its_jobs_wait_for(queue_db, limits):
    limits.set("warehouse", concurrency=1)
    for number in range(3):
        queue_db.enqueue(f"k{number}", limits={"warehouse": 1})
    queue_db.claim(3)

    assert limits.of_queue("q") == {"warehouse": 2}
    assert limits.of_queue("other") == {}


def test_a_line_longer_than_a_look_is_served_to_its_end(queue_db, limits, source):
    limits.set("narrow", concurrency=1)
    enqueue(queue_db, 130, limits={"narrow": 1})
    (run,) = queue_db.claim(130)
    limits.set("narrow", concurrency=1)  # as changed: another look is taken
    looks = queue_db.sql("SELECT cardinality(job_ids), is_whole FROM dl_limit_looks WHERE name = 'narrow' AND part = 0")
    assert looks == ([(101, False)] if source == "look" else [])

    for served in range(1, 130):
        queue_db.settle(run)
        runs = queue_db.claim(5)
        assert len(runs) == 1, f"after {served}"
        (run,) = runs

    assert limits.status("narrow").waiting == 0


def test_a_look_is_replaced_when_it_names_many_jobs(queue_db, limits, source):
    limits.set("narrow", concurrency=1)
    (run,) = enqueue_and_claim(queue_db, 1)
    limits.set("narrow", concurrency=1)  # as changed: another look is taken

    for number in range(1, 150):
        queue_db.settle(run)
        enqueue(queue_db, 1, first=number, limits={"narrow": 1})
        (run,) = queue_db.claim(5)

    looks = queue_db.sql("SELECT count(DISTINCT i) FROM dl_limit_looks l, unnest(l.job_ids) i GROUP BY l.taken_at")
    assert bool(looks) == (source == "look")
    assert all(jobs <= 103 for (jobs,) in looks), "100 more than twice the one that it found, and the last one"


def test_a_look_counts_no_longer_when_its_limit_has_changed(queue_db, limits, source):
    """Claims do not record what they start while a limit has no row."""
    limits.set("narrow", concurrency=1)
    (first,) = enqueue_and_claim(queue_db, 2)
    limits.delete("narrow")
    started = queue_db.claim(5)
    limits.set("narrow", concurrency=2)
    enqueue(queue_db, 2, first=10, limits={"narrow": 1})

    assert queue_db.claim(5) == [], "two run"
    queue_db.queue.settle([(run, SUCCESS) for run in (first, *started)])
    assert len(queue_db.claim(5)) == 2


def enqueue_and_claim(queue_db, count: int):
    enqueue(queue_db, count, limits={"narrow": 1})
    return queue_db.claim(count)
