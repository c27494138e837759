from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from dataloader.app.db.statements import statements
from dataloader.app.features.jobs import job_search
from dataloader.app.features.jobs.job_search import Cursor, Filter, JobSearch, NotSortable, TooManyActiveJobs
from dataloader.app.queue.job import Status
from tests.support.queue_fixture import QueueFixture

NOW = datetime(2026, 3, 1, tzinfo=UTC)
BAD = frozenset({Status.FAILED, Status.LOST})


@pytest.fixture
def looking(queue_db: QueueFixture) -> JobSearch:
    return JobSearch(queue_db.session)


def many(queue_db: QueueFixture, count: int, status: str = "succeeded", **columns: str) -> None:
    """Jobs a second apart, the first at NOW, without a word in the journal."""
    given = {"queue": "'q'", "task": "'t'", "lock_key": "'k' || n", "args": "'{}'", **columns}
    queue_db.sql(
        "ALTER TABLE dl_jobs DISABLE TRIGGER USER;"
        f"INSERT INTO dl_jobs (status, created_at, {', '.join(given)})"
        f" SELECT '{status}', '{NOW.isoformat()}'::timestamptz + n * interval '1 s', {', '.join(given.values())}"
        f"   FROM generate_series(0, {count - 1}) n;"
        "ALTER TABLE dl_jobs ENABLE TRIGGER USER"
    )


def all_of(looking: JobSearch, wanted: Filter, *, after: Cursor | None = None, **how: object) -> list[UUID]:
    page = looking.page(wanted, after=after, **how)  # type: ignore[arg-type]
    found = [job.job_id for job in page.jobs]
    while page.next is not None:
        page = looking.page(wanted, after=page.next, **how)  # type: ignore[arg-type]
        found += [job.job_id for job in page.jobs]
    return found


@pytest.mark.parametrize("sort", ["-created_at", "created_at"])
@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_pages_list_each_job_once_in_order_with_equal_times(queue_db, looking, monkeypatch, sort, status):
    monkeypatch.setattr(job_search, "_FIRST_WINDOW_ROWS", 3)
    monkeypatch.setattr(job_search, "_MAX_WINDOW_ROWS", 3)
    many(queue_db, 25, status)
    queue_db.sql("UPDATE dl_jobs SET created_at = date_trunc('minute', created_at)")
    wanted = Filter(status=frozenset({Status(status)}))

    found = all_of(looking, wanted, sort=sort, limit=4)

    direction = "DESC" if sort.startswith("-") else ""
    ordered = queue_db.sql(f"SELECT job_id FROM dl_jobs ORDER BY created_at {direction}, job_id {direction}")
    assert [str(job_id) for job_id in found] == [row[0] for row in ordered]


def test_every_filter_finds_the_job_it_means_and_no_other(queue_db, looking):
    first = queue_db.enqueue_and_claim("a", queue="q1", task="t", producer="cron", partition_key="p",
                                       consumer_group="batch", idempotency_key="i")  # fmt: skip
    queue_db.settle(first, Status.FAILED, error="disk FULL", error_fingerprint="OSError a.py:b")
    second = queue_db.enqueue("b", queue="q2", args={"file": "Orders.csv"})
    job = queue_db.job(first.id)
    assert job.started_at is not None
    assert job.finished_at is not None
    instant = timedelta(microseconds=1)

    for wanted in (
        {"queue": "q1"},
        {"lock_key": "a"},
        {"producer": "cron"},
        {"consumer_group": "batch"},
        {"idempotency_key": "i"},
        {"job_id": frozenset({first.id, uuid4()})},
        {"job_id": frozenset({first.id, second}), "lock_key": "a"},
        {"fingerprint": "OSError a.py:b"},
        {"partition_key": "p"},
        {"status": frozenset({Status.FAILED})},
        {"text": "disk full"},
        {"created_to": job.created_at + instant},
        {"started_from": job.started_at, "started_to": job.started_at + instant},
        {"finished_from": job.finished_at, "finished_to": job.finished_at + instant},
    ):
        assert [row.job_id for row in looking.page(Filter(**wanted)).jobs] == [first.id], wanted
        assert looking.count(Filter(**wanted)).jobs == 1
    assert [row.job_id for row in looking.page(Filter(text="orders.CSV")).jobs] == [second]
    assert looking.page(Filter(task="other")).jobs == []
    assert looking.page(Filter(status=frozenset())).jobs == []
    assert looking.count(Filter(status=frozenset())).jobs == 0


def test_a_filter_survives_being_kept_as_json(queue_db):
    wanted = Filter(status=BAD, queue='q "1"', created_from=NOW, text="ä", job_id=frozenset({uuid4(), uuid4()}))

    assert Filter.from_json(wanted.to_json()) == wanted


def test_indexed_jobs_are_found_at_any_depth_in_any_order(queue_db, looking):
    old = [queue_db.enqueue("key", idempotency_key=f"i{n}", priority=n) for n in range(3)]
    queue_db.sql("UPDATE dl_jobs SET created_at = '2020-01-01'::timestamptz + priority * interval '1 s'")
    many(queue_db, 50)

    for sort, expected in (("-created_at", old[::-1]), ("created_at", old), ("priority", old)):
        assert all_of(looking, Filter(lock_key="key"), sort=sort, limit=2, time_budget_sec=0) == expected
    assert looking.page(Filter(idempotency_key="i1"), time_budget_sec=0).jobs[0].job_id == old[1]
    assert looking.page(Filter(job_id=frozenset(old[:1])), time_budget_sec=0).jobs[0].job_id == old[0]
    assert looking.count(Filter(lock_key="key"), time_budget_sec=0).exact


def test_a_lock_key_of_very_many_jobs_is_searched_in_windows(queue_db, looking, monkeypatch):
    many(queue_db, 20, lock_key="'key'")
    first = looking.page(Filter(lock_key="key"), limit=4)
    monkeypatch.setattr(job_search, "MAX_KEYED", 10)

    rest = all_of(looking, Filter(lock_key="key"), after=first.next, limit=4)

    ordered = queue_db.sql("SELECT job_id FROM dl_jobs ORDER BY created_at DESC")
    assert [str(row) for row in [*(job.job_id for job in first.jobs), *rest]] == [row[0] for row in ordered]
    with pytest.raises(NotSortable):
        looking.page(Filter(lock_key="key"), sort="priority")


def test_lock_key_of_any_job_is_known(queue_db, looking):
    queue_db.enqueue("a key")

    assert looking.has_lock_key("a key")
    assert not looking.has_lock_key("a")


def test_search_stops_at_time_budget_and_returns_scanned_to(queue_db, looking, monkeypatch):
    monkeypatch.setattr(job_search, "_FIRST_TEXT_WINDOW_ROWS", 10)
    many(queue_db, 100)
    queue_db.sql("UPDATE dl_jobs SET error = 'needle' WHERE created_at = %s", NOW)
    wanted = Filter(text="needle")

    page = looking.page(wanted, time_budget_sec=0)

    assert page.jobs == []
    assert page.scanned == 10
    assert page.scanned_to == NOW + timedelta(seconds=90)
    assert len(all_of(looking, wanted, time_budget_sec=0)) == 1


def test_active_jobs_are_sorted_among_many_finished_ones(queue_db, looking):
    old = queue_db.enqueue("old", priority=7)
    queue_db.sql("UPDATE dl_jobs SET created_at = '2020-01-01'")
    other = queue_db.enqueue("other", priority=3)
    many(queue_db, 20)
    wanted = Filter(status=frozenset({Status.QUEUED, Status.RUNNING}))

    assert [row.job_id for row in looking.page(wanted, time_budget_sec=0, limit=2).jobs] == [other, old]
    assert all_of(looking, wanted, sort="priority", limit=1) == [other, old]
    assert looking.count(wanted).exact


def test_other_orders_are_for_a_few_waiting_and_running_jobs(queue_db, looking, monkeypatch):
    monkeypatch.setattr(job_search, "MAX_ACTIVE", 2)
    for key in "abc":
        queue_db.enqueue(key)
    waiting = Filter(status=frozenset({Status.QUEUED}))

    with pytest.raises(TooManyActiveJobs):
        looking.page(waiting, sort="priority")
    with pytest.raises(NotSortable):
        looking.page(Filter(), sort="priority")
    assert len(all_of(looking, waiting, limit=2)) == 3


def test_count_beyond_time_budget_is_marked_estimate(queue_db, looking, monkeypatch):
    monkeypatch.setattr(job_search, "FIRST_COUNT_WINDOW_ROWS", 500)
    many(queue_db, 4000, task="CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END")
    queue_db.sql("ANALYZE dl_jobs")

    result = looking.count(Filter(task="odd"), time_budget_sec=0)

    assert not result.exact
    assert result.scanned == 500
    assert 1000 < result.jobs < 3000
    assert looking.count(Filter(task="odd"), time_budget_sec=60).jobs == 2000


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


WALKING = {
    "at": NOW + timedelta(days=9),
    "id": str(uuid4()),
    "until": NOW,
    "unsuccessful_only": False,
    "filter": "{}",
    "window": 1000,
}
LIVE = {"running": True, "queued": True, "queue": None, "max_active": 5000, "filter": "{}", "sort": "created_at",
        "reverse": False, "key": None, "id": None, "limit": 50}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("jobs_before", WALKING | {"limit": 50}),
        ("jobs_before", WALKING | {"limit": 50, "unsuccessful_only": True}),
        ("jobs_before", WALKING | {"limit": 50, "filter": '{"lock_key": "k7", "status": "{succeeded}"}'}),
        ("jobs_after", WALKING | {"limit": 50, "at": NOW, "until": NOW + timedelta(days=9)}),
        ("count_window", WALKING),
        ("active_jobs", LIVE),
        ("active_jobs", LIVE | {"queue": "q", "filter": '{"queue": "q"}'}),
    ],
)
def test_lists_are_read_along_indexes(queue_db, name, asked):
    many(queue_db, 5_000)
    queue_db.sql("ANALYZE dl_jobs")
    *before, question = statements("public")[name].parts
    with queue_db.connect() as connection, connection.cursor() as cursor:
        for part in before:
            cursor.execute(part.text, asked)
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + question.text, asked)
        ((plan,),) = cursor.fetchall()

    scans = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") == "dl_jobs"]
    assert scans
    assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
    assert all(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= 1_000 for node in scans)
