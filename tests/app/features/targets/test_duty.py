"""Rows in targets are deleted when no attempt needs them any more."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg2
import pytest

from dataloader.app.features.targets import duty as duty_module
from dataloader.app.features.targets.duty import TargetRowsDuty, create_duties
from dataloader.app.features.targets.rows import TargetRows
from dataloader.app.features.targets.server_rows import delete_rows
from dataloader.app.features.targets.servers import TargetServers
from dataloader.app.queue.job import Status
from dataloader.pipelines import effects
from tests.support import free_port
from tests.support.databases import execute_sql
from tests.support.duties import duty_context
from tests.support.target_fixture import TARGET, TargetFixture, write_part
from tests.support.waiting import eventually

HOSTILE = 'it\'s "a" {target} %s'


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO)
    return lambda event: [r.__dict__["fields"] for r in caplog.records if r.getMessage() == event]


def load_part(args: Any, ctx: Any) -> None:
    with ctx.transaction() as connection:
        write_part(connection, "a", ctx)
        ctx.checkpoint(1)


def make_duty(target: TargetFixture) -> TargetRowsDuty:
    return TargetRowsDuty(TargetRows(target.queue_db.session), TargetServers(target.targets))


def run_once(duty: TargetRowsDuty) -> float | None:
    """Do all slices of one run; return when the next one begins."""
    pauses: list[float | None] = []

    def has_ended() -> bool:
        pauses.append(duty.run())
        return pauses[-1] is None or pauses[-1] > 1

    eventually(has_ended, 30, interval_sec=0.001)
    return pauses[-1]


def end_jobs(target: TargetFixture, *job_ids: UUID, days: float = 2, status: str = "") -> None:
    """As if they had ended so many days ago."""
    target.queue_db.sql(
        "UPDATE dl_jobs SET finished_at = now() - make_interval(secs => %s), status = coalesce(nullif(%s, ''),"
        " status::text)::dl_status WHERE job_id = ANY (%s::uuid[])",
        days * 86_400, status, [*map(str, job_ids)],
    )  # fmt: skip
    age_claims(target, days)


def age_claims(target: TargetFixture, days: float) -> None:
    target.queue_db.sql("UPDATE dl_job_targets SET claimed_at = now() - make_interval(secs => %s)", days * 86_400)


def rows_there(target: TargetFixture) -> set[str]:
    return {job_id for (job_id,) in target.sql("SELECT job_id::text FROM dl_effects")}


def deleted_jobs(target: TargetFixture) -> set[str]:
    rows = target.queue_db.sql("SELECT job_id::text FROM dl_job_targets WHERE deleted_at IS NOT NULL")
    return {job_id for (job_id,) in rows}


def run_jobs(target: TargetFixture, count: int, **options: Any) -> list[UUID]:
    job_ids = []
    for _ in range(count):
        job_ids.append(target.enqueue())
        target.run(load_part, **options)
    return job_ids


def fill(target: TargetFixture, job_ids: Iterable[UUID], name: str = TARGET, *, age_days: float = 2) -> None:
    """Rows of jobs that were deleted, in the queue and in the target."""
    ids = [*map(str, job_ids)]
    target.sql(effects.CREATE_TABLE)
    target.sql("INSERT INTO dl_effects (job_id, fence, run_id) SELECT id, 1, id FROM unnest(%s::uuid[]) AS u (id)", ids)
    target.queue_db.sql(
        "INSERT INTO dl_job_targets (job_id, target, run_id, fence, claimed_at)"
        " SELECT id, %s, id, 1, now() - make_interval(secs => %s) FROM unnest(%s::uuid[]) AS u (id)",
        name, age_days * 86_400, ids,
    )  # fmt: skip


def test_row_is_deleted_a_day_after_its_job_succeeded(target: TargetFixture, logged: Any):
    old, young = run_jobs(target, 2)
    end_jobs(target, old, young)
    end_jobs(target, young, days=0.9)
    age_claims(target, 2)

    assert run_once(make_duty(target)) is None

    assert rows_there(target) == {str(young)}
    assert deleted_jobs(target) == {str(old)}
    assert logged("target_rows.deleted") == [{"targets": {TARGET: 1}}]


@pytest.mark.parametrize("status", ["failed", "canceled", "lost"])
def test_row_of_a_job_that_may_be_retried_is_kept_as_long_as_the_job(target: TargetFixture, status: str):
    (job_id,) = run_jobs(target, 1)
    end_jobs(target, job_id, days=30, status=status)
    duty = make_duty(target)

    run_once(duty)
    assert rows_there(target) == {str(job_id)}
    target.queue_db.sql("DELETE FROM dl_jobs")
    run_once(duty)

    assert rows_there(target) == set()
    assert target.queue_db.sql("SELECT count(*) FROM dl_job_targets") == [(0,)]


def test_retry_after_long_resumes_where_the_failed_attempt_was(target: TargetFixture):
    job_id, resumed = target.enqueue(max_attempts=1), []

    def load(args: Any, ctx: Any) -> None:
        resumed.append(ctx.resume)
        load_part(args, ctx)
        raise ValueError

    target.run(load)
    assert target.queue_db.job(job_id).status is Status.FAILED
    end_jobs(target, job_id, days=10)
    target.queue_db.sql("UPDATE dl_jobs SET checkpoint = NULL")  # what the queue has is a copy, and may be behind
    run_once(make_duty(target))
    target.queue_db.queue.retry(job_id)

    target.run()

    assert resumed == [None, 1]


def test_row_of_a_running_or_waiting_job_is_kept(target: TargetFixture):
    (waiting,) = run_jobs(target, 1, settle=False)
    age_claims(target, 90)

    run_once(make_duty(target))

    assert rows_there(target) == {str(waiting)}


def test_row_that_another_attempt_has_claimed_is_kept(target: TargetFixture):
    """A retry by hand may claim the row between the scan and the deletion."""
    (job_id,) = run_jobs(target, 1)
    end_jobs(target, job_id)
    rows = TargetRows(target.queue_db.session)
    (scanned,) = rows.scan(None, limit=10)
    target.sql("UPDATE dl_effects SET fence = fence + 1")
    target.queue_db.sql("UPDATE dl_job_targets SET fence = fence + 1")
    delete = partial(delete_rows, target=TARGET, fences={job_id: scanned.fence}, timeout_sec=5)
    inquiry = TargetServers(target.targets).start(TARGET, delete)
    inquiry.done.wait(10)

    assert inquiry.answer.value == []
    rows.mark_deleted(TARGET, {job_id: scanned.fence})
    assert (rows_there(target), deleted_jobs(target)) == ({str(job_id)}, set())


def test_row_that_is_locked_is_left_for_the_next_run(target: TargetFixture):
    held, free = run_jobs(target, 2)
    end_jobs(target, held, free)
    duty = make_duty(target)

    with target.open_transaction() as step:
        step("SELECT 1 FROM dl_effects WHERE job_id = %s FOR UPDATE", str(held))
        run_once(duty)
        assert (rows_there(target), deleted_jobs(target)) == ({str(held)}, {str(free)})
    run_once(duty)

    assert rows_there(target) == set()


def test_target_that_is_away_is_logged_once_and_tried_again(
    target: TargetFixture, logged: Any, monkeypatch: pytest.MonkeyPatch
):
    (job_id,) = run_jobs(target, 1)
    end_jobs(target, job_id)
    target.targets["other"] = target.dsn
    fill_ids = [uuid4() for _ in range(3)]
    fill(target, fill_ids, "other")
    there, target.targets[TARGET] = target.targets[TARGET], f"host=127.0.0.1 port={free_port()}"
    monkeypatch.setattr(TargetServers, "dsn_of", lambda servers, name: target.targets.get(name))
    duty = make_duty(target)
    for _ in range(2):
        assert run_once(duty) is None

    assert rows_there(target) == {str(job_id)}, "the other target's are deleted"
    (line,) = logged("target_rows.not_deleted")
    assert (line["target"], line["error"]) == (TARGET, "Connection refused")
    target.targets[TARGET] = there
    run_once(duty)
    assert rows_there(target) == set()
    assert [line["target"] for line in logged("target_rows.recovered")] == [TARGET]


def test_role_that_may_not_delete_is_logged(target: TargetFixture, other_role: str, logged: Any):
    (job_id,) = run_jobs(target, 1)
    end_jobs(target, job_id)
    execute_sql(target.dsn, "GRANT SELECT, INSERT, UPDATE ON dl_effects TO PUBLIC")
    target.targets[TARGET] = other_role

    run_once(make_duty(target))

    (line,) = logged("target_rows.not_deleted")
    assert "permission denied for table dl_effects" in line["error"]
    assert deleted_jobs(target) == set()


def test_targets_that_the_settings_do_not_name_are_left(target: TargetFixture):
    (job_id,) = run_jobs(target, 1)
    end_jobs(target, job_id)
    target.targets = {"another": target.dsn}

    run_once(make_duty(target))

    assert (rows_there(target), deleted_jobs(target)) == ({str(job_id)}, set())


def test_target_without_the_table_has_nothing_to_delete(target: TargetFixture, other_role: str):
    execute_sql(target.dsn, "GRANT ALL ON parts TO PUBLIC")
    target.targets[TARGET] = other_role
    (job_id,) = run_jobs(target, 1)
    end_jobs(target, job_id)

    run_once(make_duty(target))

    assert deleted_jobs(target) == {str(job_id)}


def test_rows_of_a_target_of_a_hostile_name_are_deleted(target: TargetFixture):
    target.targets = {HOSTILE: target.dsn}
    job_id = target.enqueue()
    target.run(load_part, target=HOSTILE)
    end_jobs(target, job_id)

    run_once(make_duty(target))

    assert (rows_there(target), deleted_jobs(target)) == (set(), {str(job_id)})


def test_a_run_is_bounded_and_the_next_one_comes_sooner(target: TargetFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(duty_module, "PRUNE_BATCH", 10)
    monkeypatch.setattr(duty_module, "_MAX_ROWS_PER_RUN", 30)
    fill(target, [uuid4() for _ in range(75)])
    duty = make_duty(target)

    left = []
    for _ in range(3):
        pause = run_once(duty)
        left.append((len(rows_there(target)), pause))

    assert left == [(45, 600.0), (15, 600.0), (0, None)]


def test_a_slow_target_is_left_for_the_next_run(target: TargetFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(duty_module, "PRUNE_BATCH", 10)
    monkeypatch.setattr(duty_module, "_MAX_SEC_PER_TARGET", 0.0)
    fill(target, [uuid4() for _ in range(25)])

    assert run_once(make_duty(target)) == 600.0
    assert len(rows_there(target)) == 15


def test_scan_continues_behind_rows_that_are_kept(target: TargetFixture, monkeypatch: pytest.MonkeyPatch):
    """All were claimed at one time."""
    monkeypatch.setattr(duty_module, "PRUNE_BATCH", 7)
    gone = [uuid4() for _ in range(20)]
    fill(target, gone)
    kept = [target.queue_db.enqueue(f"k{n}") for n in range(30)]
    fill(target, kept)
    same_time = datetime.now().astimezone() - timedelta(days=2)
    target.queue_db.sql("UPDATE dl_job_targets SET claimed_at = %s", same_time)

    run_once(make_duty(target))

    assert rows_there(target) == {*map(str, kept)}
    assert target.queue_db.sql("SELECT count(*) FROM dl_job_targets") == [(30,)]


def test_duty_of_the_maintenance_leader_has_the_targets_of_the_settings(target: TargetFixture):
    (duty,) = create_duties(duty_context(target.queue_db.session, features={"targets": TargetServers(target.targets)}))
    (job_id,) = run_jobs(target, 1)
    end_jobs(target, job_id)

    eventually(lambda: duty.run() is None, 30, interval_sec=0.001)

    assert (duty.name, duty.interval_sec) == ("target-rows", 3600.0)
    assert rows_there(target) == set()


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scan_reads_a_bounded_number_of_rows_among_many(target: TargetFixture):
    """A hundred thousand rows of running jobs: each batch reads its own."""
    target.queue_db.sql("ALTER TABLE dl_jobs DISABLE TRIGGER USER")
    target.queue_db.sql(
        "INSERT INTO dl_jobs (job_id, queue, task, lock_key, status, lease_expires_at)"
        " SELECT md5(n::text)::uuid, 'q', 't', n::text, 'running', now() FROM generate_series(1, 100000) n"
    )
    target.queue_db.sql("ALTER TABLE dl_jobs ENABLE TRIGGER USER")
    target.queue_db.sql(
        "INSERT INTO dl_job_targets (job_id, target, run_id, fence, claimed_at) SELECT job_id, 'w', job_id, 1,"
        " now() - interval '3 days' + n * interval '1 ms' FROM (SELECT job_id, row_number() OVER () n FROM dl_jobs) j"
    )
    target.queue_db.sql("ANALYZE dl_jobs, dl_job_targets")
    rows = TargetRows(target.queue_db.session)
    last, count, reads = None, 0, []
    for _ in range(5):
        before = buffers_hit(target)
        batch = rows.scan(last, limit=1000)
        last, count = batch[-1], count + len(batch)
        reads.append(buffers_hit(target) - before)

    assert count == 5000
    assert max(reads) < 6_000, "buffers of a thousand rows and their jobs"
    before = buffers_hit(target)
    assert rows.prune(None, limit=1000) is not None
    assert buffers_hit(target) - before < 6_000


def buffers_hit(target: TargetFixture) -> int:
    """Blocks that the session of the duty has read so far."""
    session = target.queue_db.session
    session.execute_raw("SELECT pg_stat_force_next_flush()")
    ((count,),) = session.execute_raw(
        "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint FROM pg_statio_user_tables"
        " WHERE relname IN ('dl_jobs', 'dl_job_targets')"
    )
    return int(count)


def test_connection_of_a_batch_is_closed(target: TargetFixture):
    (job_id,) = run_jobs(target, 1)
    end_jobs(target, job_id)

    run_once(make_duty(target))

    with psycopg2.connect(target.dsn) as connection, connection.cursor() as cursor:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dataloader-targets'"

        def is_closed() -> bool:
            cursor.execute(query)
            return cursor.fetchone() == (0,)

        eventually(is_closed)
