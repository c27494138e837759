"""Every reason that a job can have for being where it is: over HTTP, by the command, and on the job's page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from psycopg2.errors import DeadlockDetected

from dataloader.app.acts.reasons import ReasonCode
from dataloader.app.cli.command import cli
from dataloader.app.cli.text import format_message
from dataloader.app.features.limits.rows import Limits
from dataloader.app.queue.job import Status
from dataloader.app.queue.queues import QueueState
from dataloader.app.state.queues import Queues
from tests.support import Databases, eventually
from tests.support.api_server import serving
from tests.support.queue_fixture import QueueFixture
from tests.support.reason_cases import CASES, breaker_open, limited, worker


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
