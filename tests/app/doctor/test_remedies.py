"""Each finding of doctor is provoked, its remedy run as printed, and the finding is gone.

Those about differences from schema.sql are in test_schema_remedies.py.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import psycopg2.extras
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from app.db.connection import Session
from app.db.known_servers import KNOWN_TIMELINES
from app.postgres import EmbeddedServer
from app.postgres.binaries import Choice
from pipelines.contract import Pipelines
from tests.support.api_server import serving
from tests.support.pgbouncer import running_pgbouncer
from tests.support.private_server import copy_data_dir
from tests.support.processes import ROOT, Process
from tests.support.real_service import query_rows
from tests.support.remedies import execute_sql, find_finding, find_problems, is_gone, run_in_this_process, run_remedy
from tests.support.waiting import eventually
from workers.schedules import SchedulesDuty

# Severity and check of what no test provokes or mends, and why.
NOT_RUN = {
    "error server_version": "needs PostgreSQL 14 or older, which has to be replaced",
    "warning clock": "a clock is set by NTP, for the whole machine",
    "error clock": "the same finding, further off",
    "error notification_queue": "the queue has 8 GB; its remedy is that of `transactions`",
    "warning transaction_timeout": "a setting of PostgreSQL 17; its remedy has the form of idle_session_timeout",
    "warning alerts": "an alert ends with its cause, not by a statement",
    "info listeners": "needs dozens of worker processes on one host; its remedy is a setting of theirs",
    "error no_reaper": "its remedy is a setting of worker processes; tests/app/doctor/test_examine.py has the finding",
    "error cells": "findings of cells are of other services; tests/app/doctor/test_cells.py has them",
    "error cell_available": "the same",
    "error cell_clocks": "the same",
    "warning cell_clocks": "the same",
    "info cell_maps": "the same",
    "info retention": "tests/system/test_held_retention.py does it",
    "error wraparound": "the same finding as the warning, later",
}
# Calls whose severity or check is an expression, by the expression: what it may be.
VALUES = {
    "name": ("fsync", "full_page_writes"),  # in server.py
    "check": (),  # in examine.py: a look that failed, whose remedy is that of another finding
}


def test_remedies_of_rights_are_grants(dsn):
    role = f"doctor_{os.getpid()}"
    execute_sql(dsn, f"CREATE ROLE {role} LOGIN")
    try:
        execute_sql(
            dsn,
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
            f"REVOKE UPDATE ON dl_jobs FROM {role}; REVOKE DELETE ON dl_bulk FROM {role}",
        )
        theirs = make_dsn(dsn, user=role)
        for what in ("error rights", "warning rights", "info sees_others"):
            run_remedy(dsn, find_finding(find_problems(theirs), what).remedy)
        for _ in range(60):  # one right may hide the next
            findings = [f for f in find_problems(theirs) if f.check in ("rights", "sees_others")]
            findings = [f for f in findings if "the check failed" not in f.message]
            if not findings:
                break
            for finding in findings:
                run_remedy(dsn, finding.remedy)
        assert is_gone(theirs, "rights")
        assert is_gone(theirs, "sees_others")
    finally:
        execute_sql(dsn, f"DROP OWNED BY {role}; DROP ROLE {role}")


@contextmanager
def copied(run_folder: Path, ready_made: Path, binaries: Choice, *, standby: bool = False) -> Iterator[str]:
    """A server of a test's own, whose command line leaves the settings to ALTER SYSTEM."""
    folder = copy_data_dir(ready_made, Path(tempfile.mkdtemp(prefix="bare-", dir=run_folder)))
    settings = {"max_prepared_transactions": "2", "max_connections": "200", "shared_buffers": "64MB"}
    if standby:
        signal_file = folder / "cluster/standby.signal"
        signal_file.touch()
        owner = (folder / "cluster/PG_VERSION").stat()
        os.chown(signal_file, owner.st_uid, owner.st_gid)
    with EmbeddedServer(folder, binaries=binaries, settings=settings) as server:
        yield server.dsn
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def bare_server(run_folder: Path, ready_made: Path, postgres_binaries: Choice) -> Iterator[str]:
    with copied(run_folder, ready_made, postgres_binaries) as dsn:
        yield dsn


# The harm comes to a database and a role, as which doctor looks.
ROLE_SETTINGS = [
    ("warning synchronous_commit", "ALTER ROLE {role} SET synchronous_commit = off"),
    ("error writable", "ALTER DATABASE {database} SET default_transaction_read_only = on"),
    ("error idle_session_timeout", "ALTER DATABASE {database} SET idle_session_timeout = 60000"),
    ("info idle_in_transaction", "ALTER DATABASE {database} SET idle_in_transaction_session_timeout = 0"),
    ("warning statement_logging", "ALTER DATABASE {database} SET log_statement = 'all'"),
    ("warning statement_logging", "ALTER DATABASE {database} SET log_min_duration_statement = 0"),
    ("warning connections", "ALTER ROLE {role} CONNECTION LIMIT 15"),
    ("warning connections", "ALTER DATABASE {database} CONNECTION LIMIT 15"),
]


@pytest.mark.parametrize(("what", "harm"), ROLE_SETTINGS)
def test_remedy_mends_setting_of_role_or_database(shared_dsn, what, harm):
    role = f"settings_{os.getpid()}"
    database = parse_dsn(shared_dsn)["dbname"]
    theirs, elsewhere = make_dsn(shared_dsn, user=role), make_dsn(shared_dsn, dbname="postgres")
    check = what.split()[1]
    execute_sql(elsewhere, f"CREATE ROLE {role} LOGIN SUPERUSER")
    try:
        execute_sql(elsewhere, f"ALTER DATABASE {database} SET idle_in_transaction_session_timeout = '10min'")
        if check != "synchronous_commit":
            execute_sql(elsewhere, f"ALTER ROLE {role} SET synchronous_commit = on")
            assert is_gone(theirs, check)
        execute_sql(elsewhere, harm.format(role=role, database=database))
        finding = find_finding(find_problems(theirs), what)

        # The database takes no writes of its own any more, and its session is that of the harm.
        run_remedy(elsewhere, finding.remedy)

        assert is_gone(theirs, check), finding
    finally:
        execute_sql(
            elsewhere,
            f"ALTER DATABASE {database} RESET ALL",
            f"ALTER DATABASE {database} CONNECTION LIMIT -1",
            f"DROP ROLE {role}",
        )


@pytest.mark.parametrize("what", ["error fsync", "error full_page_writes", "error autovacuum"])
def test_remedy_mends_setting_of_server(bare_server, what):
    check = what.split()[1]
    execute_sql(bare_server, f"ALTER SYSTEM SET {check} = off", "SELECT pg_reload_conf()")
    eventually(lambda: not is_gone(bare_server, check), message=check)
    finding = find_finding(find_problems(bare_server), what)

    run_remedy(bare_server, finding.remedy)

    eventually(partial(is_gone, bare_server, check), message=finding.remedy)


def test_remedy_of_max_connections_is_a_statement(bare_server):
    finding = find_finding(find_problems(bare_server, api=500), "warning connections")

    run_remedy(bare_server, finding.remedy)

    execute_sql(bare_server, "ALTER SYSTEM RESET max_connections")


def test_remedy_of_standby_promotes_it(run_folder, ready_made, postgres_binaries, monkeypatch):
    monkeypatch.setattr(KNOWN_TIMELINES, "_highest", {})  # other servers of this run are copies of the same cluster
    with copied(run_folder, ready_made, postgres_binaries, standby=True) as dsn:
        remedy = find_finding(find_problems(dsn), "error writable", "is a standby").remedy
        instead, _, statement = remedy.partition(", or ")
        assert instead == "name the primary in DL_DB_DSN"

        run_remedy(dsn, statement)

        assert is_gone(dsn, "writable")
        execute_sql(dsn, "CREATE TABLE written ()")


def test_remedy_of_wraparound_freezes(bare_server, monkeypatch):
    monkeypatch.setattr("app.doctor.server._BILLION", 500)
    execute_sql(bare_server, *["SELECT pg_current_xact_id()"] * 600)
    finding = find_finding(find_problems(bare_server), "warning wraparound")

    run_remedy(bare_server, finding.remedy)

    assert is_gone(bare_server, "wraparound")


def test_remedy_of_transactions_ends_them(bare_server, monkeypatch):
    monkeypatch.setattr("app.doctor.examine.LONG_TRANSACTION_SEC", 0.0)
    found = {
        "report": "warning transactions",
        "dataloader-x": "error transactions",
        "elsewhere": "info transactions",
        "forgotten": "warning transactions",
    }
    with ExitStack() as sessions:
        for name, database in (("report", {}), ("dataloader-x", {}), ("elsewhere", {"dbname": "template1"})):
            session = psycopg2.connect(make_dsn(bare_server, application_name=name, **database))
            sessions.enter_context(closing(session))
            session.cursor().execute("SELECT 1")
        with closing(psycopg2.connect(bare_server)) as other, other.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'")
        for name, what in found.items():
            run_remedy(bare_server, find_finding(find_problems(bare_server), what, name).remedy)
            eventually(partial(is_gone, bare_server, "transactions", name))


def test_remedy_of_bloat_vacuums(bare_server, monkeypatch):
    monkeypatch.setattr("app.doctor.queue._MIN_DEAD_ROWS", 500)
    execute_sql(
        bare_server,
        "ALTER TABLE dl_queues SET (autovacuum_enabled = off)",
        "INSERT INTO dl_queues (queue) SELECT 'q' || n FROM generate_series(1, 600) n",
        "DELETE FROM dl_queues",
    )
    eventually(lambda: not is_gone(bare_server, "bloat", "dl_queues"), message="bloat")

    run_remedy(bare_server, find_finding(find_problems(bare_server), "warning bloat", "dl_queues").remedy)

    eventually(lambda: is_gone(bare_server, "bloat", "dl_queues"))


@contextmanager
def working(dsn: str, folder: Path, command: str = "dataloader worker", **env: str) -> Iterator[Process]:
    """A worker, started by the words of a remedy."""
    words = command.removeprefix("dataloader ").split(";")[0].split()
    given = {"DL_DB_DSN": dsn, "DL_PIPELINES": "pipelines.noop", "DL_REAPER_PERIOD_SEC": "0.2", **env}
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
    with working(dsn, tmp_path, remedy, DL_PIPELINES="pipelines.noop,tests.support.etl"):
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


# ── completeness ────────────────────────────────────────────────────────────────────────────────────────────────────

SEVERITIES = ("error", "warning", "info")


def possible(scope: ast.AST, expression: ast.expr) -> set[str]:
    """The names of constructors, or the texts, that an expression of app/doctor may be."""
    match expression:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp(body=one, orelse=other):
            return possible(scope, one) | possible(scope, other)
        case ast.Name(id="report"):
            given = [
                n.value for n in ast.walk(scope) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "report"
            ]
            return set().union(*(possible(scope, value) for value in given))
        case ast.Name(id=name) if name in SEVERITIES:
            return {name}
    return set(VALUES[ast.unparse(expression)])


def findings_of(path: Path) -> Iterator[str]:
    """Severity and check of each finding that a module may yield."""
    for scope in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(scope, ast.FunctionDef):
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in (*SEVERITIES, "report"):
                    for severity in possible(scope, node.func):
                        yield from (f"{severity} {check}" for check in possible(scope, node.args[0]))


def cases_of(path: Path) -> Iterator[str]:
    """What the tests pick among findings: each text outside of NOT_RUN that has the form of one."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    for part in module.body:
        if not (isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "NOT_RUN"):
            for node in ast.walk(part):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_each_finding_has_a_case_or_a_reason():
    modules = [path for path in (ROOT / "app/doctor").glob("*.py") if path.name != "findings.py"]
    found = {finding for path in modules for finding in findings_of(path)}
    assert len(found) > 35, found
    here = Path(__file__)
    cases = {text for path in (here, here.with_name("test_schema_remedies.py")) for text in cases_of(path)}

    assert found - cases - set(NOT_RUN) == set(), "neither a case nor a reason"
    assert set(NOT_RUN) - found == set(), "reasons of findings that there are not"
    assert set(NOT_RUN) & cases == set(), "reasons of findings that have a case"
