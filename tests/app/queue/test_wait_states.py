"""A queued job is in exactly one of three partial indexes, and the statements find it by the right one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dataloader.app.db.encoding import array
from dataloader.app.queue.claims import FRONT, ClaimHint, start_at_jobs
from dataloader.app.queue.job import ReleaseReason, Status
from tests.support import Databases
from tests.support.plans import PreparedStatement, plans, rows_read, scans
from tests.support.queue_fixture import QueueFixture

NO_ONE = "00000000-0000-0000-0000-000000000000"
INDEXES = ("dl_jobs_ready_idx", "dl_jobs_scheduled_idx", "dl_jobs_blocked_idx")


def in_indexes(queue_db: QueueFixture) -> dict[str, int]:
    """How many rows each of the three indexes' own conditions hold."""
    counts = {}
    for index in INDEXES:
        condition = queue_db.fetch_row(
            "SELECT pg_get_expr(indpred, indrelid) FROM pg_index WHERE indexrelid = %s::regclass", index
        )
        counts[index] = queue_db.fetch_row(f"SELECT count(*) FROM dl_jobs WHERE {condition}")
    return counts


def test_queued_job_is_in_exactly_one_index(queue_db):
    def standing() -> tuple[int, ...]:
        found = in_indexes(queue_db)
        return tuple(found[index] for index in INDEXES)

    job_id = queue_db.enqueue("k", available_at=datetime.now(UTC) + timedelta(hours=1))
    assert standing() == (0, 1, 0)
    queue_db.make_due(job_id)
    assert queue_db.promote() == 1
    assert standing() == (1, 0, 0)
    (run,) = queue_db.claim()
    assert standing() == (0, 0, 0)
    other = queue_db.enqueue("k")
    assert queue_db.claim() == []
    assert standing() == (0, 0, 1)
    queue_db.settle(run, Status.QUEUED, retry_in_sec=60)
    assert standing() == (1, 1, 0)
    (run,) = queue_db.claim()
    assert run.id == other
    queue_db.release(run, ReleaseReason.LOCK_BUSY)
    assert standing() == (0, 1, 1)
    queue_db.queue.cancel(other)
    queue_db.queue.cancel(job_id)
    assert standing() == (0, 0, 0)
    queue_db.queue.retry(job_id)
    assert standing() == (1, 0, 0)


def test_what_is_due_is_promoted_in_every_queue_and_rings_there(queue_db):
    hour = datetime.now(UTC) + timedelta(hours=1)
    for n in range(5):
        queue_db.make_due(queue_db.enqueue(f"due {n}", queue=f"q{n % 2}", available_at=hour))
    later = queue_db.enqueue("later", available_at=hour)
    listener = queue_db.listener()

    assert queue_db.promote() == 5
    assert sorted(listener.payloads()) == ["q0", "q1"]
    assert queue_db.promote() == 0
    assert listener.payloads() == []
    assert queue_db.wait_state(later) == "scheduled"


def test_claim_promotes_due_jobs_and_notifies_other_queues(queue_db):
    for queue in ("q", "r"):
        queue_db.make_due(queue_db.insert(queue, queue=queue, available_at="2999-01-01"))
    listener = queue_db.listener()

    (run,) = queue_db.claim()

    assert run.queue == "q"
    assert listener.payloads() == ["r"]
    assert in_indexes(queue_db)["dl_jobs_ready_idx"] == 1


def test_more_due_jobs_than_one_batch_are_reported_due(queue_db):
    queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, available_at)"
        " SELECT 'q', 't', 'k' || n, '2999-01-01' FROM generate_series(1, 501) n"
    )
    queue_db.make_due()

    _, outlook = queue_db.claim_once()
    assert outlook.next_due_sec <= 0
    _, outlook = queue_db.claim_once()
    assert outlook.next_due_sec is None


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def crowded(databases: Databases) -> Iterator[QueueFixture]:
    """10,000 running, 3,000 ready, 3,000 timed and 3,000 parked jobs, of which the statistics know nothing. In a new
    database: in one that a former test has filled the sizes of the indexes would depend on the order of tests."""
    with databases.fresh(options="CONNECTION LIMIT -1") as dsn:
        queue_db = QueueFixture(dsn)
        queue_db.sql("ALTER TABLE dl_jobs SET (autovacuum_enabled = off)")
        queue_db.sql("ANALYZE dl_jobs")  # while it is empty
        crowd(queue_db)
        yield queue_db
        queue_db.close()


def crowd(queue_db: QueueFixture) -> None:
    queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, lease_expires_at)"
        " SELECT 'q', 't', 'r' || n, 'running', 1, gen_random_uuid(), now() + interval '1 h'"
        "   FROM generate_series(1, 10000) n"
    )
    queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, wait_state, available_at)"
        " SELECT 'q', 't', 'k' || n, wait_state::dl_wait_state,"
        "        now() + CASE wait_state WHEN 'scheduled' THEN interval '1 h' ELSE '0' END"
        "   FROM generate_series(1, 3000) n, unnest(ARRAY['ready', 'scheduled', 'blocked']) wait_state"
    )


_CLAIM = {
    "queue": "q", "tasks": "{t}", "wanted": 5, "scan_limit": 5, "run_ids": "{}", "worker": "w",
    "takes_session_locks": True, "in_turn": False, "promotes": False, "min_lease_sec": 1,
}  # fmt: skip


def running(queue_db: QueueFixture, count: int) -> list[tuple[str, str, str]]:
    return queue_db.sql("SELECT job_id, run_id, lock_key FROM dl_jobs WHERE status = 'running' LIMIT %s", count)


def of_runs(queue_db: QueueFixture, **more: str) -> dict[str, Any]:
    runs = running(queue_db, 5)
    columns = {
        name: "{" + ",".join(row[n] for row in runs) + "}" for n, name in enumerate(("job_ids", "run_ids", "lock_keys"))
    }
    return columns | more


def test_a_claim_walks_the_ready_index_and_reads_what_it_takes(crowded):
    pick, *others = plans(crowded, "claim", _CLAIM | {"after": array(FRONT)})

    assert [index for _, index in scans(pick)] == ["dl_jobs_ready_idx"]
    assert rows_read(pick) <= 5
    for plan in others:
        assert not [node for node, _ in scans(plan) if node == "Seq Scan"]
        assert rows_read(plan) <= 5


def test_a_claim_from_a_mark_begins_to_read_there(crowded):
    mark = crowded.fetch_row(
        "SELECT ARRAY[priority::text, created_at::text, job_id::text] FROM dl_jobs"
        " WHERE queue = 'q' AND task = 't' AND status = 'queued' AND wait_state = 'ready'"
        " ORDER BY priority, created_at, job_id OFFSET 20 LIMIT 1"
    )
    pick, *_ = plans(crowded, "claim", _CLAIM | {"after": array(mark)})

    assert [index for _, index in scans(pick)] == ["dl_jobs_ready_idx"]
    assert rows_read(pick) <= 5
    assert "ROW(priority, created_at, job_id) >" in json.dumps(pick)
    assert '"Index Cond": "((queue' in json.dumps(pick)


def test_claim_of_certain_jobs_reads_these_by_their_ids(crowded):
    ready = crowded.sql("SELECT job_id FROM dl_jobs WHERE queue = 'q' AND task = 't' AND wait_state = 'ready' LIMIT 3")
    pick, *_ = plans(crowded, "claim", _CLAIM | {"after": array(start_at_jobs([row[0] for row in ready]))})

    assert [index for node, index in scans(pick) if node == "Index Scan"] == ["dl_jobs_pkey"]
    assert rows_read(pick) <= 3


def test_claim_continues_at_cursor_and_restarts_at_front(queue_db):
    """The order is that of priority and age, and of no clock: also where times are strange."""
    jobs = {
        name: queue_db.enqueue(name, priority=priority) for name, priority in [("a", 5), ("b", 5), ("c", 6), ("d", 7)]
    }
    for name, at in [("a", "-infinity"), ("b", "4712-01-01 BC"), ("d", "infinity")]:
        queue_db.sql("UPDATE dl_jobs SET created_at = %s WHERE job_id = %s", at, str(jobs[name]))

    order, mark = [], FRONT
    for _ in jobs:
        (run,), outlook = queue_db.claim_once(start=mark)
        order.append(run.id)
        mark = outlook.next_start
    assert order == list(jobs.values())
    assert queue_db.claim_once(start=mark) == ([], ClaimHint(0, None, None))

    urgent = queue_db.enqueue("urgent", priority=0)
    assert queue_db.claim_once(start=mark)[0] == []
    assert [run.id for run in queue_db.claim_once()[0]] == [urgent]


def test_cursor_is_last_claimed_job_not_last_scanned(queue_db):
    queue_db.enqueue_and_claim("hot")
    first, last = queue_db.enqueue("a"), queue_db.enqueue("b")
    hot = queue_db.enqueue("hot")

    taken, outlook = queue_db.claim_once(3)
    assert [run.id for run in taken] == [first, last]
    assert (outlook.skipped, outlook.next_start[2]) == (1, str(last))
    assert queue_db.wait_state(hot) == "blocked"


def test_what_is_due_is_found_by_the_timed_index(crowded):
    promote, *_ = plans(crowded, "claim", _CLAIM | {"after": array(FRONT), "promotes": True})

    assert ("Index Scan", "dl_jobs_scheduled_idx") in scans(promote)
    assert not [node for node, _ in scans(promote) if node == "Seq Scan"]
    assert rows_read(promote) <= 5


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("renew", {"late_sec": 60, "min_lease_sec": 1}),
        (
            "settle",
            {
                "statuses": "{" + ",".join(["succeeded"] * 5) + "}",
                **dict.fromkeys(("pauses", "refunds", "crashes"), "{0,0,0,0,0}"),
            },
        ),
        ("release", {"reasons": "{" + ",".join(["shutdown"] * 5) + "}"}),
        ("reap", {"pause_sec": 1}),
    ],
)
def test_a_run_is_found_by_its_primary_key_among_ten_thousand(crowded, name, more):
    made = plans(crowded, name, of_runs(crowded, **more))

    assert ("Index Scan", "dl_jobs_pkey") in [scan for plan in made for scan in scans(plan)]
    for plan in made:
        indexes = {index for _, index in scans(plan)}
        assert indexes <= {"dl_jobs_pkey", "dl_jobs_blocked_idx", "dl_jobs_running_key_idx"}, json.dumps(plan, indent=1)
        assert rows_read(plan) <= 10


def test_a_key_is_looked_up_among_running_jobs_while_dead_ones_fill_their_index(own_queue_db):
    """They stay for as long as a transaction of hours does; finished jobs of the key are not looked at."""
    queue_db = own_queue_db
    queue_db.sql("ALTER TABLE dl_jobs SET (autovacuum_enabled = off)")
    run = queue_db.enqueue_and_claim("busy")
    with queue_db.open_transaction() as step:
        step("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        step("SELECT count(*) FROM dl_jobs")
        queue_db.sql(
            "INSERT INTO dl_jobs (queue, task, lock_key, status, wait_state, priority)"
            " SELECT 'q', 't', 'key ' || n, 'running', 'scheduled', n FROM generate_series(1, 20050) n"
        )
        queue_db.sql(
            "UPDATE dl_jobs"
            "   SET status = 'succeeded', lock_key = CASE WHEN priority % 100 = 0 THEN 'busy' ELSE lock_key END"
            " WHERE priority > 50 AND lock_key <> 'busy'"
        )
        queue_db.sql("VACUUM (ANALYZE) dl_jobs")
        key = [str(queue_db.fetch_row("SELECT hashtext('busy')"))]

        values = {"job_ids": [str(run.id)], "run_ids": [str(run.run_id)], "key_hashes": key, "statuses": ["succeeded"]}
        more = dict.fromkeys(("pauses", "refunds", "crashes"), "{0}")
        made = plans(queue_db, "settle", {name: "{" + ",".join(items) + "}" for name, items in values.items()} | more)

    indexes = {index for plan in made for _, index in scans(plan)}
    assert "dl_jobs_running_key_idx" in indexes
    assert "dl_jobs_lock_key_idx" not in indexes


PLANNED_WHEN_EMPTY: list[tuple[str, dict[str, Any]]] = [
    ("claim", _CLAIM | {"after": array(FRONT), "takes_session_locks": False}),
    ("claim", _CLAIM | {"after": array(FRONT), "takes_session_locks": False, "promotes": True}),
    ("beat", {"min_lease_sec": 1, "worker_id": NO_ONE, "rss_bytes": 1}),
    ("save_progress", {"progress": "{1,2,3,4,5}"}),
    ("renew", {"late_sec": 60, "min_lease_sec": 1}),
    ("settle", dict.fromkeys(("pauses", "refunds", "crashes"), "{0,0,0,0,0}")),
    ("release", {"reasons": "{" + ",".join(["shutdown"] * 5) + "}"}),
    ("reap", {"pause_sec": 1}),
    ("lock_keys", {"key_hashes": "{1,2,3,4,5}"}),
    ("restore_unknown_tasks", {"queues": "{q}", "tasks": "{t}"}),
    ("delete_finished", {}),
    ("has_ready_jobs", {}),
    ("has_blocked_jobs", {}),
    ("has_expired_jobs", {}),
    ("cancel", {}),
    ("find_settlement", {}),
    ("record_stop_pending", {"error": "it goes on", "reason": "cancel"}),
    ("repair_blocked", {"after": "", "max_keys": 5, "repaired_jobs": "{}"}),
]


@dataclass
class FilledTable:
    queue_db: QueueFixture
    is_analysed: bool
    statements: list[PreparedStatement]  # those of PLANNED_WHEN_EMPTY


@pytest.fixture(scope="module")
def filled(request: pytest.FixtureRequest, databases: Databases) -> Iterator[FilledTable]:
    """Many jobs, made after the plans of the statements, each of which is kept in a session of its own."""
    with databases.fresh(options="CONNECTION LIMIT -1") as dsn, ExitStack() as resources:
        queue_db = resources.enter_context(closing(QueueFixture(dsn)))
        queue_db.sql("ALTER TABLE dl_jobs SET (autovacuum_enabled = off)")
        if request.param:
            queue_db.sql("VACUUM ANALYZE dl_jobs")
        made = []
        for name, more in PLANNED_WHEN_EMPTY:
            statement = resources.enter_context(closing(PreparedStatement(queue_db, name)))
            statement.execute({"statuses": "{}", "job_id": NO_ONE, "run_id": NO_ONE} | more)
            made.append(statement)
        crowd(queue_db)
        queue_db.sql(
            "UPDATE dl_jobs SET available_at = now() - interval '1 s', wait_state = 'scheduled', unknown_task = true"
            " WHERE job_id IN (SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'scheduled' LIMIT 5)"
        )
        yield FilledTable(queue_db, request.param, made)


@pytest.mark.parametrize("filled", [False, True], ids=["never analysed", "analysed"], indirect=True)
@pytest.mark.parametrize("number", range(len(PLANNED_WHEN_EMPTY)), ids=[name for name, _ in PLANNED_WHEN_EMPTY])
def test_plan_of_empty_table_serves_ten_thousand_jobs(filled: FilledTable, number: int):
    name, more = PLANNED_WHEN_EMPTY[number]
    job_id, run_id, _ = running(filled.queue_db, 1)[0]
    statuses = "{" + ",".join(["succeeded"] * 5) + "}" if name == "settle" else "{}"
    values = more | of_runs(filled.queue_db, statuses=statuses, job_id=job_id, run_id=run_id)

    for plan in filled.statements[number].plans(values):
        assert not [node for node, _ in scans(plan) if node == "Seq Scan"]
        assert rows_read(plan) <= 20, json.dumps(plan, indent=1)
        if not filled.is_analysed:  # else it may be taken for the primary key: decision 39 says what is left
            assert "dl_jobs_created_idx" not in {index for _, index in scans(plan)}


def test_a_cancel_finds_its_job_and_the_next_of_its_key_by_index(crowded):
    job_id = crowded.fetch_row("SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready' LIMIT 1")

    for plan in plans(crowded, "cancel", {"job_ids": f"{{{job_id}}}"}):
        indexes = {index for node, index in scans(plan) if node != "Bitmap Heap Scan"}
        assert indexes <= {"dl_jobs_pkey", "dl_jobs_blocked_idx", "dl_jobs_running_key_idx"}
        assert rows_read(plan) <= 2
