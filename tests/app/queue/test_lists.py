from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.errors import JobNotFound
from app.queue import lists
from app.queue.job import Release, Status
from app.queue.lists import Filter, Lists, NotSortable, TooManyLive
from app.queue.statements import statements
from tests.support.desk import Desk

NOW = datetime(2026, 3, 1, tzinfo=UTC)
BAD = frozenset({Status.FAILED, Status.LOST})


@pytest.fixture
def looking(desk: Desk) -> Lists:
    return Lists(desk.session)


def many(desk: Desk, count: int, status: str = "succeeded", **columns: str) -> None:
    """Jobs a second apart, the first at NOW, without a word in the journal."""
    given = {"queue": "'q'", "task": "'t'", "lock_key": "'k' || n", "args": "'{}'", **columns}
    desk.sql(
        "ALTER TABLE dl_jobs DISABLE TRIGGER USER;"
        f"INSERT INTO dl_jobs (status, created_at, {', '.join(given)})"
        f" SELECT '{status}', '{NOW.isoformat()}'::timestamptz + n * interval '1 s', {', '.join(given.values())}"
        f"   FROM generate_series(0, {count - 1}) n;"
        "ALTER TABLE dl_jobs ENABLE TRIGGER USER"
    )


def all_of(looking: Lists, wanted: Filter, **how: object) -> list[UUID]:
    page = looking.page(wanted, **how)  # type: ignore[arg-type]
    found = [job.id for job in page.jobs]
    while page.next is not None:
        page = looking.page(wanted, after=page.next, **how)  # type: ignore[arg-type]
        found += [job.id for job in page.jobs]
    return found


@pytest.mark.parametrize("sort", ["-created_at", "created_at"])
@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_pages_hold_each_job_once_in_order_also_where_times_are_equal(desk, looking, monkeypatch, sort, status):
    monkeypatch.setattr(lists, "_FIRST_WINDOW", 3)
    monkeypatch.setattr(lists, "_LARGEST_WINDOW", 3)
    many(desk, 25, status)
    desk.sql("UPDATE dl_jobs SET created_at = date_trunc('minute', created_at)")
    wanted = Filter(status=frozenset({Status(status)}))

    found = all_of(looking, wanted, sort=sort, limit=4)

    direction = "DESC" if sort.startswith("-") else ""
    ordered = desk.sql(f"SELECT job_id FROM dl_jobs ORDER BY created_at {direction}, job_id {direction}")
    assert [str(job_id) for job_id in found] == [row[0] for row in ordered]


def test_every_filter_finds_the_job_it_means_and_no_other(desk, looking):
    first = desk.claimed("a", queue="q1", task="t", producer="cron", partition_key="p")
    desk.settle(first, Status.FAILED, error="disk FULL")
    second = desk.enqueue("b", queue="q2", args={"file": "Orders.csv"})
    job = desk.job(first.id)
    assert job.started_at is not None
    assert job.finished_at is not None
    instant = timedelta(microseconds=1)

    for wanted in (
        {"queue": "q1"},
        {"lock_key": "a"},
        {"producer": "cron"},
        {"partition_key": "p"},
        {"status": frozenset({Status.FAILED})},
        {"text": "disk full"},
        {"created_to": job.created_at + instant},
        {"started_from": job.started_at, "started_to": job.started_at + instant},
        {"finished_from": job.finished_at, "finished_to": job.finished_at + instant},
    ):
        assert [row.id for row in looking.page(Filter(**wanted)).jobs] == [first.id], wanted
        assert looking.count(Filter(**wanted)).jobs == 1
    assert [row.id for row in looking.page(Filter(text="orders.CSV")).jobs] == [second]
    assert looking.page(Filter(task="other")).jobs == []
    assert looking.page(Filter(status=frozenset())).jobs == []
    assert looking.count(Filter(status=frozenset())).jobs == 0


def test_a_filter_survives_being_kept_as_json(desk):
    wanted = Filter(status=BAD, queue='q "1"', created_from=NOW, text="ä")

    assert Filter.read(wanted.told()) == wanted


def test_a_search_ends_when_its_time_is_over_and_says_how_far_it_looked(desk, looking, monkeypatch):
    monkeypatch.setattr(lists, "_FIRST_SLOW_WINDOW", 10)
    many(desk, 100)
    desk.sql("UPDATE dl_jobs SET error = 'needle' WHERE created_at = %s", NOW)
    wanted = Filter(text="needle")

    page = looking.page(wanted, patience_sec=0)

    assert page.jobs == []
    assert page.looked_at == 10
    assert page.looked_to == NOW + timedelta(seconds=90)
    assert len(all_of(looking, wanted, patience_sec=0)) == 1


def test_waiting_and_running_jobs_are_found_behind_any_number_of_finished_ones_and_sorted_as_asked(desk, looking):
    old = desk.enqueue("old", priority=7)
    desk.sql("UPDATE dl_jobs SET created_at = '2020-01-01'")
    other = desk.enqueue("other", priority=3)
    many(desk, 20)
    wanted = Filter(status=frozenset({Status.QUEUED, Status.RUNNING}))

    assert [row.id for row in looking.page(wanted, patience_sec=0, limit=2).jobs] == [other, old]
    assert all_of(looking, wanted, sort="priority", limit=1) == [other, old]
    assert looking.count(wanted).exact


def test_other_orders_are_for_a_few_waiting_and_running_jobs(desk, looking, monkeypatch):
    monkeypatch.setattr(lists, "FEW", 2)
    for key in "abc":
        desk.enqueue(key)
    waiting = Filter(status=frozenset({Status.QUEUED}))

    with pytest.raises(TooManyLive):
        looking.page(waiting, sort="priority")
    with pytest.raises(NotSortable):
        looking.page(Filter(), sort="priority")
    assert len(all_of(looking, waiting, limit=2)) == 3


def test_what_is_too_much_to_be_counted_is_estimated_and_marked_so(desk, looking, monkeypatch):
    monkeypatch.setattr(lists, "_FIRST_COUNT_WINDOW", 500)
    many(desk, 4000, task="CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END")
    desk.sql("ANALYZE dl_jobs")

    told = looking.count(Filter(task="odd"), patience_sec=0)

    assert not told.exact
    assert told.looked_at == 500
    assert 1000 < told.jobs < 3000
    assert looking.count(Filter(task="odd"), patience_sec=60).jobs == 2000


def test_a_story_tells_tries_parent_children_and_who_holds_the_key(desk, looking):
    run = desk.claimed("k", max_attempts=3)
    desk.settle(run, Status.QUEUED, retry_in=0)
    (again,) = desk.claim()
    waiting = desk.enqueue("k", parent_id=run.id)
    desk.look()

    story = looking.story(run.id)
    child = looking.story(waiting)

    assert [(a.attempt, a.outcome, a.reason, a.error) for a in story.tries] == [
        (1, "requeue", "error", "it broke"),
        (2, None, None, None),
    ]
    assert [c.id for c in story.children] == [waiting]
    assert child.parent is not None
    assert child.parent.id == run.id
    assert child.key_holder is not None
    assert child.key_holder.id == run.id
    desk.release(again, Release.SHUTDOWN)
    assert [a.outcome for a in looking.story(run.id).tries] == ["requeue", "requeue"]
    with pytest.raises(JobNotFound):
        looking.story(uuid4())


def test_a_journal_is_read_in_pages(desk, looking):
    run = desk.claimed("k")
    desk.settle(run)
    every = looking.events(run.id)

    assert [event.kind for event in every] == ["queued", "picked", "done"]
    assert looking.events(run.id, after=every[0].id, limit=1) == [every[1]]


def test_the_version_changes_with_the_row_and_states_are_told_together(desk, looking):
    one, other = desk.enqueue("a"), desk.enqueue("b")
    before = looking.states([one, other, uuid4()])
    desk.queue.cancel(one)
    after = looking.states([one, other])

    assert set(before) == {one, other}
    assert before[other] == after[other]
    assert before[one] != after[one]
    assert after[one] == (looking.versioned(one).version, Status.CANCELED)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


WALKING = {
    "at": NOW + timedelta(days=9),
    "id": str(uuid4()),
    "until": NOW,
    "bad": False,
    "filter": "{}",
    "window": 1000,
}
LIVE = {"running": True, "queued": True, "queue": None, "bound": 5000, "filter": "{}", "sort": "created_at",
        "reverse": False, "key": None, "id": None, "most": 50}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("stretch_down", WALKING | {"most": 50}),
        ("stretch_down", WALKING | {"most": 50, "bad": True}),
        ("stretch_down", WALKING | {"most": 50, "filter": '{"lock_key": "k7", "status": "{succeeded}"}'}),
        ("stretch_up", WALKING | {"most": 50, "at": NOW, "until": NOW + timedelta(days=9)}),
        ("count_stretch", WALKING),
        ("live_jobs", LIVE),
        ("live_jobs", LIVE | {"queue": "q", "filter": '{"queue": "q"}'}),
    ],
)
def test_lists_are_read_along_indexes(desk, name, asked):
    many(desk, 5_000)
    desk.sql("ANALYZE dl_jobs")
    *before, question = statements("public")[name].parts
    with desk.connect() as connection, connection.cursor() as cursor:
        for part in before:
            cursor.execute(part.text, asked)
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + question.text, asked)
        ((plan,),) = cursor.fetchall()

    scans = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") == "dl_jobs"]
    assert scans
    assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
    assert all(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= 1_000 for node in scans)
