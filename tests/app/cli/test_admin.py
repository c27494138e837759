"""The commands of anyone who is on call, against the real app."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner, Result

from dataloader.app.cli.command import cli
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.features.statistics.rows import StatisticsWriter
from dataloader.app.queue.job import Status
from dataloader.app.queue.job_records import LogEntry
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support import Databases
from tests.support.api_server import serving
from tests.support.queue_fixture import QueueFixture

Run = Callable[..., Result]


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
    made.sql("TRUNCATE dl_jobs, dl_job_events, dl_workers, dl_bulk, dl_queues")
    yield made
    made.close()


@pytest.fixture
def run(url: str) -> Run:
    def run(*words: object, **how: object) -> Result:
        return CliRunner().invoke(cli, [*map(str, words), "--url", url], **how)  # type: ignore[arg-type]

    return run


def test_scaling_shows_the_threads_that_jobs_ask_for(run, queue_db):
    queue_db.enqueue("a")
    queue_db.enqueue("b")

    table = run("scaling", "--queue", "q", "--target-wait", 30)

    assert table.output.splitlines()[0].split() == [
        *("queue", "wanted", "busy", "idle", "ready", "oldest", "p95", "due", "draining")
    ]
    assert table.output.splitlines()[1].split()[:5] == ["q", "2", "0", "0", "2"]


def test_logs_and_show_separate_runs_of_an_attempt(run, queue_db):
    released = queue_db.enqueue_and_claim()
    queue_db.release(released)
    (again,) = queue_db.claim()
    queue_db.queue.write_logs([LogEntry(again.id, 1, 0.0, "INFO", "log", "of the second")])

    assert "  1, run 2  INFO     of the second" in run("logs", again.id).output
    shown = run("show", again.id).output
    assert ("attempt 1 " in shown, "attempt 1, run 2" in shown) == (True, True)


def test_jobs_are_found_shown_and_explained(run, queue_db):
    job = queue_db.enqueue_and_claim("k", args={"n": 1}, max_attempts=1)
    queue_db.settle(job, Status.FAILED, error="disk full")
    waiting = queue_db.enqueue("w", task="other")

    assert (
        str(job.id)
        in run("jobs", "--status", "failed,lost", "--text", "disk", "--created-from", "2020-01-01T00:00Z").output
    )
    shown = run("show", job.id).output
    assert "disk full" in shown
    assert '{"n": 1}' in shown
    assert "It failed at" in run("why", job.id).output
    assert "No live worker serves queue 'q'" in run("why", waiting).output
    assert run("why", uuid4()).exit_code == ExitCode.NOT_FOUND
    assert json.loads(run("show", job.id, "--json").output)["status"] == "failed"


@pytest.fixture
def five_hours_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine's clock is in another zone than the database's."""
    monkeypatch.setenv("TZ", "XYZ-5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_times_of_all_commands_show_this_machines_zone(run, queue_db, five_hours_ahead):
    job = queue_db.enqueue_and_claim("k", max_attempts=1)
    queue_db.settle(job, Status.FAILED, error="disk full")
    run("bulk", "retry", "--all", "--expected", 1)

    for words in (("status", job.id), ("show", job.id), ("jobs",), ("events", job.id), ("bulk", "list"), ("audit",)):
        shown = run(*words).stdout
        times = re.findall(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*", shown)
        assert times, words
        assert [at for at in times if not at.endswith("+05:00")] == [], words
    assert json.loads(run("show", job.id, "--json").stdout)["created_at"].endswith("Z"), "JSON stays as it came"


def test_events_show_a_traceback_in_its_own_lines(run, queue_db):
    job = queue_db.enqueue_and_claim("k", max_attempts=1)
    queue_db.settle(
        job, Status.FAILED, error="ValueError: disk \x1b[31mfull", traceback="Traceback:\n  File a.py\nValueError"
    )

    lines = run("events", job.id).stdout.splitlines()

    (failed,) = [n for n, line in enumerate(lines) if "  failed " in line]
    assert "attempt=1" in lines[failed]
    assert lines[failed + 1].startswith("    ValueError: disk ")
    assert "\x1b" not in lines[failed + 1]
    assert lines[failed + 2 : failed + 5] == ["    Traceback:", "      File a.py", "    ValueError"]
    assert run("events", job.id, "--limit", 1).stdout.count("\n") == 1


def test_audit_folds_triggers(run):
    for key in ("a", "b"):
        run("trigger", "t", "--queue", "q", "--lock-key", key)

    assert "2 triggers since" in run("audit", "--triggers", "folded").output
    assert "2 triggers since" not in run("audit").output
    for option in ("--created-from", "--since"):  # the former name of 0.2.0
        assert "2 triggers since" in run("audit", "--triggers", "folded", option, "2020-01-01").output
        assert "No actions match." in run("audit", option, "in 1h").output


def test_jobs_are_edited_cloned_and_deleted(run, queue_db):
    job_id = queue_db.enqueue("k")

    assert run("edit", job_id).exit_code == ExitCode.USAGE
    assert (
        run("edit", job_id, "--priority", 3, "--args", '{"n": 2}').output
        == f"Job {job_id} is changed: args, priority.\n"
    )
    made = UUID(run("clone", job_id, "--priority", 9).output.split()[1])
    assert run("delete", made).exit_code == ExitCode.REFUSED
    queue_db.queue.cancel(made)
    assert run("delete", made).output == f"Job {made} is deleted.\n"
    assert (queue_db.job(job_id).priority, queue_db.job(job_id).args) == (3, {"n": 2})


def test_jobs_shows_how_a_queued_job_waits(run, queue_db):
    later = queue_db.enqueue("a", available_at=datetime.now(UTC) + timedelta(hours=1))
    assert "queued (scheduled)" in run("jobs").output
    assert "wait_state" in run("show", later).output

    queue_db.queue.cancel(later)
    queue_db.enqueue("b")
    shown = run("jobs").output
    assert "queued  " in shown
    assert "queued (" not in shown
    assert "wait_state" not in run("show", later).output


def test_why_of_a_task_without_reason_says_so(run, queue_db):
    WorkerLiveness(queue_db.session).send_heartbeat(
        WorkerInfo(uuid4(), "host:1", "1", ("etl.default",), ("t",), 2), heartbeat_sec=60
    )

    assert run("why", "t").output.startswith("Nothing holds up the task t.")
    assert run("breakers", "pause", "t", "--note", "moving").output == "t is paused: moving.\n"
    assert "moving" in run("why", "t").output
    assert run("breakers", "resume", "t").output == "t is resumed.\n"


def test_bulk_counts_confirms_lists_and_stops(run, queue_db):
    for key in "ab":
        queue_db.enqueue(key)

    assert run("bulk", "cancel", "--all", "--dry-run").output == "2 jobs would be changed; none was.\n"
    assert run("bulk", "cancel", "--all", input="n\n").exit_code == 1
    begun = run("bulk", "reprioritise", "--priority", 1, "--queue", "q", input="y\n")
    bulk_id = begun.stdout.split()[0]
    assert "0 of 2" in run("bulk", "list").output
    assert run("bulk", "stop").exit_code == ExitCode.USAGE
    assert "0 jobs changed" in run("bulk", "stop", bulk_id).output
    assert run("bulk", "retry", "--all", "--expected", 0).exit_code == ExitCode.OK
    run("cancel", queue_db.enqueue("c"))
    assert run("bulk", "delete", "--all", "--expected", 0).exit_code == ExitCode.REFUSED


@pytest.mark.parametrize("action", ["cancel", "retry", "delete"])
def test_bulk_without_a_filter_is_refused(run, queue_db, action):
    queue_db.enqueue()

    refused = run("bulk", action, "--yes")

    assert (refused.exit_code, "--all" in refused.output) == (ExitCode.USAGE, True)
    assert run("bulk", action, "--all", "--status", "queued", "--yes").exit_code == ExitCode.USAGE
    assert run("bulk", "list").output == "No bulk operations.\n"


def test_queues_and_workers_are_shown_and_ruled(run, queue_db):
    queue_db.enqueue("k")
    info = WorkerInfo(uuid4(), "host:1", "1", ("q",), ("t",), 2)
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)

    assert run("queue", "q").exit_code == ExitCode.USAGE
    misspelt = run("queue", "qq", "--pause")
    assert misspelt.exit_code == ExitCode.NOT_FOUND
    assert misspelt.stderr.startswith("Error: there is no queue 'qq'; known: ")
    assert "--create" in misspelt.stderr
    assert run("queue", "qq", "--pause", "--create").output == "Queue qq is paused.\n"
    assert run("breakers", "pause", "tt").exit_code == ExitCode.NOT_FOUND
    warned = run("alerts", "create", "r", "stalled", "--threshold", "60", "--task", "tt")
    assert warned.stderr.startswith("Warning: there is no task 'tt'")
    ruled = run("queue", "q", "--pause", "--concurrency", 2, "--note", "later").output
    assert ruled == "Queue q is paused: 2 at once.\n"
    assert run("queue", "q", "--open", "--concurrency", 0).output == "Queue q is open.\n"
    assert "open" in run("queues").output
    assert "host:1" in run("workers").output
    assert run("workers", "--drain", info.id).output == "host:1 is draining.\n"
    assert run("workers", "--undrain", info.id).output == "host:1 claims jobs again.\n"


def test_the_numbers_of_tasks_are_a_line_each(run, queue_db):
    queue_db.settle(queue_db.enqueue_and_claim("k"))
    while StatisticsWriter(queue_db.session).aggregate() is not None:
        pass

    assert "t  " in run("task-numbers").output
    assert "failure_rate" in run("task-numbers").output


def test_failures_are_grouped_and_their_jobs_listed(run, queue_db):
    assert run("failures").stderr == "No failed or lost jobs.\n"
    for key in "ab":
        job = queue_db.enqueue_and_claim(key, max_attempts=1)
        queue_db.settle(job, Status.FAILED, error="disk full", error_fingerprint="OSError a.py:b")

    (line,) = run("failures").stdout.splitlines()[1:]
    assert re.match(r"t +OSError a.py:b +2 ", line)
    assert "disk full" in line
    assert len(run("jobs", "--fingerprint", "OSError a.py:b").stdout.splitlines()) == 3
    assert run("failures", "--task", "other").stdout == ""


def test_redrive_is_started_with_its_rate(run, queue_db):
    job = queue_db.enqueue_and_claim("a", max_attempts=1)
    queue_db.settle(job, Status.FAILED, error="disk full", error_fingerprint="OSError a.py:b")
    only = ("--fingerprint", "OSError a.py:b")

    assert run("bulk", "redrive", "--dry-run", *only).output == "1 job would be changed; none was.\n"
    assert run("bulk", "redrive", *only).exit_code == ExitCode.USAGE
    begun = run("bulk", "redrive", "--per-minute", 5, "--max-jobs", 2, "--args-patch", '{"n": 2}', *only, input="y\n")

    assert begun.exit_code == 0
    (operation,) = json.loads(run("bulk", "list", "--json").stdout)["operations"]
    assert (operation["action"], operation["per_minute"], operation["max"]) == ("redrive", 5, 2)
    assert (operation["args_patch"], operation["filter"]["fingerprint"]) == ({"n": 2}, "OSError a.py:b")
