"""Jobs that wait for other jobs: they run after their parents ended as asked, at once, or are skipped."""

from __future__ import annotations

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg2
import pytest
from psycopg2.extras import Json

from dataloader.app.errors import InvalidJob
from dataloader.app.queue.job import Settlement, Status
from tests.support import eventually
from tests.support.queue_fixture import BackgroundCall

SUCCEEDED, FAILED = Settlement(Status.SUCCEEDED), Settlement(Status.FAILED, error="broken")
ENDS = {"succeeded": SUCCEEDED, "failed": FAILED}


def after(*parents: UUID, on: str = "succeeded") -> list[dict[str, str]]:
    return [{"job_id": str(parent), "on": on} for parent in parents]


def child(queue_db, *parents: UUID, on: str = "succeeded", key: str = "child", **more: Any) -> UUID:
    job_id: UUID = queue_db.enqueue(key, after=after(*parents, on=on), **more)
    return job_id


def graph(queue_db, jobs: dict[str, Any], **more: Any) -> dict[str, UUID]:
    """Enqueue a graph: key → parents, or (parents, fields)."""
    items = []
    for key, parents in jobs.items():
        names, fields = parents if isinstance(parents, tuple) else (parents, {})
        edges = [{"job": name} if isinstance(name, str) else {"job": name[0], "on": name[1]} for name in names]
        items.append({"key": key, "queue": "q", "task": "t", "lock_key": key, "after": edges, **fields})
    rows = queue_db.sql("SELECT key, job_id FROM dl_enqueue_graph(%s)", Json({"jobs": items, **more}))
    return {key: UUID(str(job_id)) for key, job_id in rows}


def run(queue_db, job_id: UUID, end: Settlement = SUCCEEDED) -> None:
    """Claim jobs until this one is claimed, and end it; it must be ready."""
    (claimed,) = [run for run in queue_db.claim(20) if run.id == job_id]
    queue_db.queue.settle([(claimed, end)])


def states(queue_db, ids: dict[str, UUID]) -> dict[str, str]:
    found = {}
    for key, job_id in ids.items():
        job = queue_db.job(job_id)
        found[key] = (
            "skipped" if job.skipped else queue_db.wait_state(job_id) if job.status == "queued" else job.status.value
        )
    return found


@pytest.mark.parametrize("end", ["succeeded", "failed"])
@pytest.mark.parametrize("on", ["succeeded", "ended", "failed"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_end_of_a_parent_decides(queue_db, end, on, when):
    parent = queue_db.enqueue("parent")
    (claimed,) = queue_db.claim(1)
    if when == "after":
        queue_db.queue.settle([(claimed, ENDS[end])])
    waiting = child(queue_db, parent, on=on)
    if when == "before":
        assert queue_db.wait_state(waiting) == "waiting"
        assert queue_db.claim(5) == []
        queue_db.queue.settle([(claimed, ENDS[end])])

    is_met = on in ("ended", end)
    assert states(queue_db, {"child": waiting}) == {"child": "ready" if is_met else "skipped"}
    if is_met:
        run(queue_db, waiting)
    else:
        job = queue_db.job(waiting)
        assert (job.status, job.error) == (Status.CANCELED, f"not needed: t (job {parent}) {end}")
        assert queue_db.event_kinds(waiting)[-1] == "skipped"
    queue_db.check_invariants()


@pytest.mark.parametrize("need", ["all", "any"])
@pytest.mark.parametrize("ends", [*itertools.product(["succeeded", "failed"], repeat=2)])
@pytest.mark.parametrize("wants", [*itertools.product(["succeeded", "ended", "failed"], repeat=2)])
def test_all_or_any_of_two_parents(queue_db, need, ends, wants):
    parents = [queue_db.enqueue(f"p{n}") for n in range(2)]
    edges = [{"job_id": str(parent), "on": on} for parent, on in zip(parents, wants, strict=True)]
    waiting = queue_db.enqueue("child", after=edges, need=need)
    runs = {run.id: run for run in queue_db.claim(2)}
    met = [on in ("ended", end) for on, end in zip(wants, ends, strict=True)]

    queue_db.queue.settle([(runs[parents[0]], ENDS[ends[0]])])
    first = states(queue_db, {"child": waiting})["child"]
    queue_db.queue.settle([(runs[parents[1]], ENDS[ends[1]])])
    both = states(queue_db, {"child": waiting})["child"]

    if need == "all":
        assert first == ("waiting" if met[0] else "skipped")
        assert both == ("ready" if all(met) else "skipped")
    else:
        assert first == ("ready" if met[0] else "waiting")
        assert both == ("ready" if any(met) else "skipped")


def test_other_ends_of_a_parent_count(queue_db):
    lost, canceled, by_sql = (queue_db.enqueue(f"p{n}", max_attempts=1) for n in range(3))
    ids = {
        "after lost": child(queue_db, lost, on="failed", key="a"),
        "after canceled": child(queue_db, canceled, on="ended", key="b"),
        "needs canceled": child(queue_db, canceled, key="c"),
        "after sql": child(queue_db, by_sql, on="ended", key="d"),
    }
    runs = {run.id: run for run in queue_db.claim(1)}
    queue_db.lose_attempt(runs[lost])
    queue_db.queue.cancel(canceled)
    queue_db.sql("UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s", str(by_sql))

    assert states(queue_db, ids) == {
        "after lost": "ready", "after canceled": "ready", "needs canceled": "skipped", "after sql": "ready",
    }  # fmt: skip


def test_a_child_keeps_its_time(queue_db):
    parent = queue_db.enqueue("parent")
    late = queue_db.fetch_row("SELECT now() + interval '1 h'")
    waiting = child(queue_db, parent, available_at=late)
    queue_db.sql("UPDATE dl_jobs SET available_at = available_at + interval '1 h' WHERE job_id = %s", str(waiting))
    assert queue_db.wait_state(waiting) == "waiting"

    run(queue_db, parent)

    assert queue_db.wait_state(waiting) == "scheduled"


def test_a_graph_runs_in_its_order(queue_db):
    ids = graph(queue_db, {"a": [], "b": [], "c": ["a", "b"], "d": ["c"], "clean up": [("d", "ended")]})

    order = []
    while runs := queue_db.claim(10):
        order.append({key for key, job_id in ids.items() if job_id in {run.id for run in runs}})
        queue_db.queue.settle([(run, SUCCEEDED) for run in runs])

    assert order == [{"a", "b"}, {"c"}, {"d"}, {"clean up"}]
    queue_db.check_invariants()


def test_a_failure_cancels_the_graph_but_what_asks_for_it(queue_db):
    jobs = {
        "a": [],
        "b": [],
        "c": ["a"],
        "d": ["c"],
        "other": ["b"],
        "report": [("d", "ended")],
        "alarm": [("a", "failed")],
    }
    ids = graph(queue_db, jobs)

    run_all = {run.id: run for run in queue_db.claim(2)}
    queue_db.queue.settle([(run_all[ids["a"]], FAILED)])

    skipped = dict.fromkeys(["c", "d", "other"], "skipped")
    assert states(queue_db, ids) == skipped | {"a": "failed", "b": "running", "report": "ready", "alarm": "ready"}
    assert "which cancels its graph" in (queue_db.job(ids["other"]).error or "")


def test_with_continue_other_branches_run(queue_db):
    ids = graph(queue_db, {"a": [], "b": [], "c": ["a"], "d": ["c"], "other": ["b"]}, on_failure="continue")

    runs = {run.id: run for run in queue_db.claim(2)}
    queue_db.queue.settle([(runs[ids["a"]], FAILED), (runs[ids["b"]], SUCCEEDED)])

    assert states(queue_db, ids) == {"a": "failed", "b": "succeeded", "c": "skipped", "d": "skipped", "other": "ready"}


def test_a_retry_lets_skipped_descendants_wait_again(queue_db):
    ids = graph(queue_db, {"a": [], "b": ["a"], "c": ["b"]})
    run(queue_db, ids["a"], FAILED)
    assert states(queue_db, ids) == {"a": "failed", "b": "skipped", "c": "skipped"}

    queue_db.queue.retry(ids["a"])

    assert states(queue_db, ids) == {"a": "ready", "b": "waiting", "c": "waiting"}
    for key in "abc":
        run(queue_db, ids[key])
    assert set(states(queue_db, ids).values()) == {"succeeded"}
    queue_db.check_invariants()


def test_a_repeated_graph_is_the_same(queue_db):
    first = graph(queue_db, {"a": [], "b": ["a"]}, idempotency_key="daily")

    assert graph(queue_db, {"a": [], "b": ["a"]}, idempotency_key="daily") == first
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 2


def test_a_cascade_of_thousands_is_done_in_parts(queue_db):
    ids = graph(queue_db, {"root": [], **{f"n{n}": ["root"] for n in range(2300)}})

    run(queue_db, ids["root"])

    ready = "SELECT count(*) FROM dl_jobs WHERE wait_state = 'ready'"
    assert queue_db.fetch_row(ready) == 2000, "the end of the root wakes no more"
    while queue_db.session.execute("decide_left")[0][0]:
        pass
    assert queue_db.fetch_row(ready) == 2300
    assert queue_db.fetch_row("SELECT count(*) FROM dl_graph_work") == 0


def test_deleted_jobs_leave_no_edges(queue_db):
    ids = graph(queue_db, {"a": [], "b": ["a"]})
    for key in "ab":
        run(queue_db, ids[key])

    queue_db.sql("DELETE FROM dl_jobs")

    assert queue_db.fetch_row("SELECT (SELECT count(*) FROM dl_edges) + (SELECT count(*) FROM dl_graphs)") == 0


def test_a_job_that_waits_for_a_deleted_one_is_canceled(queue_db):
    ids = graph(queue_db, {"a": [], "b": ["a"], "c": ["b"], "d": [("b", "ended")]}, on_failure="continue")

    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(ids.pop("a")))

    assert states(queue_db, ids) == {"b": "canceled", "c": "skipped", "d": "ready"}
    assert "was deleted" in (queue_db.job(ids["b"]).error or "")


def test_retry_without_deleted_parents_runs_or_is_skipped(queue_db):
    ids = graph(queue_db, {"a": [], "b": ["a"], "c": [("b", "ended")]})
    run(queue_db, ids["a"])
    run(queue_db, ids["b"], FAILED)
    run(queue_db, ids["c"], FAILED)
    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(ids["a"]))

    (graph_id,) = queue_db.sql("SELECT graph_id FROM dl_jobs WHERE job_id = %s", str(ids["b"]))[0]
    queue_db.session.execute("retry_graph", {"graph_id": str(graph_id)})

    assert states(queue_db, {key: ids[key] for key in "bc"}) == {"b": "ready", "c": "waiting"}


def test_retry_of_graph_leaves_job_whose_live_key_is_taken(queue_db):
    ids = graph(queue_db, {"a": [], "b": ["a"]})
    queue_db.sql("UPDATE dl_jobs SET live_key = 'reload' WHERE job_id = %s", str(ids["b"]))
    run(queue_db, ids["a"])
    run(queue_db, ids["b"], FAILED)
    queue_db.enqueue("other", live_key="reload")

    (graph_id,) = queue_db.sql("SELECT graph_id FROM dl_jobs WHERE job_id = %s", str(ids["b"]))[0]
    ((count,),) = queue_db.session.execute("retry_graph", {"graph_id": str(graph_id)})

    assert (count, queue_db.status(ids["b"])) == (0, Status.FAILED)


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_parents_that_cannot_be_are_refused(queue_db):
    missing = UUID(int=7)
    with pytest.raises(InvalidJob, match="there is no job") as caught:
        child(queue_db, missing)
    assert caught.value.field == "after"
    with pytest.raises(InvalidJob, match="is neither"):
        queue_db.enqueue("child", after=after(queue_db.enqueue("p")), need="most")
    with pytest.raises(InvalidJob, match="several graphs"):
        one, two = graph(queue_db, {"a": []}), graph(queue_db, {"b": []})
        child(queue_db, one["a"], two["b"])
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="1 to 1000 parents"):
        queue_db.sql("SELECT dl_enqueue('q', 't', 'k', after => '[]')")
    assert queue_db.fetch_row("SELECT count(*) FROM dl_edges") == 0


@pytest.mark.parametrize(
    ("jobs", "column"),
    [
        ([], "jobs"),
        ([{"key": "a"}], "jobs[0].queue"),
        ([{"key": ""}], "jobs[0].key"),
        ([{"key": "a", "queue": "q", "task": "t", "lock_key": "k"}] * 2, "jobs[1].key"),
        ([{"key": "a", "after": [{"job": "b"}]}, {"key": "b"}], "jobs[0].after[0].job"),
        ([{"key": "a", "after": [{"job": "a"}]}], "jobs[0].after[0].job"),
        ([{"key": "a"}, {"key": "b", "after": [{"job": "a", "on": "often"}]}], "jobs[1].after[0]"),
        ([{"key": "a", "idempotency_key": "x"}], "jobs[0].idempotency_key"),
        ([{"key": "a", "need": "some"}], "jobs[0].need"),
        ([{"key": str(n)} for n in range(10_001)], "jobs"),
    ],
)
def test_graphs_that_cannot_be_are_refused_whole(queue_db, jobs, column):
    with pytest.raises(psycopg2.errors.InvalidParameterValue) as caught:
        queue_db.sql("SELECT * FROM dl_enqueue_graph(%s)", Json({"jobs": jobs}))

    assert caught.value.diag.column_name == column
    assert queue_db.fetch_row("SELECT (SELECT count(*) FROM dl_jobs) + (SELECT count(*) FROM dl_graphs)") == 0


# ── at the same time ────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_last_parents_that_commit_together_wake_the_child(queue_db):
    parents = [queue_db.enqueue(f"p{n}") for n in range(2)]
    waiting = child(queue_db, *parents)
    runs = {run.id: run for run in queue_db.claim(2)}

    with queue_db.open_transaction() as step:
        step("UPDATE dl_jobs SET status = 'succeeded', finished_at = now() WHERE job_id = %s", str(parents[0]))
        queue_db.queue.settle([(runs[parents[1]], SUCCEEDED)])
        assert queue_db.wait_state(waiting) == "waiting"

    assert queue_db.wait_state(waiting) == "ready"


def test_a_child_is_added_while_its_parent_ends(queue_db):
    parent = queue_db.enqueue("parent")
    (claimed,) = queue_db.claim(1)
    with ThreadPoolExecutor(1) as threads, queue_db.open_transaction() as step:
        step("UPDATE dl_jobs SET status = 'succeeded', finished_at = now() WHERE job_id = %s", str(parent))
        added = threads.submit(lambda: child(type(queue_db)(queue_db.dsn), parent))
        queue_db.wait_for_lock_waiters()
        step("COMMIT")
        waiting = added.result()

    assert queue_db.wait_state(waiting) == "ready"
    assert claimed.id == parent


def test_a_skipped_child_that_is_locked_is_decided_later(queue_db):
    ids = graph(queue_db, {"a": [], "b": ["a"]})
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(ids["b"]))
        run(queue_db, ids["a"])
        assert queue_db.wait_state(ids["b"]) == "waiting"

    assert queue_db.session.execute("decide_left")[0][0] == 1
    assert queue_db.wait_state(ids["b"]) == "ready"


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_with_random_ends_leave_no_job_waiting(queue_db, seed):
    chance = random.Random(seed)
    jobs: dict[str, Any] = {}
    for n in range(60):
        names = chance.sample(sorted(jobs), min(len(jobs), chance.choice([0, 1, 1, 2, 3])))
        edges = [(name, chance.choice(["succeeded", "succeeded", "ended", "failed"])) for name in names]
        jobs[f"j{n:02}"] = (edges, {"need": chance.choice(["all", "any"])} if edges else {})
    ids = graph(queue_db, jobs, on_failure=chance.choice(["cancel", "continue"]))
    stop = threading.Event()

    def work(number: int) -> None:
        queue, own = queue_db.new_queue(), random.Random(seed * 10 + number)
        while not stop.is_set():
            runs, _ = queue_db.claim_once(3, by=queue)
            ends = [(run, own.choice([SUCCEEDED, SUCCEEDED, SUCCEEDED, FAILED])) for run in runs]
            if ends:
                queue.settle(ends)
            if own.random() < 0.05:
                queue.cancel(own.choice([*ids.values()]))

    with ThreadPoolExecutor(4) as threads:
        workers = [threads.submit(work, number) for number in range(4)]

        def ended() -> bool:
            queue_db.session.execute("decide_left")
            return bool(queue_db.fetch_row("SELECT bool_and(status NOT IN ('queued', 'running')) FROM dl_jobs"))

        try:
            eventually(ended)
        finally:
            stop.set()
        for worker in workers:
            worker.result()

    early = queue_db.fetch_row(
        "SELECT count(*) FROM dl_edges e JOIN dl_jobs c ON c.job_id = e.child_id"
        " JOIN dl_jobs p ON p.job_id = e.parent_id WHERE c.started_at < p.finished_at AND c.need IS NULL"
    )
    assert early == 0
    queue_db.check_invariants()


def test_a_canceled_child_that_is_retried_waits_again(queue_db):
    parent = queue_db.enqueue("parent")
    child = queue_db.enqueue("child", after=[{"job_id": str(parent), "on": "succeeded"}])
    queue_db.queue.cancel(child)

    queue_db.queue.retry(child)
    assert queue_db.wait_state(child) == "waiting"
    (run,) = queue_db.claim(2)
    assert run.id == parent
    queue_db.settle(run)
    assert queue_db.wait_state(child) == "ready"


def test_a_skipped_child_that_is_retried_itself_runs(queue_db):
    parent = queue_db.enqueue("parent")
    child = queue_db.enqueue("child", after=[{"job_id": str(parent), "on": "succeeded"}])
    queue_db.settle(queue_db.claim()[0], Status.FAILED)
    assert queue_db.job(child).skipped

    queue_db.queue.retry(child)
    assert queue_db.job(child).skipped is None
    assert [run.id for run in queue_db.claim()] == [child]


def test_a_parent_that_ends_while_its_child_is_retried_is_not_missed(queue_db):
    parent = queue_db.enqueue("parent")
    child = queue_db.enqueue("child", after=[{"job_id": str(parent), "on": "succeeded"}])
    (run,) = queue_db.claim()
    queue_db.queue.cancel(child)
    with queue_db.open_transaction() as step:
        step("UPDATE dl_jobs SET error = error WHERE job_id = %s", str(child))  # the retry waits for the row
        retrying = BackgroundCall(queue_db.new_queue().retry, child)
        queue_db.wait_for_lock_waiters()
        queue_db.settle(run)

    assert retrying.result().status is Status.QUEUED
    assert queue_db.wait_state(child) == "ready"
