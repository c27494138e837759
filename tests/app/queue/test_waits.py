"""A job that is released until other jobs have ended: `release` with the reason `waits`."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest

from dataloader.app.errors import DatabaseUnavailable, WaitRefused
from dataloader.app.features.graphs.rows import Graphs
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.why.explain import JobExplainer
from dataloader.app.queue.job import ClaimedJob, Released, ReleaseReason, Settlement, SettleResult, Status
from tests.app.queue.test_graphs import after, child, graph, run
from tests.support import eventually

_SUCCEEDED = Settlement(Status.SUCCEEDED)


def wait(queue_db, claimed: ClaimedJob, *awaited: UUID, queue=None, **more) -> SettleResult:
    """Release a run until these jobs have ended."""
    request = (claimed, Released(ReleaseReason.WAITS, awaited=awaited, **more))
    result: SettleResult
    (result,) = (queue or queue_db.queue).release([request])
    return result


def claim(queue_db, key: str = "parent", **more) -> ClaimedJob:
    claimed: ClaimedJob = queue_db.enqueue_and_claim(key, **more)
    return claimed


def state(queue_db, job_id: UUID) -> str:
    job = queue_db.job(job_id)
    return str(queue_db.wait_state(job_id) if job.status is Status.QUEUED else job.status)


def end(queue_db, job_id: UUID, how: str) -> None:
    """End a queued job in one of the ways there are."""
    if how == "canceled":
        queue_db.queue.cancel(job_id)
        return
    (claimed,) = [one for one in queue_db.claim(200) if one.id == job_id]
    if how == "lost":
        queue_db.lose_attempt(claimed)
    else:
        queue_db.settle(claimed, Status(how))


@pytest.mark.parametrize("how", ["succeeded", "failed", "lost", "canceled"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_any_end_of_an_awaited_job_counts(queue_db, how, when):
    parent = claim(queue_db)
    awaited = queue_db.enqueue("child", max_attempts=1)
    if when == "before":
        end(queue_db, awaited, how)

    assert wait(queue_db, parent, awaited).status is Status.QUEUED

    if when == "after":
        assert state(queue_db, parent.id) == "waiting"
        end(queue_db, awaited, how)
    assert state(queue_db, awaited) == how
    assert state(queue_db, parent.id) == "ready"
    queue_db.check_invariants()


def test_the_attempt_is_refunded_and_all_is_given_back(queue_db):
    queue_db.sql("INSERT INTO dl_limits (name, concurrency) VALUES ('w', 1)")
    parent = claim(queue_db, limits={"w": 1})
    awaited, same_key = queue_db.enqueue("child", limits={"w": 1}), queue_db.enqueue("parent")
    assert queue_db.claim(5) == []

    wait(queue_db, parent, awaited, checkpoint={"page": 3}, progress={"processed": 1})

    job = queue_db.job(parent.id)
    assert (job.attempt, job.checkpoint, job.progress, job.lease_expires_at) == (0, {"page": 3}, {"processed": 1}, None)
    claimed = {one.id: one for one in queue_db.claim(5)}
    assert claimed.keys() == {awaited, same_key}
    queue_db.queue.settle([(one, _SUCCEEDED) for one in claimed.values()])
    (again,) = queue_db.claim(5)
    assert (again.id, again.attempt, again.checkpoint_text) == (parent.id, 1, '{"page": 3}')
    requeue, released = [
        event.payload for event in queue_db.queue.events(parent.id) if event.kind in ("requeue", "released")
    ]
    assert (requeue["reason"], requeue["attempt"], requeue["run_id"]) == ("waits", 0, parent.run_text)
    assert released["status"] == "queued"


def test_no_jobs_to_wait_for_is_ready_at_once(queue_db):
    parent = claim(queue_db)

    wait(queue_db, parent)

    assert state(queue_db, parent.id) == "ready"


def test_a_hundred_jobs(queue_db):
    parent = claim(queue_db)
    awaited = [queue_db.enqueue(f"child-{n}", max_attempts=1) for n in range(100)]
    wait(queue_db, parent, *awaited)
    runs = queue_db.claim(100)

    for n, one in enumerate(runs):
        assert state(queue_db, parent.id) == "waiting", n
        if n % 3 == 2:
            queue_db.lose_attempt(one)
        else:
            queue_db.settle(one, Status.FAILED if n % 3 else Status.SUCCEEDED)

    assert state(queue_db, parent.id) == "ready"
    queue_db.check_invariants()


def test_a_job_waits_again_and_again(queue_db):
    parent = claim(queue_db)
    for n in range(3):
        awaited = queue_db.enqueue(f"child-{n}")
        wait(queue_db, parent, awaited)
        run(queue_db, awaited)
        (parent,) = queue_db.claim(5)
        assert parent.attempt == 1
    wait(queue_db, parent, awaited)  # which has ended
    assert state(queue_db, parent.id) == "ready"


def test_a_cancel_ends_the_wait(queue_db):
    parent = claim(queue_db)
    awaited = queue_db.enqueue("child")
    wait(queue_db, parent, awaited)

    queue_db.queue.cancel(parent.id)
    run(queue_db, awaited)

    assert state(queue_db, parent.id) == "canceled"
    queue_db.check_invariants()


def test_a_cancel_that_came_before_the_wait_cancels(queue_db):
    parent = claim(queue_db)
    awaited = queue_db.enqueue("child")
    queue_db.queue.cancel(parent.id)

    assert wait(queue_db, parent, awaited).status is Status.CANCELED


def test_a_run_that_lost_its_job_makes_it_wait_for_nothing(queue_db):
    parent = claim(queue_db)
    awaited = queue_db.enqueue("child")
    queue_db.lose_attempt(parent)

    assert wait(queue_db, parent, awaited).outcome == "not ours"
    assert queue_db.fetch_row("SELECT count(*) FROM dl_edges") == 0
    assert state(queue_db, parent.id) == "ready"


def test_a_repeated_statement_is_applied_once(queue_db):
    parent = claim(queue_db)
    awaited = queue_db.enqueue("child")
    wait(queue_db, parent, awaited)

    assert wait(queue_db, parent, awaited) == SettleResult("already", Status.QUEUED)
    assert state(queue_db, parent.id) == "waiting"


# ── circles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def refused(queue_db, claimed: ClaimedJob, *awaited: UUID) -> str:
    with pytest.raises(WaitRefused) as error:
        wait(queue_db, claimed, *awaited)
    assert state(queue_db, claimed.id) == "running"
    assert queue_db.fetch_row("SELECT count(*) FROM dl_edges WHERE child_id = %s", str(claimed.id)) == 0
    return str(error.value)


def test_a_job_cannot_wait_for_itself(queue_db):
    parent = claim(queue_db)

    assert refused(queue_db, parent, parent.id) == (
        f"the job would wait for itself: t (job {parent.id}) → t (job {parent.id})"
    )


def test_a_job_cannot_wait_for_itself_through_others(queue_db):
    parent = claim(queue_db)
    first = child(queue_db, parent.id, key="first")
    second = child(queue_db, first, on="ended", key="second")
    other = queue_db.enqueue("other")

    assert refused(queue_db, parent, other, second) == (
        f"the job would wait for itself: t (job {parent.id}) → t (job {second}) → t (job {first}) → t (job {parent.id})"
    )


def test_a_job_cannot_wait_for_one_that_waits_for_it(queue_db):
    one, other = claim(queue_db, "one"), claim(queue_db, "other")
    wait(queue_db, one, other.id)

    assert f"t (job {other.id}) → t (job {one.id}) → t (job {other.id})" in refused(queue_db, other, one.id)


def test_a_circle_is_found_behind_jobs_that_wait_no_more(queue_db):
    """A job that needed any parent keeps an edge to the other one, which may lead round without end."""
    ids = graph(queue_db, {"quick": [], "slow": [], "any": (["quick", "slow"], {"need": "any"})})
    other, asker = queue_db.enqueue("other"), queue_db.enqueue("asker")
    claimed = {one.id: one for one in queue_db.claim(9)}
    queue_db.settle(claimed[ids["quick"]])
    wait(queue_db, claimed[ids["slow"]], ids["any"], asker)
    wait(queue_db, claimed[other], ids["slow"])

    text = refused(queue_db, claimed[asker], other)

    assert [part[-37:-1] for part in text.split(" → ")] == [str(job) for job in (asker, other, ids["slow"], asker)]


def test_a_wait_does_not_wait_for_other_graphs_when_it_commits(queue_db):
    """It holds the locks of its own graphs, and the holder of another graph's lock may want one of these."""
    parent, ended = claim(queue_db), queue_db.enqueue("ended")
    run(queue_db, ended)
    other = graph(queue_db, {"a": []})["a"]
    other_graph = queue_db.fetch_row("SELECT graph_id FROM dl_jobs WHERE job_id = %s", str(other))
    with queue_db.open_transaction() as step:  # a job of another graph waits for the ended one, and is not decided yet
        step("SET LOCAL dl.new_graph = 'yes'")
        step("INSERT INTO dl_edges (child_id, parent_id, wants) VALUES (%s, %s, 'ended')", str(other), str(ended))
        step("UPDATE dl_jobs SET wait_state = 'waiting' WHERE job_id = %s", str(other))
    with queue_db.open_transaction() as step:
        step("SELECT pg_advisory_xact_lock(1684828531, hashtext(%s))", str(other_graph))

        assert wait(queue_db, parent, ended).status is Status.QUEUED

    assert state(queue_db, other) == "waiting"
    queue_db.session.execute("decide_left")
    assert (state(queue_db, parent.id), state(queue_db, other)) == ("ready", "ready")


def test_what_a_job_waited_for_makes_no_circle(queue_db):
    first = claim(queue_db, "first")
    second_id = child(queue_db, first.id, key="second")
    queue_db.settle(first)
    (second,) = queue_db.claim(5)
    assert second.id == second_id

    wait(queue_db, second, first.id)

    assert state(queue_db, second.id) == "ready"


def test_waits_that_make_a_circle_together_are_not_both_accepted(queue_db):
    """Each job waits for a job that waits for the other: their rows are different ones."""
    for _ in range(5):
        one, other = claim(queue_db, f"{uuid4()}"), claim(queue_db, f"{uuid4()}")
        after_one, after_other = (child(queue_db, job.id, key=f"{uuid4()}") for job in (one, other))
        results: list[str] = []

        def try_wait(claimed: ClaimedJob, awaited: UUID, results: list[str] = results) -> None:
            try:
                wait(queue_db, claimed, awaited, queue=queue_db.new_queue())
                results.append("waits")
            except WaitRefused:
                results.append("refused")

        threads = [threading.Thread(target=try_wait, args=pair) for pair in ((one, after_other), (other, after_one))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(results) == ["refused", "waits"]
        queue_db.sql("DELETE FROM dl_jobs; DELETE FROM dl_edges")


def test_a_job_that_does_not_exist_is_refused(queue_db):
    parent, missing_id = claim(queue_db), uuid4()

    assert refused(queue_db, parent, missing_id) == f"the job waits for job {missing_id}, which does not exist"


# ── graphs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failed_awaited_job_does_not_cancel_the_graph_of_the_job(queue_db):
    ids = graph(queue_db, {"extract": [], "load": ["extract"], "other": []})
    claimed = {one.id: one for one in queue_db.claim(5)}
    awaited = [queue_db.enqueue("a", max_attempts=1), queue_db.enqueue("b")]
    wait(queue_db, claimed[ids["extract"]], *awaited)

    queue_db.sql("UPDATE dl_jobs SET priority = 1 WHERE job_id = %s", str(awaited[0]))
    (first,) = queue_db.claim(1)
    queue_db.settle(first, Status.FAILED)

    assert state(queue_db, awaited[1]) == "ready"
    queue_db.queue.cancel(awaited[1])
    assert (state(queue_db, ids["extract"]), state(queue_db, ids["load"])) == ("ready", "waiting")


def test_jobs_of_other_graphs_are_awaited(queue_db):
    """Their last ends commit together: each sees the other one open, unless one lock orders them."""
    for round_number in range(5):
        parent = claim(queue_db, f"parent-{round_number}", task="t")
        first, second = (graph(queue_db, {"a": ([], {"lock_key": f"{uuid4()}"})})["a"] for _ in range(2))
        wait(queue_db, parent, first, second)
        runs = queue_db.claim(5)
        threads = [threading.Thread(target=queue_db.new_queue().settle, args=([(one, _SUCCEEDED)],)) for one in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert state(queue_db, parent.id) == "ready"
        parents = Graphs(queue_db.queue.executor).parents(parent.id)
        assert {one.key for one in parents} == {str(first), str(second)}, "keys of other graphs may be the same"
        queue_db.queue.cancel(parent.id)


def test_a_skipped_job_of_another_graph_ends_the_wait(queue_db):
    parent = claim(queue_db)
    ids = graph(queue_db, {"extract": ([], {"max_attempts": 1}), "load": ["extract"]})
    wait(queue_db, parent, ids["load"])

    end(queue_db, ids["extract"], "failed")

    assert queue_db.job(ids["load"]).skipped
    queue_db.session.execute("decide_left")  # as the maintenance leader does, if a lock was not free
    assert state(queue_db, parent.id) == "ready"


def test_a_job_that_needed_any_parent_waits_for_all_it_asked_for(queue_db):
    first, slow = queue_db.enqueue("first"), queue_db.enqueue("slow")
    job = queue_db.enqueue("job", after=after(first, slow), need="any")
    run(queue_db, first)
    claimed = next(one for one in queue_db.claim(5) if one.id == job)
    awaited = queue_db.enqueue("awaited")

    wait(queue_db, claimed, awaited)

    assert state(queue_db, job) == "waiting"
    run(queue_db, awaited)
    assert state(queue_db, job) == "ready", "the slow one is not waited for"
    assert state(queue_db, slow) == "running"


def test_a_job_that_needed_any_parent_and_waits_for_nothing_is_ready(queue_db):
    first, slow = queue_db.enqueue("first"), queue_db.enqueue("slow")
    job = queue_db.enqueue("job", after=after(first, slow), need="any")
    run(queue_db, first)
    claimed = next(one for one in queue_db.claim(5) if one.id == job)

    wait(queue_db, claimed)

    assert state(queue_db, job) == "ready"


def test_why_names_the_awaited_jobs_that_are_open(queue_db):
    parent = claim(queue_db)
    done, is_open = queue_db.enqueue("done"), queue_db.enqueue("open")
    wait(queue_db, parent, done, is_open)
    run_one = next(one for one in queue_db.claim(5) if one.id == done)
    queue_db.settle(run_one)

    reason = JobExplainer(queue_db.queue.executor, FEATURES).explain(parent.id).reasons[0]

    assert reason.code == "waits_for_jobs"
    assert f"job {is_open}" in reason.message
    assert str(done) not in reason.message


def test_a_row_that_is_locked_is_not_waited_for_long(queue_db):
    parent = claim(queue_db)
    awaited = queue_db.enqueue("child")
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(awaited))
        with pytest.raises(DatabaseUnavailable, match="lock timeout"):
            wait(queue_db, parent, awaited)

    assert wait(queue_db, parent, awaited).outcome == "applied"


@pytest.mark.parametrize("seed", range(4))
def test_random_waits_with_random_ends_leave_no_job_waiting(queue_db, seed):
    """Jobs with and without graphs wait for any others, while those end: no deadlock, no job that waits for ever."""
    chance = random.Random(seed)
    ids = [queue_db.enqueue(f"loose-{n}", max_attempts=2) for n in range(25)]
    for number in range(3):
        jobs: dict[str, Any] = {}
        for n in range(12):
            names = chance.sample(sorted(jobs), min(len(jobs), chance.choice([0, 0, 1, 2])))
            edges = [(name, chance.choice(["succeeded", "ended", "failed"])) for name in names]
            fields = {"lock_key": f"{number}-{n}", **({"need": chance.choice(["all", "any"])} if edges else {})}
            jobs[f"j{n:02}"] = (edges, fields)
        ids += graph(queue_db, jobs, on_failure=chance.choice(["cancel", "continue"])).values()
    stop = threading.Event()
    waits: dict[UUID, int] = {}

    def work(number: int) -> None:
        queue, own = queue_db.new_queue(), random.Random(seed * 10 + number)
        while not stop.is_set():
            runs, _ = queue_db.claim_once(3, by=queue)
            ends = []
            for one in runs:
                if own.random() < 0.4 and waits.get(one.id, 0) < 2:
                    waits[one.id] = waits.get(one.id, 0) + 1
                    try:
                        wait(queue_db, one, *own.sample(ids, own.randint(0, 4)), queue=queue)
                    except WaitRefused as error:
                        ends.append((one, Settlement(Status.FAILED, error=str(error))))
                else:
                    status = own.choice([Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED])
                    ends.append((one, Settlement(status, "broken" if status is Status.FAILED else None)))
            if ends:
                queue.settle(ends)
            if own.random() < 0.03:
                queue.cancel(own.choice(ids))

    with ThreadPoolExecutor(4) as threads:
        workers = [threads.submit(work, number) for number in range(4)]

        def ended() -> bool:
            for worker in workers:
                if worker.done():
                    worker.result()  # raises why it has ended
            queue_db.session.execute("decide_left")
            return bool(queue_db.fetch_row("SELECT bool_and(status NOT IN ('queued', 'running')) FROM dl_jobs"))

        try:
            eventually(ended)
        finally:
            stop.set()
        for worker in workers:
            worker.result()
    assert waits
    queue_db.check_invariants()
