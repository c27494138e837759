"""Who reads the log of real processes at WARNING learns of each attempt that did not succeed, and of nothing else."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dataloader import Client
from tests.support import Process, eventually, free_port
from tests.support.real_service import FAST_SETTINGS, RunningService, ServiceJobs, ServiceStarter, query_rows

RETRY_POLICY = '{"kind": "fixed", "seconds": 0.1}'
PACKAGES = "dataloader.pipelines.noop,tests.support.etl,tests.support.isolated_tasks"
COMMANDS = json.dumps(
    {"exits": {"command": ["sh", "-c", "echo why >&2; exit 3"]}, "missing": {"command": ["/no/such"]}}
)
LOUD = ("warning", "error", "critical")


def warning_lines(running: RunningService) -> list[dict[str, Any]]:
    """Lines of WARNING and above."""
    assert "Traceback (most" not in "".join(line for line in running.process.lines if not line.startswith("{"))
    return [line for line in running.output() if line["level"] in LOUD]


@pytest.fixture
def starting(run: ServiceStarter, dsn: str, tmp_path: Path) -> Iterator[RunningService]:
    """A service that is asked for its status from the first moment on."""
    port = free_port()
    env = {**FAST_SETTINGS, "DL_DB_DSN": dsn, "APP_PORT": str(port)}
    with ExitStack() as stack:
        process = stack.enter_context(Process.dataloader("serve", output=tmp_path / "serve.log", env=env))
        process.wait_for_port(port)
        yield RunningService(process, port, "serve")


def test_healthy_day_has_no_line_of_warning_or_above(starting: RunningService, run: ServiceStarter, jobs: ServiceJobs):
    serve = starting.wait_until_ready()
    client = Client(f"http://127.0.0.1:{serve.port}")
    lasting = {"trace": str(jobs.trace), "file": str(jobs.release_file)}
    naps = {**lasting, "seconds": 0.05}
    first = client.trigger("test.nap", naps, queue="q", lock_key="first", strict=True)
    assert not first.get("warnings"), "of a service that was started a moment ago"
    for n in range(40):  # some of them wait for a key
        client.trigger("test.nap", naps, queue="q", lock_key=f"k{n % 9}", idempotency_key=f"n{n}")
    later = "now() + interval '2 s'"
    query_rows(jobs.dsn, f"UPDATE dl_jobs SET available_at = {later} WHERE job_id = %s", jobs.insert("test.nap")[0])
    jobs.wait_for_counts({"succeeded": 42})

    running = client.trigger("test.until", lasting, queue="q", lock_key="u")["job_id"]
    queued = client.trigger("test.until", lasting, queue="q", lock_key="u")["job_id"]
    jobs.wait_for_starts(43)
    is_blocked = "SELECT wait_state = 'blocked' FROM dl_jobs WHERE job_id = %s"
    eventually(lambda: query_rows(jobs.dsn, is_blocked, str(queued))[0][0])
    for job_id in (queued, running):
        client.cancel(job_id)
    jobs.wait_for_counts({"succeeded": 42, "canceled": 2})
    handed_back = jobs.insert("test.until", 2)
    jobs.wait_for_starts(45)
    heir = run("worker").wait_until_ready()
    assert serve.stop() == 0
    jobs.release_jobs()
    jobs.wait_for_counts({"succeeded": 44, "canceled": 2})

    assert {jobs.row(job) for job in handed_back} == {("succeeded", 1)}
    idle_until = query_rows(jobs.dsn, "SELECT clock_timestamp() + interval '3 s'")[0][0]
    eventually(lambda: query_rows(jobs.dsn, "SELECT clock_timestamp() > %s", idle_until)[0][0], interval_sec=0.5)
    assert heir.stop() == 0
    assert warning_lines(serve) == []
    assert warning_lines(heir) == []
    assert "u" in {line["lock_key"] for line in serve.log_lines("worker.claim.backoff")}


def test_each_bad_attempt_has_one_line_with_its_reason(run: ServiceStarter, jobs: ServiceJobs):
    doomed = run("worker").wait_until_ready()
    dies, is_lost = jobs.insert("test.until", 2)
    jobs.wait_for_starts(2)
    query_rows(jobs.dsn, "UPDATE dl_jobs SET max_attempts = 1 WHERE job_id = %s", is_lost)
    doomed.process.signal(signal.SIGKILL)
    jobs.release_jobs()
    worker = run("worker", DL_PIPELINES=PACKAGES, DL_TASKS=COMMANDS).wait_until_ready()
    jobs.wait_for_reaping()

    def insert(task: str, args: object, max_attempts: int = 1, time_limit: int | None = None) -> str:
        ((job,),) = query_rows(
            jobs.dsn,
            "INSERT INTO dl_jobs (queue, task, lock_key, args, max_attempts, retry, time_limit_sec)"
            " VALUES ('q', %s, gen_random_uuid(), %s, %s, %s, %s) RETURNING job_id::text",
            task, json.dumps(args), max_attempts, RETRY_POLICY, time_limit,
        )  # fmt: skip
        return str(job)

    paths = {"trace": str(jobs.trace), "file": "/nowhere"}
    raises = insert("test.secret", {"password": "hunter2"}, 2)
    exits, missing = insert("exits", {}), insert("missing", {})
    crashes = insert("apart.dies", {"how": "segfault"}, 5)
    slow = insert("test.until", paths, time_limit=1)
    refused = insert("test.nap", [1, 2], 5)
    snoozes = insert("apart.raises", {"what": "snooze"})
    expected = {
        (dies, 1, "queued", "lease_expired"), (is_lost, 1, "lost", "lease_expired"),
        (raises, 1, "queued", "error"), (raises, 2, "failed", "error"), (exits, 1, "failed", "error"),
        (missing, 1, "failed", "error"), (crashes, 1, "queued", "crash"), (crashes, 2, "failed", "poison"),
        (slow, 1, "failed", "time_limit"), (refused, 1, "failed", "error"),
    }  # fmt: skip

    jobs.wait_for_counts({"succeeded": 1, "lost": 1, "failed": 6, "queued": 1})
    eventually(
        lambda: len(worker.log_lines("worker.complete.failed")) >= len(expected),
        message=lambda: str(warning_lines(worker)),
    )
    assert worker.stop() == 0

    lines = [
        line for line in warning_lines(worker) if line["event"] != "worker.found_dead"
    ]  # about the process, if by proof
    assert {line["event"] for line in lines} == {"worker.complete.failed"}
    same = {"process_died": "lease_expired"}  # whichever is noticed first
    result = [
        (line["job"], line["attempt"], line["status"], same.get(line["reason"], line["reason"])) for line in lines
    ]
    assert sorted(result) == sorted(expected)
    assert {line["level"] for line in lines if line["status"] == "queued"} == {"warning"}
    assert {line["level"] for line in lines if line["status"] != "queued"} == {"error"}
    assert all(line["error"] and line["task"] and line["queue"] == "q" and line["max_attempts"] for line in lines)
    assert all(("retry_at" in line) == (line["status"] == "queued") for line in lines)
    assert "hunter2" not in worker.process.text
    errors = {line["job"]: line["error"] for line in lines}
    assert errors[refused] == "args must be an object, not list"
    assert query_rows(jobs.dsn, "SELECT line FROM dl_job_logs WHERE job_id = %s", refused) == [(errors[refused],)]
    assert [line["job"] for line in worker.log_lines("reaper.requeued")] == [dies]
    assert snoozes not in errors
