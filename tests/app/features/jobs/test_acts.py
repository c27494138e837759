"""The acts of jobs and graphs by each way: the request, the form and the command do the same, and refuse the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server import serving
from tests.support.every_way import Case, check_every_way

JOB, GRAPH = (f"01900000-0000-7000-8000-00000000000{n}" for n in (1, 2))
QUEUED = f"INSERT INTO dl_jobs (job_id, queue, task, lock_key) VALUES ('{JOB}', 'etl', 'load', 'k');"
FAILED = QUEUED.replace("lock_key)", "lock_key, status, finished_at)").replace("'k')", "'k', 'failed', now())")
OF_GRAPH = f"INSERT INTO dl_graphs (graph_id, name) VALUES ('{GRAPH}', 'g');" + QUEUED.replace(
    "lock_key)", "lock_key, graph_id, graph_key)"
).replace("'k')", f"'k', '{GRAPH}', 'a')")
START = {"queue": "etl", "lock_key": "k", "args": "{}"}
CASES = {
    "job triggered": Case(
        "job.triggered",
        ("POST", "/jobs/trigger", {**START, "task": "load", "args": {}, "priority": 7, "producer": "me"}),
        ("/tasks/load", {**START, "priority": "7", "more": '{"producer": "me"}'}), None, "dl_jobs",  # it adds a key
        audit={"queue": "etl", "task": "load", "created": True, "producer": "me"},
    ),
    "job triggered with a limit below 1": Case(
        "job.triggered", ("POST", "/jobs/trigger", {**START, "task": "load", "args": {}, "time_limit_sec": 0}),
        ("/tasks/load", {**START, "time_limit_sec": "0"}), None, "dl_jobs",
        refused="greater than or equal to 1",
    ),
    "job edited": Case(
        "job.edited", ("PATCH", f"/jobs/{JOB}", {"priority": 7, "args": {"day": 1}}),
        (f"/jobs/{JOB}/edit", {"priority": "7", "args": '{"day": 1}'}),
        ["edit", JOB, "--priority", "7", "--args", '{"day": 1}'], "dl_jobs",
        before=QUEUED, audit={"job_id": JOB, "fields": ["args", "priority"]},
    ),
    "job edited without a change": Case(
        "job.edited", ("PATCH", f"/jobs/{JOB}", {}), (f"/jobs/{JOB}/edit", {"version": ""}), None, "dl_jobs",
        before=QUEUED, refused="there is no change",
    ),
    "job that has ended edited": Case(
        "job.edited", ("PATCH", f"/jobs/{JOB}", {"priority": 7}),
        None, ["edit", JOB, "--priority", "7"], "dl_jobs", before=FAILED, refused="failed",
    ),
    "job canceled": Case(
        "job.canceled", ("POST", f"/jobs/{JOB}/cancel", None), (f"/jobs/{JOB}/cancel", {}), ["cancel", JOB], "dl_jobs",
        before=QUEUED, audit={"queue": "etl", "task": "load", "status": "canceled"},
    ),
    "job that is none canceled": Case(
        "job.canceled", ("POST", f"/jobs/{JOB}/cancel", None), (f"/jobs/{JOB}/cancel", {}), ["cancel", JOB], "dl_jobs",
        refused="job",
    ),
    "job cloned": Case(
        "job.cloned", ("POST", f"/jobs/{JOB}/clone", {"priority": 7}), (f"/jobs/{JOB}/clone", {"priority": "7"}),
        ["clone", JOB, "--priority", "7"], "dl_jobs", before=FAILED,
        audit={"cloned_from": JOB, "queue": "etl", "task": "load"},
    ),
    "job retried": Case(
        "job.retried", ("POST", f"/jobs/{JOB}/retry", None), (f"/jobs/{JOB}/retry", {}), ["retry", JOB], "dl_jobs",
        before=FAILED, audit={"queue": "etl", "task": "load"},
    ),
    "job that is queued retried": Case(
        "job.retried", ("POST", f"/jobs/{JOB}/retry", None), (f"/jobs/{JOB}/retry", {}), ["retry", JOB], "dl_jobs",
        before=QUEUED, refused="queued",
    ),
    "job deleted": Case(
        "job.deleted", ("DELETE", f"/jobs/{JOB}", None), (f"/jobs/{JOB}/delete", {}), ["delete", JOB], "dl_jobs",
        before=FAILED, audit={"job_id": JOB},
    ),
    "job that is queued deleted": Case(
        "job.deleted", ("DELETE", f"/jobs/{JOB}", None), (f"/jobs/{JOB}/delete", {}), ["delete", JOB], "dl_jobs",
        before=QUEUED, refused="queued",
    ),
    "graph canceled": Case(
        "graph.canceled", ("POST", f"/graphs/{GRAPH}/cancel", None), (f"/graphs/{GRAPH}/cancel", {}),
        ["graphs", "cancel", GRAPH], "dl_jobs", before=OF_GRAPH, audit={"graph_id": GRAPH, "jobs": 1},
    ),
    "graph retried": Case(
        "graph.retried", ("POST", f"/graphs/{GRAPH}/retry", None), (f"/graphs/{GRAPH}/retry", {}),
        ["graphs", "retry", GRAPH], "dl_jobs",
        before=OF_GRAPH + "UPDATE dl_jobs SET status = 'failed', finished_at = now(); DELETE FROM dl_graph_work;",
        audit={"graph_id": GRAPH, "jobs": 1},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(shared_dsn: str) -> Iterator[str]:
    with serving(shared_dsn) as address:
        yield address


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_way_does_the_same(case: Case, url: str, shared_dsn: str, captured: pytest.LogCaptureFixture):
    check_every_way(case, url, shared_dsn, captured)
