"""Who holds the lock of a graph waits for no row that others hold: they may wait for that lock."""

from __future__ import annotations

from uuid import UUID

import pytest
from psycopg2.extras import Json

from dataloader.app.features.graphs.rows import Graphs
from dataloader.app.queue.job import Settlement, Status
from tests.app.queue.midway import midway
from tests.app.queue.test_graphs import FAILED, after, child, graph, run, states
from tests.app.queue.test_waits import claim, state, wait
from tests.support.queue_fixture import BackgroundCall, QueueFixture

_SUCCEEDED = Settlement(Status.SUCCEEDED)


def test_skip_does_not_wait_for_retry_of_a_child(queue_db):
    ids = graph(queue_db, {"first": [], "skipped": ["first"], "retried": ["skipped"]})
    queue_db.queue.cancel(ids["retried"])
    (first,) = queue_db.claim(5)

    with midway(queue_db) as operator:
        operator.retry(ids["retried"])
        BackgroundCall(queue_db.settle, first, Status.FAILED).result()

    assert states(queue_db, ids) == {"first": "failed", "skipped": "skipped", "retried": "skipped"}
    queue_db.check_invariants()


@pytest.mark.parametrize("retries", ["job", "graph"])
def test_wait_does_not_wait_for_retry_of_a_child(queue_db, retries):
    """The retry and the wait have the same job decided again, which has ended."""
    ids = graph(queue_db, {"ended": [], "open": [], "retried": ["ended", "open"]})
    parent = claim(queue_db, priority=1)
    queue_db.queue.cancel(ids["retried"])
    run(queue_db, ids["ended"])
    graph_id = queue_db.fetch_row("SELECT graph_id FROM dl_jobs WHERE job_id = %s", str(ids["ended"]))

    with midway(queue_db) as operator:
        if retries == "job":
            operator.retry(ids["retried"])
        else:
            Graphs(operator.executor).retry(graph_id)
        BackgroundCall(wait, queue_db, parent, ids["ended"], queue=queue_db.new_queue()).result()

    assert (state(queue_db, parent.id), state(queue_db, ids["retried"])) == ("ready", "waiting")
    queue_db.check_invariants()


def test_leader_does_not_wait_for_retry_of_an_ended_job(queue_db):
    ids = graph(queue_db, {"retried": [], "child": ["retried"]})
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(ids["child"]))
        run(queue_db, ids["retried"], FAILED)  # its child is left to the leader

    with midway(queue_db) as operator:
        operator.retry(ids["retried"])
        BackgroundCall(queue_db.session.execute, "decide_left").result()

    assert states(queue_db, ids) == {"retried": "ready", "child": "waiting"}
    queue_db.check_invariants()


def test_leader_does_not_wait_for_locked_edges(queue_db):
    ids = graph(queue_db, {"ended": [], "child": ["ended"]})
    (ended,) = queue_db.claim(5)
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_edges FOR UPDATE")
        BackgroundCall(queue_db.settle, ended).result()
        assert state(queue_db, ids["child"]) == "waiting"

    assert queue_db.session.execute("decide_left")[0][0] == 1
    assert state(queue_db, ids["child"]) == "ready"


def test_leader_deciding_parent_lets_new_child_be_decided(queue_db):
    """Both want the graph's lock; the transaction of the new child holds a row that the leader has read."""
    ids = graph(queue_db, {"ended": [], "left": ["ended"]})
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(ids["left"]))
        run(queue_db, ids["ended"])
    graph_id = queue_db.fetch_row("SELECT graph_id FROM dl_jobs WHERE job_id = %s", str(ids["ended"]))

    with queue_db.open_transaction() as step:
        step("SELECT pg_advisory_xact_lock(1684828531, hashtext(%s))", str(graph_id))
        leader = BackgroundCall(queue_db.session.execute, "decide_left")
        queue_db.wait_for_lock_waiters()
        adding = BackgroundCall(child, QueueFixture(queue_db.dsn), ids["ended"])
        queue_db.wait_for_lock_waiters(2)

    leader.result()
    added = adding.result()
    assert (state(queue_db, ids["left"]), state(queue_db, added)) == ("ready", "ready")


def test_end_and_new_child_in_one_transaction_lock_rows_first(queue_db):
    ids = graph(queue_db, {"parent": [], "canceled": []})
    (parent,) = queue_db.claim(1)
    assert parent.id == ids["parent"]

    def cancel_and_enqueue() -> UUID:
        with queue_db.open_transaction() as step:
            step("UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s", str(ids["canceled"]))
            ((job_id,),) = step("SELECT dl_enqueue('q', 't', 'new', after => %s)", Json(after(ids["parent"])))
        return UUID(job_id)

    with midway(queue_db) as owner:
        owner.settle([(parent, _SUCCEEDED)])
        adding = BackgroundCall(cancel_and_enqueue)
        queue_db.wait_for_lock_waiters()  # for the row of the parent

    assert state(queue_db, adding.result()) == "ready"
    assert queue_db.fetch_row("SELECT count(*) FROM dl_graph_work") == 0
    queue_db.check_invariants()


def test_wait_of_job_that_needed_any_locks_edges_first(queue_db):
    jobs = {"open": [], "retried": ["open"], "quick": [], "any": (["retried", "quick"], {"need": "any"})}
    ids = graph(queue_db, jobs, on_failure="continue")
    queue_db.queue.cancel(ids["retried"])
    run(queue_db, ids["quick"])
    (claimed,) = queue_db.claim(5)
    assert claimed.id == ids["any"]
    awaited = queue_db.enqueue("awaited")

    with midway(queue_db) as operator:
        operator.retry(ids["retried"])
        waiting = BackgroundCall(wait, queue_db, claimed, awaited, queue=queue_db.new_queue())
        queue_db.wait_for_lock_waiters()  # for the edge to the retried job

    assert waiting.result().status is Status.QUEUED
    run(queue_db, awaited)
    assert state(queue_db, ids["any"]) == "ready"
    queue_db.check_invariants()
