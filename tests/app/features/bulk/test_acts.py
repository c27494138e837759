"""Each act of a bulk operation by each way: the request, the form and the command do the same, and refuse the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server import serving
from tests.support.every_way import Case, check_every_way

JOB, BULK = (f"01900000-0000-7000-8000-00000000000{n}" for n in (1, 2))
QUEUED = f"INSERT INTO dl_jobs (job_id, queue, task, lock_key) VALUES ('{JOB}', 'etl', 'load', 'k');"
FAILED = QUEUED.replace("lock_key)", "lock_key, status, finished_at)").replace("'k')", "'k', 'failed', now())")
WAITING = (
    f"INSERT INTO dl_bulk (bulk_id, action, filter, expected, state) VALUES ('{BULK}', 'delete', '{{}}', 1, 'waiting');"
)
ETL, OF_ETL = {"queue": "etl"}, ["--queue", "etl", "--expected", "1", "--yes"]
FORM = {"filter": "queue=etl", "all": "on", "expected": "1"}
CASES = {
    "jobs deleted": Case(
        "bulk.started", ("POST", "/bulk", {"action": "delete", "filter": ETL, "expected": 1}),
        ("/jobs/bulk", {**FORM, "action": "delete"}), ["bulk", "delete", *OF_ETL], "dl_bulk", before=FAILED,
        audit={"action": "delete", "expected": 1, "filter": None},
    ),
    "jobs reprioritised": Case(
        "bulk.started", ("POST", "/bulk", {"action": "reprioritise", "filter": ETL, "expected": 1, "priority": 3}),
        ("/jobs/bulk", {**FORM, "action": "reprioritise", "priority": "3"}),
        ["bulk", "reprioritise", *OF_ETL, "--priority", "3"], "dl_bulk", before=QUEUED,
        audit={"action": "reprioritise", "expected": 1},
    ),
    "jobs retried at a rate": Case(
        "bulk.started", ("POST", "/bulk", {"action": "redrive", "filter": ETL, "expected": 1, "per_minute": 30}),
        ("/jobs/bulk", {**FORM, "action": "redrive", "per_minute": "30"}),
        ["bulk", "redrive", *OF_ETL, "--per-minute", "30"], "dl_bulk", before=FAILED,
        audit={"action": "redrive", "expected": 1},
    ),
    "job of an id retried": Case(
        "bulk.started", ("POST", "/bulk", {"action": "retry", "filter": {"job_id": JOB}, "expected": 1}),
        ("/jobs/bulk", {"action": "retry", "job_id": JOB, "expected": "1"}),
        ["bulk", "retry", "--job-id", JOB, "--expected", "1", "--yes"], "dl_bulk", before=FAILED,
        audit={"action": "retry", "expected": 1},
    ),
    "more jobs than expected deleted": Case(
        "bulk.started", ("POST", "/bulk", {"action": "delete", "filter": ETL, "expected": 0}),
        ("/jobs/bulk", {**FORM, "action": "delete", "expected": "0"}),
        ["bulk", "delete", "--queue", "etl", "--expected", "0", "--yes"], "dl_bulk", before=FAILED,
        refused="found 1 job, expected 0",
    ),
    "priority left out": Case(
        "bulk.started", ("POST", "/bulk", {"action": "reprioritise", "filter": ETL, "expected": 1}),
        ("/jobs/bulk", {**FORM, "action": "reprioritise"}), ["bulk", "reprioritise", *OF_ETL], "dl_bulk",
        before=QUEUED, refused="is required for reprioritise",
    ),
    "stopped": Case(
        "bulk.canceled", ("POST", f"/bulk/{BULK}/cancel", None), (f"/bulk/{BULK}/cancel", {}), ["bulk", "stop", BULK],
        "dl_bulk", before=WAITING, audit={"bulk_id": BULK},
    ),
    "none stopped": Case(
        "bulk.canceled", ("POST", f"/bulk/{BULK}/cancel", None), (f"/bulk/{BULK}/cancel", {}), ["bulk", "stop", BULK],
        "dl_bulk", refused="bulk operation",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(shared_dsn: str) -> Iterator[str]:
    with serving(shared_dsn) as address:
        yield address


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_way_does_the_same(case: Case, url: str, shared_dsn: str, captured: pytest.LogCaptureFixture):
    check_every_way(case, url, shared_dsn, captured)
