"""Every reason that a job can have for being where it is: over HTTP, by the command, and on the job's page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from urllib.request import urlopen
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner

from app.admin.explain import ReasonCode
from app.admin.queues import Queues, QueueState
from app.cli.command import cli
from app.queue.job import Status
from app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support import Databases
from tests.support.api_server import serving
from tests.support.queue_fixture import QueueFixture

DOING = '[{"run_id": "%s", "progress_age_sec": 4000, "stop_reason": "cancel", "stop_step": "interrupt"}]'


@pytest.fixture(scope="module")
def dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as made:
        yield made


@pytest.fixture(scope="module")
def url(dsn: str) -> Iterator[str]:
    with serving(dsn) as address:
        yield address


@pytest.fixture
def desk(dsn: str) -> Iterator[QueueFixture]:
    made = QueueFixture(dsn)
    made.sql("TRUNCATE dl_jobs, dl_job_events, dl_workers, dl_queues")
    yield made
    made.close()


def text_of(address: str) -> str:
    with urlopen(address) as response:  # noqa: S310 - an address of our own
        return str(response.read().decode())


def worker(desk: QueueFixture, threads: int = 2, tasks: tuple[str, ...] = ("t",)) -> UUID:
    info = WorkerInfo(
        uuid4(), "worker-1", "1", ("q", "r"), tasks, 2 * threads, queue_threads={"q": threads, "r": threads}
    )
    WorkerLiveness(desk.session).beat(info, heartbeat_sec=60)
    return info.id


def closed(state: QueueState) -> Callable[[QueueFixture], UUID]:
    def make(desk: QueueFixture) -> UUID:
        worker(desk)
        Queues(desk.session).change_settings("q", state=state, changed_by="ann", note="maintenance")
        return desk.enqueue()

    return make


def at_limit(desk: QueueFixture) -> UUID:
    worker(desk)
    Queues(desk.session).change_settings("q", concurrency=1)
    desk.enqueue_and_claim("other")
    return desk.enqueue()


def task_unknown(desk: QueueFixture) -> UUID:
    worker(desk, tasks=("other",))
    return desk.enqueue()


def deferred(desk: QueueFixture) -> UUID:
    job_id = task_unknown(desk)
    desk.queue.defer_unknown_tasks("q", ["other"])
    return job_id


def drained(desk: QueueFixture) -> UUID:
    Queues(desk.session).drain_worker(worker(desk), draining=True)
    return desk.enqueue()


def not_due(desk: QueueFixture) -> UUID:
    worker(desk)
    return desk.enqueue(available_at=datetime.now(UTC) + timedelta(hours=1))


def key_busy(desk: QueueFixture) -> UUID:
    worker(desk)
    desk.enqueue_and_claim("k")
    job_id = desk.enqueue("k")
    desk.claim_once()
    return job_id


def key_freed(desk: QueueFixture) -> UUID:
    job_id = key_busy(desk)
    desk.sql(
        "UPDATE dl_jobs SET status = 'canceled', finished_at = now(), lease_expires_at = NULL WHERE status = 'running'"
    )
    return job_id


def key_locked(desk: QueueFixture) -> UUID:
    job_id = key_freed(desk)
    desk.sql("SELECT pg_advisory_lock(hashtext('k'))")  # until the desk is closed
    return job_id


def per_worker(desk: QueueFixture) -> UUID:
    worker(desk)
    Queues(desk.session).change_settings("q", per_worker=1)
    desk.enqueue_and_claim("other")
    return desk.enqueue()


def threads_busy(desk: QueueFixture) -> UUID:
    worker(desk)
    for key in "ab":
        desk.enqueue_and_claim(key)
    return desk.enqueue()


def jobs_ahead(desk: QueueFixture) -> UUID:
    worker(desk)
    desk.enqueue("first")
    return desk.enqueue()


def next_one(desk: QueueFixture) -> UUID:
    worker(desk)
    return desk.enqueue()


def running(desk: QueueFixture) -> UUID:
    worker(desk)
    return desk.enqueue_and_claim().id


def expired(desk: QueueFixture) -> UUID:
    job_id = running(desk)
    desk.expire_lease(job_id)
    return job_id


def stopping(desk: QueueFixture) -> UUID:
    worker(desk)
    run = desk.enqueue_and_claim()
    desk.queue.cancel(run.id)
    desk.sql("UPDATE dl_jobs SET progress = '{\"processed\": 3}'")
    desk.sql("UPDATE dl_workers SET running_attempts = %s", DOING % run.run_id)
    return run.id


def old_progress(desk: QueueFixture) -> UUID:
    job_id = stopping(desk)
    desk.sql("UPDATE dl_workers SET running_attempts = jsonb_set(running_attempts, '{0,stop_reason}', 'null')")
    desk.sql("UPDATE dl_jobs SET cancel_requested = false")
    return job_id


def ended(status: Status) -> Callable[[QueueFixture], UUID]:
    def make(desk: QueueFixture) -> UUID:
        run = desk.enqueue_and_claim(max_attempts=1)
        desk.settle(run, status)
        return run.id

    return make


def lost(desk: QueueFixture) -> UUID:
    run = desk.enqueue_and_claim(max_attempts=1)
    desk.lose_attempt(run)
    return run.id


CASES: list[tuple[ReasonCode, Callable[[QueueFixture], UUID]]] = [
    (ReasonCode.QUEUE_PAUSED, closed(QueueState.PAUSED)),
    (ReasonCode.QUEUE_DRAINING, closed(QueueState.DRAINING)),
    (ReasonCode.QUEUE_AT_LIMIT, at_limit),
    (ReasonCode.NO_WORKER, lambda desk: desk.enqueue()),
    (ReasonCode.TASK_UNKNOWN, task_unknown),
    (ReasonCode.TASK_UNKNOWN, deferred),
    (ReasonCode.WORKERS_DRAINING, drained),
    (ReasonCode.NOT_DUE, not_due),
    (ReasonCode.KEY_BUSY, key_busy),
    (ReasonCode.KEY_FREED, key_freed),
    (ReasonCode.KEY_LOCKED_ELSEWHERE, key_locked),
    (ReasonCode.PER_WORKER_LIMIT, per_worker),
    (ReasonCode.THREADS_BUSY, threads_busy),
    (ReasonCode.JOBS_AHEAD, jobs_ahead),
    (ReasonCode.NEXT, next_one),
    (ReasonCode.LEASE_EXPIRED, expired),
    (ReasonCode.WORKER_SILENT, lambda desk: desk.enqueue_and_claim().id),
    (ReasonCode.STOP_NOT_OBEYED, stopping),
    (ReasonCode.PROGRESS_OLD, old_progress),
    (ReasonCode.RUNNING, running),
    *((ReasonCode(status), ended(status)) for status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)),
    (ReasonCode.LOST, lost),
]


def test_every_reason_code_has_a_case():
    assert {code for code, _ in CASES} == {*ReasonCode}


@pytest.mark.parametrize(("code", "make"), CASES, ids=[f"{code}-{make.__name__}" for code, make in CASES])
def test_reason_is_given_over_http_by_command_and_on_page(desk, url, code, make):
    job_id = make(desk)

    reason = json.loads(text_of(f"{url}/api/v1/jobs/{job_id}/why"))["reasons"][0]
    command = CliRunner().invoke(cli, ["why", str(job_id), "--url", url])
    page = html.unescape(text_of(f"{url}/jobs/{job_id}"))

    assert reason["code"] == code
    assert command.exit_code == 0, command.output
    begins = re.split(r"\d", reason["message"])[0]  # what follows are times and ages
    assert len(begins) > 3
    assert begins in command.output
    assert begins in page
