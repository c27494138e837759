"""The lease of a run by the heartbeats of its process: dl_lease_end, and a reaper that meets a heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from dataloader.app.queue.job import ClaimedJob, RenewalRequest, RunRef, Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobLimits, JobQueue
from dataloader.app.queue.workers import prune_heartbeats
from tests.app.queue.midway import midway
from tests.support.queue_fixture import BackgroundCall, QueueFixture

OLD_SEC = 61  # a lease is a minute


@pytest.fixture
def worker() -> UUID:
    return uuid4()


@pytest.fixture
def run(queue_db: QueueFixture, worker: UUID) -> ClaimedJob:
    queue_db.enqueue()
    ((run,), _) = queue_db.queue.claim("q", ["t"], new_run_ids(1), "host:1", worker_id=worker)
    return run


@pytest.fixture
def make_old(queue_db: QueueFixture) -> Callable[[], None]:
    """Returns a function that moves all proofs of life into the past."""

    def make_old() -> None:
        queue_db.sql("UPDATE dl_jobs SET heartbeat_at = heartbeat_at - make_interval(secs => %s)", OLD_SEC)
        queue_db.sql("UPDATE dl_heartbeats SET seen_at = seen_at - make_interval(secs => %s)", OLD_SEC)

    return make_old


def is_expired(queue_db: QueueFixture) -> bool:
    return bool(queue_db.queue.expired_runs().runs)


def reap(queue_db: QueueFixture, run: ClaimedJob) -> bool:
    return bool(queue_db.queue.reap([(run.id, run.run_id, run.lock_key)], pause_sec=0))


def beat(queue_db: QueueFixture, worker: UUID, run: ClaimedJob) -> list[bool]:
    return [answer.is_owned for answer in queue_db.queue.beat(worker, [RunRef(run.id, run.run_id)])]


def test_run_lives_while_its_process_does(queue_db, worker, run, make_old):
    make_old()
    assert is_expired(queue_db)
    row = queue_db.sql("SELECT xmin::text, heartbeat_at FROM dl_jobs")

    assert beat(queue_db, worker, run) == []

    assert not is_expired(queue_db)
    assert not reap(queue_db, run)
    assert queue_db.sql("SELECT xmin::text, heartbeat_at FROM dl_jobs") == row, "a heartbeat writes no job"
    assert queue_db.job(run.id).heartbeat_at > row[0][1], "readers get the last heartbeat"
    make_old()
    assert is_expired(queue_db)
    assert reap(queue_db, run)
    assert "vanished: its lease ran out at " in (queue_db.job(run.id).error or "")
    assert beat(queue_db, worker, run) == [False]


@pytest.mark.parametrize(
    ("columns", "is_over"),
    [
        ("lease_expires_at = now() - interval '1 s'", True),  # its process has forgotten it
        ("lease_expires_at = NULL", True),
        ("heartbeat_at = 'infinity'", True),
        ("heartbeat_at = 'infinity', lease_expires_at = 'infinity'", True),
        ("heartbeat_at = NULL, lease_expires_at = now() + interval '1 min'", True),
        ("heartbeat_at = now() - interval '61 s', lease_expires_at = now() + interval '1 h'", True),
        ("heartbeat_at = now() - interval '59 s', lease_expires_at = now() + interval '1 h'", False),
        ("worker_id = NULL, lease_expires_at = now() - interval '1 s'", True),  # claimed by another program
        ("worker_id = NULL, heartbeat_at = now() - interval '61 s', lease_expires_at = now() + interval '1 h'", True),
    ],
)
def test_lease_without_a_heartbeat_is_that_of_the_row(queue_db, run, columns, is_over):
    queue_db.sql(f"UPDATE dl_jobs SET {columns}")

    assert is_expired(queue_db) is is_over
    assert reap(queue_db, run) is is_over


def test_expired_lease_of_a_given_up_run_keeps_its_end(queue_db, worker, run):
    """The reaper looks twice whether the same lease has expired."""
    queue_db.sql("UPDATE dl_jobs SET lease_expires_at = now() - interval '1 s', heartbeat_at = now() - interval '61 s'")
    beat(queue_db, worker, run)
    lease_ends = queue_db.queue.expired_runs().lease_ends

    queue_db.queue.disown([RunRef(run.id, run.run_id)])

    assert queue_db.queue.expired_runs().lease_ends == lease_ends != {}


def test_lease_that_ended_again_is_not_reaped(queue_db, worker, run, make_old):
    """Its process came back and gave the run up, while the reaper was ending the sessions of the run."""
    make_old()
    lease_ends = queue_db.queue.expired_runs().lease_ends
    beat(queue_db, worker, run)
    queue_db.queue.disown([RunRef(run.id, run.run_id)])
    runs = [(run.id, run.run_id, run.lock_key)]

    assert queue_db.queue.reap(runs, pause_sec=0, lease_ends=lease_ends) == []
    assert len(queue_db.queue.reap(runs, pause_sec=0, lease_ends=queue_db.queue.expired_runs().lease_ends)) == 1


def test_late_heartbeat_is_not_recorded_after_the_end(queue_db, run):
    late = {"silence_sec": 70, "late_sec": -1}
    with midway(queue_db) as settling:
        settling.settle([(run, Settlement(Status.SUCCEEDED))])
        queue_db.queue.record_late_heartbeat([RunRef(run.id, run.run_id)], **late)

    assert queue_db.event_kinds(run.id) == ["queued", "picked", "done"]
    queue_db.check_invariants()


@pytest.mark.parametrize("lease", ["lease_ttl_sec = 1", "lease_expires_at = now()", "lease_expires_at = NULL"])
def test_heartbeat_names_a_run_whose_lease_was_changed(queue_db, worker, run, lease):
    runs = [RunRef(run.id, run.run_id)]
    assert queue_db.queue.beat(worker, runs) == []

    queue_db.sql(f"UPDATE dl_jobs SET {lease}")

    (answer,) = JobQueue(queue_db.session, limits=JobLimits(min_lease_sec=20)).beat(worker, runs)
    assert answer == (run.run_id, True, False, True)


def test_heartbeat_finds_rows_that_have_moved(queue_db, worker):
    for n in range(20):
        queue_db.enqueue(f"k{n}", priority=n)
    claimed, _ = queue_db.queue.claim("q", ["t"], new_run_ids(20), "host:1", worker_id=worker)
    runs = [RunRef(run.id, run.run_id) for run in claimed]
    for changes in (
        ["UPDATE dl_jobs SET worker = 'another'"],
        [
            "CREATE INDEX by_priority ON dl_jobs ((40 - priority))",
            "CLUSTER dl_jobs USING by_priority",
            "DROP INDEX by_priority",
        ],
        ["DELETE FROM dl_jobs WHERE priority > 10", "VACUUM FULL dl_jobs"],
    ):
        for change in changes:
            queue_db.sql(change)
        left = {UUID(job_id) for (job_id,) in queue_db.sql("SELECT job_id::text FROM dl_jobs")}
        for _ in range(2):  # from where it was found last, and where it is found now
            answers = queue_db.queue.beat(worker, runs)
            assert {answer.run_id for answer in answers} == {run.run_id for run in claimed if run.id not in left}
            values = [(run, {"n": 1}) for run in runs]
            assert queue_db.queue.save_progress(values) == {run.run_id for run in claimed if run.id in left}


def test_heartbeat_finds_its_run_gone_wherever_the_row_is(queue_db, worker, run):
    assert beat(queue_db, worker, run) == []
    queue_db.sql("UPDATE dl_jobs SET run_id = gen_random_uuid()")
    assert beat(queue_db, worker, run) == [False], "another run owns the job"
    assert beat(queue_db, worker, run) == [False]
    queue_db.sql("UPDATE dl_jobs SET run_id = %s, status = 'queued'", str(run.run_id))
    assert beat(queue_db, worker, run) == [False]
    assert beat(queue_db, worker, run) == [False]


def pages(queue_db: QueueFixture, call: Callable[[], object]) -> int:
    """How many pages of dl_jobs a call reads by this session."""
    count = "SELECT pg_stat_get_xact_blocks_fetched('dl_jobs'::regclass)"
    session = queue_db.session
    session.execute_raw("BEGIN")
    try:
        ((before,),) = session.execute_raw(count)
        call()
        ((after,),) = session.execute_raw(count)
    finally:
        session.execute_raw("COMMIT")
    return int(after - before)


def test_heartbeat_reads_no_old_versions_of_its_rows(queue_db, worker, run):
    """A transaction of hours keeps vacuum from removing them."""
    runs = [RunRef(run.id, run.run_id)]
    values = [(runs[0], {"n": 1})]
    with queue_db.open_transaction() as step:
        step("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        step("SELECT count(*) FROM dl_jobs")
        for n in range(100):
            queue_db.queue.renew([RenewalRequest(run.id, run.run_id, {"n": n, "text": "x" * 500})])
        by_id = pages(queue_db, lambda: JobQueue(queue_db.session).beat(worker, runs))
        assert by_id > 8, "a reader that does not know where the row is reads them"

        assert pages(queue_db, lambda: queue_db.queue.beat(worker, runs)) <= 3
        assert pages(queue_db, lambda: queue_db.queue.save_progress(values)) <= 3


def test_run_that_its_process_gave_up_ends(queue_db, worker, run):
    runs = [RunRef(run.id, run.run_id), RunRef(run.id, uuid4())]
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(run.id))
        assert queue_db.queue.disown(runs) == {run.run_id}, "it waits for no row"
    assert queue_db.queue.disown(runs) == set()

    queue_db.queue.beat(worker, [])

    assert is_expired(queue_db)
    assert reap(queue_db, run)


def test_row_alone_says_so_while_its_owner_renews_it_seldom(queue_db, run):
    """A process of an older version reads dl_is_lease_expired."""
    by_row = "SELECT dl_is_lease_expired(lease_expires_at, heartbeat_at, lease_ttl_sec) FROM dl_jobs"
    queue_db.queue.renew([RenewalRequest(run.id, run.run_id, next_sec=3600)])
    assert queue_db.fetch_row("SELECT round(extract(epoch FROM lease_expires_at - now())) FROM dl_jobs") == 3660

    queue_db.sql("UPDATE dl_jobs SET heartbeat_at = heartbeat_at - interval '1 h'")
    assert queue_db.fetch_row(by_row) is False
    queue_db.sql("UPDATE dl_jobs SET heartbeat_at = heartbeat_at - interval '61 s'")
    assert queue_db.fetch_row(by_row) is True


def test_reaper_that_meets_a_heartbeat_leaves_the_run(queue_db, worker, run, make_old):
    make_old()
    with midway(queue_db) as owner:
        assert owner.beat(worker, [RunRef(run.id, run.run_id)]) == []
        reaping = BackgroundCall(queue_db.new_queue().reap, [(run.id, run.run_id, "k")], pause_sec=0)
        queue_db.wait_for_lock_waiters()

    assert reaping.result() == []
    assert queue_db.settle(run).outcome == "applied"
    queue_db.check_invariants()


def test_heartbeat_that_meets_the_reaper_finds_its_run_gone(queue_db, worker, run, make_old):
    make_old()
    with midway(queue_db) as reaper:
        assert len(reaper.reap([(run.id, run.run_id, "k")], pause_sec=60)) == 1
        beating = BackgroundCall(queue_db.new_queue().beat, worker, [RunRef(run.id, run.run_id)])
        queue_db.wait_for_lock_waiters()

    assert [answer.is_owned for answer in beating.result()] == [False]
    assert queue_db.status(run.id) is Status.QUEUED
    queue_db.check_invariants()


def test_progress_is_appended_and_read_from_its_newest_row(queue_db, run):
    row = queue_db.sql("SELECT xmin::text FROM dl_jobs")
    for n in range(3):
        assert queue_db.queue.save_progress([(RunRef(run.id, run.run_id), {"n": n})]) == {run.run_id}

    assert queue_db.job(run.id).progress == {"n": 2}
    assert queue_db.sql("SELECT xmin::text FROM dl_jobs") == row
    queue_db.queue.renew([RenewalRequest(run.id, run.run_id, {"n": 3})])
    assert queue_db.job(run.id).progress == {"n": 3}
    queue_db.queue.save_progress([(RunRef(run.id, run.run_id), {"n": 4})])
    assert queue_db.job(run.id).progress == {"n": 4}
    queue_db.settle(run, progress={"n": 5})
    assert queue_db.job(run.id).progress == {"n": 5}
    saved = "SELECT progress ->> 'n' FROM dl_progress WHERE job_id = %s ORDER BY progress_id"
    assert queue_db.sql(saved, str(run.id)) == [(n,) for n in "0124"]


def test_reaped_job_keeps_the_last_progress_and_takes_none_of_its_former_run(queue_db, worker, run, make_old):
    queue_db.queue.save_progress([(RunRef(run.id, run.run_id), {"n": 1})])
    make_old()
    assert reap(queue_db, run)
    assert queue_db.job(run.id).progress == {"n": 1}
    assert queue_db.queue.save_progress([(RunRef(run.id, run.run_id), {"n": 2})]) == set()
    queue_db.make_due(run.id)
    queue_db.promote()
    ((second,), _) = queue_db.queue.claim("q", ["t"], new_run_ids(1), "host:1", worker_id=worker)

    queue_db.sql(
        "INSERT INTO dl_progress (job_id, run_id, ts, progress) VALUES (%s, %s, clock_timestamp(), '{\"n\": 9}')",
        str(run.id),
        str(run.run_id),
    )

    assert (second.id, queue_db.job(run.id).progress) == (run.id, {"n": 1})


def test_old_heartbeats_are_deleted(queue_db, worker):
    queue_db.queue.beat(worker, [], rss_bytes=1)
    queue_db.sql("UPDATE dl_heartbeats SET seen_at = seen_at - interval '61 min'")
    queue_db.queue.beat(worker, [], rss_bytes=3)
    queue_db.sql(
        "UPDATE dl_heartbeats SET seen_at = seen_at + interval '1 min' WHERE rss_bytes = 3"
    )  # the clock was ahead
    queue_db.queue.beat(worker, [], rss_bytes=2)

    prune_heartbeats(queue_db.session)

    assert queue_db.sql("SELECT rss_bytes FROM dl_heartbeats") == [(2,)]


def test_functions_find_their_tables_whatever_the_search_path(queue_db, worker, run):
    """A role may have a search_path of its own."""
    calls = (
        "count(*) FROM public.dl_live_workers()",
        f"public.dl_last_beat('{worker}')",
        f"public.dl_lease_end('{worker}', now(), now(), 60)",
        f"public.dl_last_heartbeat('running', '{worker}', now())",
        f"public.dl_current_progress('running', '{run.id}', '{run.run_id}', now(), '{{}}')",
        f"public.dl_progress_changed_at('{run.id}', '{run.run_id}')",
    )
    queue_db.sql("SET search_path TO pg_catalog")
    for call in calls:
        queue_db.sql(f"SELECT {call}")
    queue_db.sql("RESET search_path")
