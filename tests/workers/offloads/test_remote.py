"""What remote code does: its fence, its progress and result, its stop."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.features.offload.rows import NewOffload, Offloads
from dataloader.pipelines import remote
from dataloader.pipelines.offload import ResultTooLarge
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def queue(dsn: str):
    made = QueueFixture(dsn)
    made.sql("CREATE TABLE sales (n int)")
    yield made
    made.sql("DROP TABLE sales")
    made.close()


def submitted(queue: QueueFixture) -> dict[str, str]:
    """The variables of an offload of a running job."""
    job = queue.enqueue_and_claim()
    name = f"dl-{job.id}-1"
    Offloads(queue.session.execute).intend(
        NewOffload(
            name=name, job_id=job.id, run_id=job.run_id, call="1", number=1, engine="fake", address="", fingerprint="f",
            fence_token="t", timeout_sec=None, engine_timeout_sec=900, grace_sec=30, stop_on_shutdown=False,
            is_abandoned=False,
        )
    )  # fmt: skip
    return {"DL_JOB_ID": str(job.id), "DL_RUN_ID": str(job.run_id), "DL_OFFLOAD": name, "DL_FENCE_TOKEN": "t"}


def write(queue: QueueFixture, variables: dict[str, str]) -> None:
    dsn = make_dsn(queue.dsn, options="-c default_transaction_isolation=serializable")
    with remote.running(variables), remote.fence(dsn) as connection:
        connection.cursor().execute("INSERT INTO sales VALUES (1)")
        queue.sql("UPDATE dl_jobs SET heartbeat_at = clock_timestamp()")  # as its worker does


def sales(queue: QueueFixture) -> int:
    return int(queue.fetch_row("SELECT count(*) FROM sales"))


def test_fence_commits_while_the_job_wants_the_work(queue: QueueFixture):
    variables = submitted(queue)

    write(queue, variables)
    queue.sql("UPDATE dl_jobs SET run_id = %s", str(uuid4()))  # a second attempt waits for the same work
    write(queue, variables)

    assert sales(queue) == 2


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE dl_offloads SET stop_requested_at = now()",
        "UPDATE dl_offloads SET deadline_at = now()",
        "UPDATE dl_offloads SET fence_token = 'another'",
        "UPDATE dl_offloads SET ended_at = now(), outcome = 'stopped'",
        "UPDATE dl_jobs SET cancel_requested = true",
        "UPDATE dl_jobs SET status = 'succeeded', finished_at = now(), lease_expires_at = NULL, worker_id = NULL",
        "DELETE FROM dl_jobs",
    ],
)
def test_fence_refuses_work_that_is_not_wanted(queue: QueueFixture, change: str):
    variables = submitted(queue)
    queue.sql(change)

    with pytest.raises(remote.FenceLost):
        write(queue, variables)

    assert sales(queue) == 0


def test_code_outside_an_offload_has_no_job():
    with pytest.raises(LookupError, match="DL_JOB_ID is not set"):
        remote.current()
    remote.check()


def test_check_raises_when_the_work_is_to_stop():
    answers = iter([False, True])

    with remote.running({}, lambda: next(answers)):
        remote.check()
        with pytest.raises(remote.RemoteStop):
            remote.check()


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (lambda: remote.progress(3, 10), "::progress done=3 total=10\n"),
        (lambda: remote.progress(3), "::progress done=3\n"),
        (lambda: remote.result({"rows": 3}), '::result {"rows": 3}\n'),
    ],
)
def test_reports_are_lines(report: Callable[[], None], line: str, capfd: pytest.CaptureFixture[str]):
    report()

    assert capfd.readouterr().out == line


def test_large_result_is_refused_where_it_is_made():
    with pytest.raises(ResultTooLarge):
        remote.result("x" * 1_000_000)
