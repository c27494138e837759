"""Each finding of doctor is provoked, its remedy run as printed, and the finding is gone.

Those about differences from schema.sql are in test_schema_remedies.py, those of the server in test_server_remedies.py;
test_remedy_coverage.py looks whether all are there.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg2.extras
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from dataloader.app.db.connection import Session
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.schedules.duty import SchedulesDuty
from dataloader.pipelines.contract import Pipelines
from tests.support.api_server import serving
from tests.support.databases import another_role, execute_sql
from tests.support.pgbouncer import running_pgbouncer
from tests.support.processes import Process
from tests.support.real_service import query_rows
from tests.support.remedies import find_finding, find_problems, is_gone, run_in_this_process, run_remedy
from tests.support.waiting import eventually


@pytest.mark.superuser("one of the remedies is a grant of pg_read_all_stats")
def test_remedies_of_rights_are_grants(dsn, superuser):
    with another_role(dsn) as role:
        execute_sql(
            dsn,
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
            f"REVOKE UPDATE ON dl_jobs FROM {role}; REVOKE DELETE ON dl_bulk FROM {role}",
        )
        theirs = make_dsn(dsn, user=role, password="x")
        execute_sql(dsn, f'REVOKE TEMPORARY ON DATABASE "{parse_dsn(dsn)["dbname"]}" FROM PUBLIC')
        for what in (
            "error rights",
            "warning rights",
            "info sees_others",
            "info ends_others",
            "info temporary_tables",
        ):
            run_remedy(superuser(dsn), find_finding(find_problems(theirs), what).remedy)
        for _ in range(60):  # one right may hide the next
            findings = [f for f in find_problems(theirs) if f.check in ("rights", "sees_others")]
            findings = [f for f in findings if "the check failed" not in f.message]
            if not findings:
                break
            for finding in findings:
                run_remedy(dsn, finding.remedy)
        assert is_gone(theirs, "rights")
        assert is_gone(theirs, "sees_others")


@contextmanager
def working(dsn: str, folder: Path, command: str = "dataloader worker", **env: str) -> Iterator[Process]:
    """A worker, started by the words of a remedy."""
    words = command.removeprefix("dataloader ").split(";")[0].split()
    given = {"DL_DB_DSN": dsn, "DL_PIPELINES": "dataloader.pipelines.noop", "DL_REAPER_PERIOD_SEC": "0.2", **env}
    with Process.dataloader(*words, output=Path(tempfile.mkdtemp(dir=folder)) / "worker.log", env=given) as process:
        process.wait_for_line("listener.connected")
        yield process


def test_remedies_of_waiting_jobs_start_workers(dsn, tmp_path):
    insert = "INSERT INTO dl_jobs (queue, task, lock_key, args, available_at) VALUES ('elt', '{}', '{}', '{{}}', now())"
    execute_sql(dsn, insert.format("noop", "a"))
    remedy = find_finding(find_problems(dsn), "error queues_without_worker").remedy
    with working(dsn, tmp_path, remedy):
        eventually(lambda: is_gone(dsn, "queues_without_worker"))
        execute_sql(dsn, insert.format("test.nap", "b"))
        missing = find_finding(find_problems(dsn), "error tasks_without_worker")
    assert "DL_PIPELINES" in missing.remedy
    with working(dsn, tmp_path, remedy, DL_PIPELINES="dataloader.pipelines.noop,tests.support.etl"):
        eventually(lambda: is_gone(dsn, "tasks_without_worker"))


def test_remedy_of_missing_labels_starts_a_worker_with_them(dsn, tmp_path):
    tasks = '{"train": {"command": ["true"], "requires": {"gpu": true, "spot": false}}}'
    execute_sql(
        dsn,
        "INSERT INTO dl_jobs (queue, task, lock_key, args, available_at) VALUES ('q', 'train', 'a', '{}', now())",
    )
    with working(dsn, tmp_path, "dataloader worker --queue q:1", DL_TASKS=tasks):
        eventually(lambda: not is_gone(dsn, "labels_without_worker"))
        remedy = find_finding(find_problems(dsn), "error labels_without_worker").remedy
        assert remedy.startswith("dataloader worker --queue q:1 --label gpu=true;")
        with working(dsn, tmp_path, remedy, DL_TASKS=tasks):
            eventually(lambda: is_gone(dsn, "labels_without_worker"))


RUNNING = """INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, worker, lease_ttl_sec, started_at,
                     heartbeat_at, lease_expires_at)
    VALUES ('q', 'noop', '{}', 'running', 1, gen_random_uuid(), 'w', 1, now(), now() + interval '{}', {})"""


def test_remedies_of_leases_are_a_worker(dsn, tmp_path):
    execute_sql(dsn, RUNNING.format("late", "-1 h", "now() - interval '1 h'"))
    remedy = find_finding(find_problems(dsn), "error expired_leases").remedy
    execute_sql(
        dsn,
        RUNNING.format("odd", "0 s", "'infinity'"),
        RUNNING.format("odder", "10 days", "now() + interval '10 days'"),
    )
    found = find_finding(find_problems(dsn), "warning odd_leases", "2 running jobs")
    assert "the job is reaped lease_ttl_sec after its last heartbeat" in found.remedy

    with working(dsn, tmp_path, remedy, DL_HEARTBEAT_SEC="0.3"):
        eventually(lambda: is_gone(dsn, "expired_leases"))
        eventually(lambda: is_gone(dsn, "odd_leases"))


def test_remedy_of_shared_names_gives_each_its_own(dsn, tmp_path):
    with ExitStack() as workers:
        first, second = [workers.enter_context(working(dsn, tmp_path, DL_WORKER_NAME="etl-0")) for _ in range(2)]
        eventually(lambda: not is_gone(dsn, "shared_worker_names"))
        assert (
            "give each a name of its own"
            in find_finding(find_problems(dsn), "error shared_worker_names", "etl-0").remedy
        )
        second.signal(signal.SIGTERM)
        assert second.wait() == 0

        workers.enter_context(working(dsn, tmp_path, DL_WORKER_NAME="etl-1"))

        assert query_rows(dsn, "SELECT worker_name FROM dl_workers WHERE NOT stopping ORDER BY 1") == [
            ("etl-0",),
            ("etl-1",),
        ]
        assert is_gone(dsn, "shared_worker_names")
        assert first.exit_code is None


def test_remedy_of_stuck_jobs_ends_their_worker(dsn, tmp_path):
    settings = {"DL_PIPELINES": "tests.support.etl", "DL_STOP_STEP_SEC": "0.1", "DL_SHUTDOWN_GRACE_SEC": "0.1"}
    paths = {"trace": str(tmp_path / "trace"), "file": str(tmp_path / "go-on")}
    with working(dsn, tmp_path, "dataloader worker --queue q:1", **settings) as process:
        ((job,),) = query_rows(
            dsn,
            "INSERT INTO dl_jobs (queue, task, lock_key, args) VALUES ('q', 'test.deaf', 'k', %s) RETURNING job_id",
            psycopg2.extras.Json(paths),
        )
        eventually(lambda: query_rows(dsn, "SELECT 1 FROM dl_jobs WHERE status = 'running'"))
        execute_sql(dsn, f"UPDATE dl_jobs SET cancel_requested = true WHERE job_id = '{job}'")
        eventually(lambda: not is_gone(dsn, "stuck_jobs"))
        remedy = find_finding(find_problems(dsn), "warning stuck_jobs", "stop pending").remedy
        named = re.match(r"end the worker process (\S+) with SIGTERM", remedy)
        assert named is not None, remedy
        ((pid,),) = query_rows(dsn, "SELECT pid FROM dl_workers WHERE name = %s", named[1])
        assert pid == process.pid

        os.kill(pid, signal.SIGTERM)

        assert process.wait() == 0
    assert is_gone(dsn, "stuck_jobs")
    assert query_rows(dsn, "SELECT status FROM dl_jobs") == [("canceled",)]


def test_remedy_of_foreign_keys_ends_their_sessions(dsn):
    with closing(psycopg2.connect(make_dsn(dsn, application_name="elsewhere"))) as holder, holder.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(hashtext('held'))")
        holder.commit()
        execute_sql(
            dsn,
            "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'held')",
            "UPDATE dl_jobs SET wait_state = 'blocked'",
        )
        run_remedy(dsn, find_finding(find_problems(dsn), "warning foreign_keys").remedy)

        eventually(lambda: is_gone(dsn, "foreign_keys"))


def test_remedy_of_disabled_webhooks_switches_them_on(dsn):
    execute_sql(dsn, "INSERT INTO dl_webhooks (url, secret, disabled_at) VALUES ('http://127.0.0.1/x', 's', now())")
    remedy = find_finding(find_problems(dsn), "warning webhooks_disabled").remedy

    with serving(dsn) as url:
        for line in remedy.split("; "):
            run_in_this_process(dsn, *line.removeprefix("dataloader ").split(), DL_URL=url)

    assert is_gone(dsn, "webhooks_disabled")


def run_commands(dsn: str, remedy: str) -> None:
    with serving(dsn) as url:
        for line in remedy.split("; "):
            if line.startswith("dataloader "):
                run_in_this_process(dsn, *shlex.split(line.removeprefix("dataloader ")), DL_URL=url)


ADD_SCHEDULE = (
    "INSERT INTO dl_schedules (name, source, task, overrides, next_at) VALUES ('a b', 'people', 'noop', '{}', now())"
)


def test_doctor_without_a_feature_has_none_of_its_findings(dsn):
    execute_sql(
        dsn,
        "INSERT INTO dl_webhooks (url, secret, disabled_at) VALUES ('https://hooks.example.org', 's', now())",
        "INSERT INTO dl_schedules (name, source, task, overrides, error) VALUES ('nightly', 'people', 't', '{}', 'x')",
    )
    of_webhooks, of_schedules = {"webhooks_disabled"}, {"schedules_stopped"}

    def checks(*left_out: str) -> set[str]:
        features = [feature for feature in FEATURES if feature.name not in left_out]
        return {finding.check for finding in find_problems(dsn, features=features)}

    complete = checks()
    assert complete >= of_webhooks | of_schedules
    assert complete - checks("webhooks") == of_webhooks
    assert complete - checks("webhooks", "schedules") == of_webhooks | of_schedules


def test_remedy_of_a_taken_name_deletes_the_schedule_of_people(dsn):
    execute_sql(
        dsn,
        ADD_SCHEDULE,
        "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec, schedules)"
        " VALUES (gen_random_uuid(), 'w', '1', '{q}', '{noop}', 1, 600, '{a b}')",
    )
    run_commands(dsn, find_finding(find_problems(dsn), "error schedules_taken").remedy)

    assert is_gone(dsn, "schedules_taken")


def test_remedy_of_an_orphaned_schedule_adopts_it(dsn):
    values = '{"expression": "0 6 * * *", "queue": "etl.default"}'
    execute_sql(
        dsn, ADD_SCHEDULE, f"UPDATE dl_schedules SET source = 'code', orphaned_at = now(), declared = '{values}'"
    )
    run_commands(dsn, find_finding(find_problems(dsn), "warning schedules_orphaned").remedy)

    assert is_gone(dsn, "schedules_orphaned")
    assert query_rows(dsn, "SELECT source FROM dl_schedules") == [("people",)]


def test_a_schedule_that_has_stopped_is_edited(dsn):
    values = '{"expression": "0 6 * * *", "queue": "etl.default", "zone": "Mars/Olympus"}'
    execute_sql(dsn, ADD_SCHEDULE, f"UPDATE dl_schedules SET next_at = NULL, error = 'zone', overrides = '{values}'")
    remedy = find_finding(find_problems(dsn), "error schedules_stopped").remedy
    run_commands(dsn, f"{remedy.partition(' changes')[0]} --zone Europe/Berlin")

    assert is_gone(dsn, "schedules_stopped")


def test_any_worker_process_fires_what_is_late(dsn):
    execute_sql(dsn, ADD_SCHEDULE, "UPDATE dl_schedules SET next_at = now() - interval '1 hour'")
    assert find_finding(find_problems(dsn), "error schedules_late").remedy.startswith("dataloader worker")
    session = Session(dsn, application_name="worker")
    SchedulesDuty(
        session, Pipelines(), zone="UTC", default_lease_sec=60, record_firing=lambda _schedule, _outcome: None
    ).run()
    session.close()

    assert is_gone(dsn, "schedules_late")


def test_remedy_of_pooler_is_a_way_past_it(dsn, run_folder):
    with running_pgbouncer(dsn, run_folder) as way:
        assert "DL_WORKER_DSN" in find_finding(find_problems(way), "error pooler").remedy

        assert not [finding for finding in find_problems(way, workers=dsn) if finding.check == "pooler"]
