"""Remedies of the server: settings, a standby, transactions and vacuum; each is run, and the finding is gone."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2.extras
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from dataloader.app.db.known_servers import KNOWN_TIMELINES
from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.postgres import EmbeddedServer
from dataloader.app.postgres.binaries import Choice
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.support.databases import execute_sql
from tests.support.private_server import copy_data_dir
from tests.support.remedies import find_finding, find_problems, is_gone, run_remedy
from tests.support.standby import primary_and_standby
from tests.support.waiting import eventually


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


@pytest.mark.superuser("remedies of roles and databases, among them parameters that only a superuser sets")
@pytest.mark.parametrize(("what", "harm"), ROLE_SETTINGS)
def test_remedy_mends_setting_of_role_or_database(shared_dsn, superuser, what, harm):
    role = f"settings_{os.getpid()}"
    database = parse_dsn(shared_dsn)["dbname"]
    theirs = make_dsn(superuser(shared_dsn), user=role)
    elsewhere = make_dsn(superuser(shared_dsn), dbname="postgres")
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


def read_status(dsn: str) -> dict[str, Any]:
    pool = Pool(dsn)
    try:
        client: Any = create_app(JobQueue(pool), Pipelines(), WebOptions(version="1"), pool=pool).test_client()
        status: dict[str, Any] = client.get("/status").json
    finally:
        pool.close()
    return status


def test_remedy_of_commits_without_standby_lets_them_through(run_folder, postgres_binaries):
    """A promoted standby keeps `synchronous_standby_names` of its primary."""
    with primary_and_standby(run_folder, postgres_binaries) as pair:
        pair.primary.kill()
        pair.standby.promote()
        pair.standby.query("ALTER SYSTEM SET synchronous_standby_names = '*'")
        pair.standby.query("SELECT pg_reload_conf()")
        dsn = pair.standby.dsn
        writer = threading.Thread(target=execute_sql, args=(dsn, "INSERT INTO dl_queues (queue) VALUES ('etl.new')"))
        writer.start()
        found = eventually(lambda: [f for f in find_problems(dsn) if f.check == "synchronous_standby"])

        finding = find_finding(found, "error synchronous_standby", "commits wait for a standby that is not there")
        status = read_status(dsn)
        assert not status["ready"]
        assert "commits wait for a standby" in status["database"]["detail"]
        run_remedy(dsn, finding.remedy)
        writer.join(30)
        assert is_gone(dsn, "synchronous_standby")
        assert read_status(dsn)["ready"]


def test_remedy_of_standby_promotes_it(run_folder, ready_made, postgres_binaries, monkeypatch):
    monkeypatch.setattr(KNOWN_TIMELINES, "_highest", {})  # other servers of this run are copies of the same cluster
    with copied(run_folder, ready_made, postgres_binaries, standby=True) as dsn:
        remedy = find_finding(find_problems(dsn), "error writable", "is a standby").remedy
        instead, _, statement = remedy.partition(", or ")
        assert instead == "name the primary in DL_DB_DSN"
        status = read_status(dsn)
        assert (status["ready"], status["database"]["detail"]) == (False, "the server takes no writes: it is a standby")

        run_remedy(dsn, statement)

        assert is_gone(dsn, "writable")
        execute_sql(dsn, "CREATE TABLE written ()")


def test_remedy_of_wraparound_freezes(bare_server, monkeypatch):
    monkeypatch.setattr("dataloader.app.features.doctor.server._BILLION", 500)
    execute_sql(bare_server, *["SELECT pg_current_xact_id()"] * 600)
    finding = find_finding(find_problems(bare_server), "warning wraparound")

    run_remedy(bare_server, finding.remedy)

    assert is_gone(bare_server, "wraparound")


def test_remedy_of_transactions_ends_them(bare_server, monkeypatch):
    monkeypatch.setattr("dataloader.app.features.doctor.examine.LONG_TRANSACTION_SEC", 0.0)
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


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE dl_jobs SET priority = 1 WHERE status = 'running'", "jobs that it has changed or locked"),
        ("SELECT FROM dl_jobs FOR UPDATE", "jobs that it has changed or locked"),
        ("LOCK TABLE dl_jobs IN SHARE MODE", "the table of jobs"),
    ],
)
def test_remedy_of_locks_ends_their_session(bare_server, monkeypatch, statement, what):
    monkeypatch.setattr("dataloader.app.features.doctor.examine.LONG_LOCK_SEC", 0.0)
    assert is_gone(bare_server, "locks")
    with closing(psycopg2.connect(make_dsn(bare_server, application_name="console"))) as session:
        session.cursor().execute(statement)
        finding = find_finding(
            find_problems(bare_server), "warning locks", f"console (pid {session.info.backend_pid}, "
        )
        assert f"has had a lock on {what}" in finding.message

        run_remedy(bare_server, finding.remedy)

        eventually(partial(is_gone, bare_server, "locks"))


def test_remedy_of_bloat_vacuums(bare_server, monkeypatch):
    monkeypatch.setattr("dataloader.app.features.doctor.queue._MIN_DEAD_ROWS", 500)
    execute_sql(
        bare_server,
        "ALTER TABLE dl_queues SET (autovacuum_enabled = off)",
        "INSERT INTO dl_queues (queue) SELECT 'q' || n FROM generate_series(1, 600) n",
        "DELETE FROM dl_queues",
    )
    eventually(lambda: not is_gone(bare_server, "bloat", "dl_queues"), message="bloat")

    run_remedy(bare_server, find_finding(find_problems(bare_server), "warning bloat", "dl_queues").remedy)

    eventually(lambda: is_gone(bare_server, "bloat", "dl_queues"))
