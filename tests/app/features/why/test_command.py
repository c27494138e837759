"""Every reason that a job can have for being where it is: over HTTP, by the command, and on the job's page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.request import urlopen
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner
from psycopg2.errors import DeadlockDetected

from dataloader.app.acts.reasons import ReasonCode
from dataloader.app.cli.command import cli
from dataloader.app.cli.text import format_message
from dataloader.app.features.limits.breakers import Breakers, BreakerState
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.queues.rows import Queues
from dataloader.app.queue.job import ClaimedJob, ReleaseReason, ReleaseRequest, Status
from dataloader.app.queue.queues import QueueState
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.pipelines.effects import STILL_OPEN
from tests.support import Databases, eventually
from tests.support.api_server import serving
from tests.support.queue_fixture import QueueFixture

DOING = '[{"run_id": "%s", "stop_reason": "cancel", "stop_step": "interrupt"}]'


@pytest.fixture(scope="module")
def dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as made:
        yield made


@pytest.fixture(scope="module")
def url(dsn: str) -> Iterator[str]:
    with serving(dsn) as address:
        yield address


@pytest.fixture
def queue_db(dsn: str) -> Iterator[QueueFixture]:
    made = QueueFixture(dsn)
    eventually(lambda: is_emptied(made))
    yield made
    made.close()


def is_emptied(made: QueueFixture) -> bool:
    """False: the service has read tables in another order meanwhile."""
    try:
        made.sql("TRUNCATE dl_jobs, dl_job_events, dl_workers, dl_queues, dl_breakers, dl_limits, dl_schedules CASCADE")
    except DeadlockDetected:
        return False
    return True


def text_of(address: str) -> str:
    with urlopen(address) as response:  # noqa: S310 - an address of our own
        return str(response.read().decode())


def worker(queue_db: QueueFixture, threads: int = 2, tasks: tuple[str, ...] = ("t",)) -> UUID:
    info = WorkerInfo(
        uuid4(), "worker-1", "1", ("q", "r"), tasks, 2 * threads, queue_threads={"q": threads, "r": threads}
    )
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)
    return info.id


def closed(state: QueueState) -> Callable[[QueueFixture], UUID]:
    def make(queue_db: QueueFixture) -> UUID:
        worker(queue_db)
        Queues(queue_db.session).change_settings("q", state=state, changed_by="ann", note="maintenance")
        return queue_db.enqueue()

    return make


def at_limit(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    Queues(queue_db.session).change_settings("q", concurrency=1)
    queue_db.enqueue_and_claim("other")
    return queue_db.enqueue()


def task_unknown(queue_db: QueueFixture) -> UUID:
    worker(queue_db, tasks=("other",))
    return queue_db.enqueue()


def deferred(queue_db: QueueFixture) -> UUID:
    job_id = task_unknown(queue_db)
    queue_db.queue.defer_unknown_tasks("q", ["other"])
    return job_id


def labels_missing(queue_db: QueueFixture) -> UUID:
    job_id = task_unknown(queue_db)
    queue_db.sql('UPDATE dl_workers SET unserved_tasks = \'{"t": {"gpu": true}}\'')
    return job_id


def drained(queue_db: QueueFixture) -> UUID:
    Queues(queue_db.session).drain_worker(worker(queue_db), draining=True)
    return queue_db.enqueue()


def not_due(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    return queue_db.enqueue(available_at=datetime.now(UTC) + timedelta(hours=1))


def key_busy(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    queue_db.enqueue_and_claim("k")
    job_id = queue_db.enqueue("k")
    queue_db.claim_once()
    return job_id


def key_freed(queue_db: QueueFixture) -> UUID:
    job_id = key_busy(queue_db)
    queue_db.sql(
        "UPDATE dl_jobs SET status = 'canceled', finished_at = now(), lease_expires_at = NULL WHERE status = 'running'"
    )
    return job_id


def key_locked(queue_db: QueueFixture) -> UUID:
    job_id = key_freed(queue_db)
    queue_db.sql("SELECT pg_advisory_lock(hashtext('k'))")  # until the session is closed
    return job_id


def limited(**setting: Any) -> Callable[[QueueFixture], UUID]:
    def make(queue_db: QueueFixture) -> UUID:
        worker(queue_db)
        Limits(queue_db.session).set("warehouse", **setting)
        queue_db.enqueue("first", limits={"warehouse": 1})
        job_id = queue_db.enqueue("second", limits={"warehouse": 1})
        queue_db.claim_once(2)
        return job_id

    make.__name__ = "limited"
    return make


def waiting_for_jobs(queue_db: QueueFixture) -> UUID:
    parent = queue_db.enqueue("parent")
    return queue_db.enqueue("child", after=[{"job_id": str(parent)}])


def waiting_for_engine(queue_db: QueueFixture) -> UUID:
    run = queue_db.enqueue_and_claim()
    queue_db.sql(
        "INSERT INTO dl_offloads (name, job_id, run_id, call, number, engine, fingerprint, fence_token)"
        " VALUES ('dl-1', %s, %s, '1', 1, 'ray', 'f', 't')",
        run.id_text,
        run.run_text,
    )
    queue_db.queue.release([ReleaseRequest(run, ReleaseReason.WAITS, offloads=("dl-1",))])
    return run.id


def skipped(queue_db: QueueFixture) -> UUID:
    job_id = waiting_for_jobs(queue_db)
    (run,) = queue_db.claim()
    queue_db.settle(run, Status.FAILED)
    return job_id


def per_worker(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    Queues(queue_db.session).change_settings("q", per_worker=1)
    queue_db.enqueue_and_claim("other")
    return queue_db.enqueue()


def threads_busy(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    for key in "ab":
        queue_db.enqueue_and_claim(key)
    return queue_db.enqueue()


def breaker_open(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    Breakers(queue_db.session).set("t", failures=1)
    queue_db.settle(queue_db.enqueue_and_claim("first"), Status.FAILED)
    job_id = queue_db.enqueue()
    queue_db.claim()
    return job_id


def task_paused(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    Breakers(queue_db.session).set("t", state=BreakerState.OPEN, reason="moving")
    job_id = queue_db.enqueue()
    queue_db.claim()
    return job_id


def target_busy(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    run = queue_db.enqueue_and_claim()
    claim_target(queue_db, run)
    queue_db.settle(run, Status.QUEUED, error=f"{STILL_OPEN} 'warehouse'", retry_in_sec=30)
    return run.id


def target_not_fenced(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    run = queue_db.enqueue_and_claim()
    claim_target(queue_db, run, "it has no table dl_effects")
    return run.id


def claim_target(queue_db: QueueFixture, run: ClaimedJob, problem: str | None = None) -> None:
    queue_db.sql("SELECT dl_draw_fence(%s::uuid, %s::uuid, 'warehouse', %s)", str(run.id), str(run.run_id), problem)


def tenants_in_turn(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    Queues(queue_db.session).change_settings("q", fair="args.tenant")
    queue_db.enqueue("first", args={"tenant": "a"})
    return queue_db.enqueue(args={"tenant": "a"})


def memory_high(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    queue_db.enqueue_and_claim("other")
    queue_db.sql("UPDATE dl_workers SET running_attempts = '[{\"memory_high\": true}]'")
    return queue_db.enqueue()


def jobs_ahead(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    queue_db.enqueue("first")
    return queue_db.enqueue()


def next_one(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    return queue_db.enqueue()


def running(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    return queue_db.enqueue_and_claim().id


def expired(queue_db: QueueFixture) -> UUID:
    job_id = running(queue_db)
    queue_db.expire_lease(job_id)
    return job_id


def stopping(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    run = queue_db.enqueue_and_claim()
    queue_db.queue.cancel(run.id)
    queue_db.save_progress(run, {"processed": 3}, age_sec=4000)
    queue_db.sql("UPDATE dl_workers SET running_attempts = %s", DOING % run.run_id)
    return run.id


def old_progress(queue_db: QueueFixture) -> UUID:
    job_id = stopping(queue_db)
    queue_db.sql("UPDATE dl_workers SET running_attempts = jsonb_set(running_attempts, '{0,stop_reason}', 'null')")
    queue_db.sql("UPDATE dl_jobs SET cancel_requested = false")
    return job_id


def ended(status: Status) -> Callable[[QueueFixture], UUID]:
    def make(queue_db: QueueFixture) -> UUID:
        run = queue_db.enqueue_and_claim(max_attempts=1)
        queue_db.settle(run, status)
        return run.id

    return make


def lost(queue_db: QueueFixture) -> UUID:
    run = queue_db.enqueue_and_claim(max_attempts=1)
    queue_db.lose_attempt(run)
    return run.id


CASES: list[tuple[ReasonCode, Callable[[QueueFixture], UUID]]] = [
    (ReasonCode.QUEUE_PAUSED, closed(QueueState.PAUSED)),
    (ReasonCode.QUEUE_DRAINING, closed(QueueState.DRAINING)),
    (ReasonCode.QUEUE_AT_LIMIT, at_limit),
    (ReasonCode.NO_WORKER, lambda queue_db: queue_db.enqueue()),
    (ReasonCode.TASK_UNKNOWN, task_unknown),
    (ReasonCode.TASK_UNKNOWN, deferred),
    (ReasonCode.LABELS_MISSING, labels_missing),
    (ReasonCode.WORKERS_DRAINING, drained),
    (ReasonCode.NOT_DUE, not_due),
    (ReasonCode.KEY_BUSY, key_busy),
    (ReasonCode.KEY_FREED, key_freed),
    (ReasonCode.KEY_LOCKED_ELSEWHERE, key_locked),
    (ReasonCode.LIMIT_FULL, limited(concurrency=1)),
    (ReasonCode.LIMIT_CLOSED, limited(concurrency=0)),
    (ReasonCode.RATE_LIMITED, limited(rate=1, per_sec=3600)),
    (ReasonCode.BREAKER_OPEN, breaker_open),
    (ReasonCode.TASK_PAUSED, task_paused),
    (ReasonCode.TENANTS_IN_TURN, tenants_in_turn),
    (ReasonCode.MEMORY_HIGH, memory_high),
    (ReasonCode.WAITS_FOR_JOBS, waiting_for_jobs),
    (ReasonCode.WAITS_FOR_ENGINE, waiting_for_engine),
    (ReasonCode.TARGET_BUSY, target_busy),
    (ReasonCode.TARGET_NOT_FENCED, target_not_fenced),
    (ReasonCode.SKIPPED, skipped),
    (ReasonCode.PER_WORKER_LIMIT, per_worker),
    (ReasonCode.THREADS_BUSY, threads_busy),
    (ReasonCode.JOBS_AHEAD, jobs_ahead),
    (ReasonCode.NEXT, next_one),
    (ReasonCode.LEASE_EXPIRED, expired),
    (ReasonCode.WORKER_SILENT, lambda queue_db: queue_db.enqueue_and_claim().id),
    (ReasonCode.STOP_NOT_OBEYED, stopping),
    (ReasonCode.PROGRESS_OLD, old_progress),
    (ReasonCode.RUNNING, running),
    *((ReasonCode(status), ended(status)) for status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)),
    (ReasonCode.LOST, lost),
]


OF_TASKS = (
    ReasonCode.SCHEDULE_PAUSED,
    ReasonCode.SCHEDULE_ORPHANED,
    ReasonCode.SCHEDULE_STOPPED,
    ReasonCode.SCHEDULE_NEXT,
    ReasonCode.BACKFILL_PAUSED,
)


def test_every_reason_code_has_a_case():
    assert {code for code, _ in CASES} | {*OF_TASKS} == {*ReasonCode}


def test_what_keeps_jobs_of_a_task_is_given_over_http_and_by_command(queue_db, url):
    add = "INSERT INTO dl_schedules (name, source, task, overrides, next_at, paused_at, paused_by, paused_reason,"
    add += " orphaned_at, error)"
    queue_db.sql(
        f"{add} VALUES ('six', 'people', 'load', '{{}}', now(), now(), 'ann', 'the source moves', NULL, NULL),"
        " ('gone', 'code', 'load', '{}', now(), NULL, NULL, NULL, now(), NULL),"
        " ('wrong', 'people', 'load', '{}', NULL, NULL, NULL, NULL, NULL, 'zone: Mars'),"
        " ('fine', 'people', 'load', '{}', now(), NULL, NULL, NULL, NULL, NULL),"
        " ('by data', 'people', 'load', '{\"after\": [\"sales\"]}', NULL, NULL, NULL, NULL, NULL, NULL),"
        " ('of another', 'people', 'other', '{}', now(), now(), NULL, NULL, NULL, NULL)"
    )
    queue_db.sql(
        "INSERT INTO dl_backfills (task, queue, slices, mode, newest_first, concurrency, template, state, reason,"
        " total) VALUES ('load', 'q', '{}', 'all', true, 1, '{}', 'paused', '3 slices failed in a row', 9)"
    )

    reasons = json.loads(text_of(f"{url}/api/v1/tasks/load/why"))["reasons"]
    output = CliRunner().invoke(cli, ["why", "load", "--url", url]).output

    assert {reason["code"] for reason in reasons} == {*OF_TASKS, "task_unknown", "no_worker"}
    assert [reason["code"] for reason in reasons][-2:] == ["schedule_next"] * 2
    assert "The schedule 'six' has been paused since" in output
    assert "by ann: the source moves" in output
    assert "3 slices failed in a row" in output
    assert "a job when these datasets are updated: sales" in output
    assert all(format_message(reason["message"]) in output for reason in reasons)
    assert "of another" not in output


def test_task_without_a_queue_has_the_default_one(queue_db, url):
    worker(queue_db, tasks=("extract",))

    before = json.loads(text_of(f"{url}/api/v1/tasks/extract/why"))["reasons"]
    queue_db.enqueue("first", task="extract")
    after = json.loads(text_of(f"{url}/api/v1/tasks/extract/why"))["reasons"]

    assert [(reason["code"], reason["details"]["queue"]) for reason in before] == [("no_worker", "etl.default")]
    assert after == []


def test_closed_queue_limit_and_breaker_hold_up_task_and_queue(queue_db, url):
    worker(queue_db)
    Queues(queue_db.session).change_settings("q", state=QueueState.PAUSED, changed_by="ann", note="maintenance")
    Limits(queue_db.session).set("warehouse", concurrency=0, changed_by="bob")
    queue_db.enqueue("first", limits={"warehouse": 1})
    queue_db.enqueue("second")
    queue_db.sql("UPDATE dl_jobs SET wait_state = 'limited', waits_on = 'warehouse' WHERE lock_key = 'first'")
    queue_db.sql(
        "INSERT INTO dl_schedules (name, source, task, overrides, next_at)"
        " VALUES ('six', 'people', 't', '{\"queue\": \"away\"}', now())"
    )

    task = json.loads(text_of(f"{url}/api/v1/tasks/t/why"))["reasons"]
    queue = json.loads(text_of(f"{url}/api/v1/queues/q/why"))["reasons"]
    output = CliRunner().invoke(cli, ["why", "q", "--url", url]).output

    assert [reason["code"] for reason in task] == ["no_worker", "queue_paused", "limit_closed", "schedule_next"]
    assert [reason["code"] for reason in queue] == ["queue_paused", "limit_closed"]
    assert output.splitlines() == [format_message(reason["message"]) for reason in queue]
    assert "paused since" in output
    assert "by ann: maintenance" in output


def test_queue_without_thread_worker_or_reason_is_explained(queue_db, url):
    def explained(queue: str = "q") -> list[str]:
        return [reason["code"] for reason in json.loads(text_of(f"{url}/api/v1/queues/{queue}/why"))["reasons"]]

    queue_db.enqueue("first", task="strange")
    without_worker = explained()
    worker_id = worker(queue_db, threads=1)
    queue_db.queue.defer_unknown_tasks("q", ["t"])
    deferred = explained()
    queue_db.enqueue_and_claim("second")
    queue_db.enqueue("third")
    busy = explained()
    Queues(queue_db.session).drain_worker(worker_id, draining=True)

    assert (without_worker, deferred) == (["no_worker"], ["task_unknown"])
    assert busy == ["threads_busy", "task_unknown"]
    assert explained() == ["workers_draining", "task_unknown"]
    assert explained("r") == ["workers_draining"]
    Queues(queue_db.session).drain_worker(worker_id, draining=False)
    assert "Nothing holds up the queue r." in CliRunner().invoke(cli, ["why", "r", "--url", url]).output


def test_open_breaker_and_full_limit_hold_up_their_queue(queue_db, url):
    def explained() -> set[str]:
        return {reason["code"] for reason in json.loads(text_of(f"{url}/api/v1/queues/q/why"))["reasons"]}

    breaker_open(queue_db)
    while_open = explained()
    queue_db.sql("TRUNCATE dl_jobs CASCADE; DELETE FROM dl_breakers")
    limited(concurrency=1)(queue_db)

    assert (while_open, explained()) == ({"breaker_open"}, {"limit_full"})


@pytest.mark.parametrize(("code", "make"), CASES, ids=[f"{code}-{make.__name__}" for code, make in CASES])
def test_reason_is_given_over_http_by_command_and_on_page(queue_db, url, code, make):
    job_id = make(queue_db)

    reason = json.loads(text_of(f"{url}/api/v1/jobs/{job_id}/why"))["reasons"][0]
    command = CliRunner().invoke(cli, ["why", str(job_id), "--url", url])
    page = html.unescape(text_of(f"{url}/jobs/{job_id}"))

    assert reason["code"] == code
    assert command.exit_code == 0, command.output
    begins = re.split(r"\d", reason["message"])[0]  # what follows are times and ages
    assert len(begins) > 3
    assert begins in command.output
    has_ended = code in {status.value for status in Status if status.final}
    assert (f'<span class="st {code} pill" id="state">' if has_ended else begins) in page  # its head says how it ended
