"""Fair queues: tenants are served in turn, by weight, up to their share, however many jobs each has."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import psycopg2.errors
import pytest

from dataloader.app.queue.batch import enqueue_batch
from dataloader.app.queue.claims import FIRST_TURN, ClaimMode, ClaimRequest
from dataloader.app.queue.job import ClaimedJob, NewJob, new_run_ids
from dataloader.app.state.queues import Queues


class Claims:
    """Claims of one process, which remembers where its last claim ended."""

    def __init__(self, queue_db) -> None:
        self._queue_db = queue_db
        self.turn = FIRST_TURN

    def __call__(self, count: int = 1) -> list[ClaimedJob]:
        claimed: list[ClaimedJob] = []
        while len(claimed) < count:
            run_ids, request = new_run_ids(count - len(claimed)), ClaimRequest(ClaimMode.IN_TURN, self.turn)
            more, hint = self._queue_db.queue.claim("q", ["t"], run_ids, "worker-1", request)
            self.turn = hint.next_start or self.turn
            claimed += more
            if not more and not hint.skipped:
                break
        return claimed

    def tenants(self, count: int = 1) -> list[str]:
        return [self._queue_db.job(run.id).fair_key for run in self(count)]


@pytest.fixture
def fair_db(queue_db):
    queue_db.sql("DELETE FROM dl_queues")
    Queues(queue_db.session).change_settings("q", fair="args.tenant", share=1.0)
    set_threads(queue_db, 10)
    yield queue_db
    queue_db.sql("DELETE FROM dl_queues; DELETE FROM dl_workers")


@pytest.fixture
def claims(fair_db) -> Claims:
    return Claims(fair_db)


def set_threads(queue_db, threads: int) -> None:
    queue_db.sql(
        "DELETE FROM dl_workers; INSERT INTO dl_workers"
        " (worker_id, name, version, queues, tasks, threads, heartbeat_sec, queue_threads)"
        " VALUES (%s, 'w', '1', '{q}', '{t}', %s, 1000, jsonb_build_object('q', %s))",
        str(uuid4()),
        threads,
        threads,
    )


def enqueue(queue_db, **jobs_by_tenant: int) -> None:
    new = [
        NewJob(queue="q", task="t", lock_key=f"{tenant}-{n}-{uuid4()}", args={"tenant": tenant})
        for tenant, jobs in jobs_by_tenant.items()
        for n in range(jobs)
    ]
    enqueue_batch(queue_db.session, new)


def test_tenants_are_served_in_turn(fair_db, claims):
    enqueue(fair_db, a=50, b=2, c=2)

    served = []
    for _ in range(7):
        (run,) = claims()
        served.append(fair_db.job(run.id).fair_key)
        fair_db.settle(run)

    assert served == ["a", "b", "c", "a", "b", "c", "a"]


def test_one_claim_takes_from_all_tenants(fair_db, claims):
    enqueue(fair_db, a=50, b=2, c=2)
    assert Counter(claims.tenants(6)) == {"a": 2, "b": 2, "c": 2}
    assert Counter(claims.tenants(4)) == {"a": 4}, "no other tenant waits"


def test_who_runs_the_fewest_comes_first(fair_db, claims):
    enqueue(fair_db, a=50)
    claims(3)
    enqueue(fair_db, b=50)

    assert claims.tenants(3) == ["b", "b", "b"]
    assert Counter(claims.tenants(4)) == {"a": 2, "b": 2}


def test_a_weight_gives_more_turns(fair_db, claims):
    Queues(fair_db.session).change_settings("q", weights={"a": 3})
    enqueue(fair_db, a=100, b=100)

    at_once = Counter(claims.tenants(8))
    assert at_once == {"a": 6, "b": 2}
    fair_db.sql("UPDATE dl_jobs SET status = 'canceled' WHERE status = 'running'")
    served: Counter[str] = Counter()
    for _ in range(40):
        (run,) = claims()
        served[fair_db.job(run.id).fair_key] += 1
        fair_db.settle(run)
    assert served == {"a": 30, "b": 10}

    settings = Queues(fair_db.session).change_settings("q", weights={"a": None, "b": 2})
    assert settings.weights == {"b": 2}


def test_no_tenant_exceeds_its_share_while_others_wait(fair_db, claims):
    Queues(fair_db.session).change_settings("q", share=0.3)
    enqueue(fair_db, a=50, b=1)
    assert Counter(claims.tenants(4)) == {"a": 3, "b": 1}
    assert claims.tenants(2) == ["a", "a"], "no other tenant waits"
    enqueue(fair_db, b=5)
    assert claims.tenants(2) == ["b", "b"]


def test_tenants_at_their_share_are_passed_over_however_many(fair_db, claims):
    Queues(fair_db.session).change_settings("q", share=0.0001)  # one job each
    enqueue(fair_db, **{f"t{n:03}": 2 for n in range(400)})
    assert len(set(claims.tenants(350))) == 350
    assert len(set(claims.tenants(50))) == 50
    assert Counter(
        Counter(t for (t,) in fair_db.sql("SELECT fair_key FROM dl_jobs WHERE status = 'running'")).values()
    ) == {1: 400}


def test_a_newcomer_does_not_wait_for_a_backlog(fair_db, claims):
    enqueue(fair_db, a=3000)
    for run in claims(5):
        fair_db.settle(run)
    enqueue(fair_db, new=1)
    assert "new" in claims.tenants(2)


def test_better_priority_is_before_any_turn(fair_db, claims):
    enqueue(fair_db, a=3, b=3)
    urgent = fair_db.enqueue("urgent", priority=1, args={"tenant": "a"})
    assert claims()[0].id == urgent
    assert Counter(claims.tenants(6)) == {"a": 3, "b": 3}


def test_share_counts_what_a_claim_has_taken_of_a_better_priority(fair_db, claims):
    Queues(fair_db.session).change_settings("q", share=0.5)
    for n in range(5):
        fair_db.enqueue(f"urgent-{n}", priority=1, args={"tenant": "a"})
    enqueue(fair_db, a=10, b=10)

    assert Counter(claims.tenants(10)) == {"a": 5, "b": 5}


def test_jobs_from_before_the_rule_and_of_plain_inserts_have_their_turn(fair_db, claims):
    old = fair_db.insert("old")
    fair_db.sql("UPDATE dl_jobs SET fair_key = NULL")
    enqueue(fair_db, a=5)
    plain = fair_db.insert("plain", args='{"tenant": "b"}')
    assert fair_db.job(plain).fair_key == "b"

    runs = claims(3)
    assert {old, plain} < {run.id for run in runs}


def test_the_rule_decides_the_tenant(fair_db):
    queues = Queues(fair_db.session)
    by_args = fair_db.enqueue("1", args={"tenant": "acme"})
    missing = fair_db.enqueue("2")
    long_name = fair_db.enqueue("3", args={"tenant": "x" * 3000})
    own = fair_db.enqueue("4", args={"tenant": "acme"}, fair_key="other")
    queues.change_settings("q", fair="producer")
    by_producer = fair_db.enqueue("5", producer="billing")
    queues.change_settings("q", fair="partition_key")
    by_partition = enqueue_batch(fair_db.session, [NewJob(queue="q", task="t", lock_key="6", partition_key="p")])[
        0
    ].job_id
    queues.change_settings("q", remove=["fair"])
    none = fair_db.enqueue("7", args={"tenant": "acme"})

    keys = [fair_db.job(job).fair_key for job in (by_args, missing, own, by_producer, by_partition, none)]
    assert keys == ["acme", "", "other", "billing", "p", None]
    assert len(fair_db.job(long_name).fair_key) == 32


def test_busy_keys_and_limits_hold_in_a_fair_queue(fair_db, claims):
    for n in range(4):
        fair_db.enqueue("same", args={"tenant": f"t{n}"})
    assert len(claims(4)) == 1
    assert fair_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE wait_state = 'blocked'") == 3


def test_service_is_equal_and_none_starves(fair_db, claims):
    """Ten tenants of unequal backlogs and ten threads; Jain's index of the starts is at least 0.95."""
    enqueue(fair_db, **{f"t{n}": 30 * (n + 1) for n in range(10)})
    running = claims(10)
    starts = Counter(fair_db.job(run.id).fair_key for run in running)
    for _ in range(200):
        fair_db.settle(running.pop(0))  # all jobs take the same time
        (run,) = claims()
        running.append(run)
        starts[fair_db.job(run.id).fair_key] += 1

    counts = list(starts.values())
    assert len(counts) == 10
    assert sum(counts) ** 2 / (10 * sum(count * count for count in counts)) >= 0.95


def test_two_processes_do_not_take_more_than_the_share(fair_db):
    Queues(fair_db.session).change_settings("q", share=0.3)
    enqueue(fair_db, a=50, b=50, c=50, d=50)
    first, second = Claims(fair_db), Claims(fair_db)
    served = Counter(first.tenants(6) + second.tenants(4))
    assert max(served.values()) <= 3
    assert sum(served.values()) == 10


def served_in_turn(queue_db, claims: Claims, count: int) -> list[str | None]:
    """The tenants that one thread serves, one job after the other."""
    served = []
    for _ in range(count):
        (run,) = claims()
        served.append(queue_db.job(run.id).fair_key)
        queue_db.settle(run)
    return served


def test_jobs_without_a_tenant_have_one_turn_among_the_others(fair_db, claims):
    for n in range(6):
        fair_db.insert(f"old {n}")
    fair_db.sql("UPDATE dl_jobs SET fair_key = NULL")
    enqueue(fair_db, a=6, b=6)

    assert Counter(served_in_turn(fair_db, claims, 6)) == {None: 2, "a": 2, "b": 2}


def test_turns_go_on_behind_a_priority_of_unknown_tasks(fair_db, claims):
    fair_db.enqueue("urgent", priority=1, task="other", args={"tenant": "z"})
    enqueue(fair_db, a=6, b=6, c=6)

    assert served_in_turn(fair_db, claims, 6) == ["a", "b", "c", "a", "b", "c"]


def test_many_priorities_of_unknown_tasks_hide_no_job(fair_db, claims):
    for priority in range(40):
        fair_db.enqueue(f"other {priority}", priority=priority, task="other", args={"tenant": "z"})
    enqueue(fair_db, a=1)

    assert claims.tenants(1) == ["a"]


def test_many_tenants_of_unknown_tasks_behind_a_better_priority_hide_no_job(fair_db, claims):
    fair_db.enqueue("urgent", priority=1, task="other", args={"tenant": "z"})
    for n in range(40):
        fair_db.enqueue(f"other {n}", task="other", args={"tenant": f"a{n:02}"})
    enqueue(fair_db, b=1)

    assert any(claims.tenants(1) for _ in range(10))


def test_a_locked_job_holds_up_no_other(fair_db, claims):
    enqueue(fair_db, a=1)
    holder = fair_db.connect()
    with holder.cursor() as cursor:
        cursor.execute("UPDATE dl_jobs SET priority = priority WHERE status = 'queued'")
        enqueue(fair_db, a=2, b=2)
        claimed = [run for _ in range(8) for run in claims(1)]
    holder.rollback()

    assert len(claimed) == 4


def test_a_tenant_of_any_length_is_refused_at_once(fair_db):
    with pytest.raises(psycopg2.errors.CheckViolation):
        fair_db.insert("later", fair_key="x" * 501, available_at="infinity")
