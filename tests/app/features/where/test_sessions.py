"""The SQL of a running job: what its sessions do, and who blocks them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.features.where.sessions import job_of_session, show_statement
from tests.app.features.where.conftest import WhereFixture, isolated
from tests.support import free_port
from tests.support.databases import another_role, execute_sql
from tests.support.queue_fixture import BackgroundCall
from tests.support.waiting import eventually

UPDATE = "UPDATE sales SET amount = 2 WHERE id = 1"


@contextmanager
def open_transaction(dsn: str, statement: str, name: str = "psql") -> Iterator[Any]:
    with closing(psycopg2.connect(dsn, application_name=name)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        yield connection
        connection.rollback()


def sessions_of(answer: dict[str, Any], server: str) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in answer["servers"] if entry["server"] == server)
    return found


def is_blocked(answer: dict[str, Any]) -> bool:
    return any(session["waits_for"] for server in answer["servers"] for session in server["sessions"])


def test_statement_on_the_queue_server_has_state_and_wait(where: WhereFixture):
    job_id = where.start("query", statement="SELECT pg_sleep(0), 'hidden' AS \"it's\", pg_sleep(600)")

    answer = where.locate_until(job_id, lambda found: sessions_of(found, "queue server")["sessions"])

    (session,) = sessions_of(answer, "queue server")["sessions"]
    assert (session["state"], session["visible"], session["waits_for"]) == ("active", True, [])
    assert (session["wait_event_type"], session["wait_event"]) == ("Timeout", "PgSleep")
    assert session["statement"] == "SELECT pg_sleep(0), '…' AS \"it's\", pg_sleep(600)"
    assert 0 <= session["state_sec"] < 60
    answer = where.locate_at(job_id, "query")
    assert "query in support/where_tasks.py:" in answer["summary"]
    assert "a statement has run for " in answer["summary"]
    assert ", and waits for Timeout: PgSleep." in answer["summary"]
    execute_sql(where.pools.dsn, f"SELECT pg_terminate_backend({session['pid']})")


def test_lock_in_a_target_names_its_holder(where: WhereFixture, target_dsn: str):
    where.targets["warehouse"] = target_dsn
    with open_transaction(target_dsn, UPDATE):
        job_id = where.start("query", statement=UPDATE, target="warehouse")
        answer = where.locate_until(job_id, is_blocked)

    found = sessions_of(answer, "warehouse")
    (session,), (blocker,) = found["sessions"], found["blockers"]
    assert (session["wait_event_type"], session["lock_on"], session["statement"]) == ("Lock", "sales", UPDATE)
    assert session["waits_for"] == [blocker["pid"]]
    assert (blocker["application_name"], blocker["root"], blocker["job_id"]) == ("psql", True, None)
    assert (blocker["state"], blocker["waits_for"]) == ("idle in transaction", [])
    assert (blocker["user"], blocker["database"]) == (session["user"], session["database"])
    sentence = r": a statement in target 'warehouse' has waited [\d ms]+ for a lock on sales, held by pid \d+ \(psql, "
    assert re.search(sentence, answer["summary"]), answer["summary"]
    assert sessions_of(answer, "queue server")["sessions"] == []  # both are databases of one server


def test_own_connection_of_a_process_is_found_in_a_target(where: WhereFixture, target_dsn: str):
    where.targets["warehouse"] = target_dsn
    job_id = where.start("where.queries", isolated("where.queries"), dsn=target_dsn, statement="SELECT pg_sleep(600)")

    answer = where.locate_until(job_id, lambda found: sessions_of(found, "warehouse")["sessions"])

    (session,) = sessions_of(answer, "warehouse")["sessions"]
    assert (session["state"], session["wait_event"]) == ("active", "PgSleep")
    answer = where.locate_at(job_id, "query_apart")
    assert re.search(r"^query_apart in .*: a statement in target 'warehouse' has run for ", answer["summary"])
    execute_sql(target_dsn, f"SELECT pg_terminate_backend({session['pid']})")


def test_chain_of_blockers_leads_to_its_root_and_its_job(where: WhereFixture, target_dsn: str):
    where.targets["warehouse"] = target_dsn
    other_job = uuid4()
    middle_name = f"dataloader:{other_job}:0a1b2c3d"
    with (
        open_transaction(target_dsn, UPDATE, "root") as root,
        closing(psycopg2.connect(target_dsn, application_name=middle_name)) as middle,
    ):
        middle.cursor().execute("LOCK TABLE sales IN ROW EXCLUSIVE MODE")
        call = BackgroundCall(middle.cursor().execute, UPDATE)
        job_id = where.start("query", statement="LOCK TABLE sales IN SHARE MODE", target="warehouse")
        answer = where.locate_until(
            job_id, lambda found: any(b["waits_for"] for b in sessions_of(found, "warehouse")["blockers"])
        )
        root.rollback()
        call.result()
        middle.rollback()

    blockers = sessions_of(answer, "warehouse")["blockers"]
    roots = [(b["application_name"], b["waits_for"]) for b in blockers if b["root"]]
    (waiting,) = [b for b in blockers if not b["root"]]
    assert roots == [("root", [])]
    assert (waiting["job_id"], waiting["application_name"]) == (str(other_job), middle_name)
    assert waiting["waits_for"] == [next(b["pid"] for b in blockers if b["root"])]


def test_long_queue_of_waiters_still_names_the_root(where: WhereFixture, target_dsn: str):
    where.targets["warehouse"] = target_dsn
    with open_transaction(target_dsn, "LOCK TABLE sales IN ACCESS EXCLUSIVE MODE", "root") as root:
        waiters = [psycopg2.connect(target_dsn, application_name="waiter") for _ in range(25)]
        calls = [BackgroundCall(w.cursor().execute, "LOCK TABLE sales IN EXCLUSIVE MODE") for w in waiters]
        count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'waiter'"
        eventually(lambda: where.pools.queue_fixture.fetch_row(count) == 25, message="all wait")
        job_id = where.start("query", statement=UPDATE, target="warehouse")
        answer = where.locate_until(job_id, is_blocked)
        execute_sql(
            target_dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'waiter'"
        )
        root.rollback()
    for call in calls:
        with pytest.raises(psycopg2.Error):
            call.result()

    blockers = sessions_of(answer, "warehouse")["blockers"]
    assert (blockers[0]["application_name"], blockers[0]["root"]) == ("root", True)
    assert len(blockers) == 20
    assert "held by pid" in answer["summary"]


def test_target_that_cannot_be_reached_says_so(where: WhereFixture):
    where.targets["gone"] = f"host=127.0.0.1 port={free_port()} user=x dbname=x password=hidden"
    job_id = where.start("stay")

    answer = where.locate_at(job_id, "wait_for")

    found = sessions_of(answer, "gone")
    assert "refused" in found["problem"]
    assert (found["sessions"], found["blockers"]) == ([], [])
    assert "hidden" not in str(answer)


def test_role_that_sees_no_statements_says_so(where: WhereFixture, target_dsn: str):
    with another_role(target_dsn) as role:
        execute_sql(target_dsn, f"GRANT ALL ON sales TO {role}")
        where.targets["warehouse"] = target_dsn
        with open_transaction(target_dsn, UPDATE):
            job_id = where.start("query", statement=UPDATE, target="warehouse")
            where.locate_until(job_id, is_blocked)
            where.targets["warehouse"] = make_dsn(target_dsn, user=role, password="x")
            where.forget_client()
            answer = where.locate_until(job_id, is_blocked)

    found = sessions_of(answer, "warehouse")
    (session,), (blocker,) = found["sessions"], found["blockers"]
    assert (session["visible"], session["statement"], session["state"]) == (False, None, None)
    assert session["waits_for"] == [blocker["pid"]]
    assert (blocker["application_name"], blocker["state"]) == ("psql", None)
    assert "pg_read_all_stats" in found["problem"]


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("SELECT 'a''b', 1", "SELECT '…', 1"),
        ("SELECT E'it\\'s', 'x\\', 'y'", "SELECT '…', '…', '…'"),
        ("SELECT \"it's\" /* it's */, 'x' -- it's\n, 'y'", "SELECT \"it's\" /* it's */, '…' -- it's , '…'"),
        ("DO $x$ BEGIN PERFORM 'a' $$ ; END $x$; SELECT 'b'", "DO $$…$$; SELECT '…'"),
        ("SELECT 'cut in the mid", "SELECT '…'"),
        ("SELECT E'cut\\", "SELECT '…'"),
        ("SELECT $$cut", "SELECT $$…$$"),
        ("SELECT ''", "SELECT ''"),
        ("SELECT $1, abc$2", "SELECT $1, abc$2"),
        ("CREATE USER x PASSWORD 'hidden'", "CREATE USER x PASSWORD '…'"),
        ("-- postgresql://me:hidden@host/db\nSELECT 1", "-- postgresql://me:***@host/db SELECT 1"),
    ],
)
def test_statement_is_shown_without_text_constants(query: str, shown: str):
    assert show_statement(query) == shown


def test_long_statement_is_cut():
    assert len(show_statement("SELECT " + "x, " * 1000)) == 500


def test_session_name_names_its_job():
    job = UUID("01a203c7-2f01-7d54-b34b-0044f8554f3a")

    assert job_of_session(f"dataloader:{job}:0a1b2c3d") == job
    assert job_of_session(f"dataloader:{job}:0a1b2c3d own:name") == job
    assert [job_of_session(name) for name in (None, "", "psql", "dataloader:x:y", f"dataloader:{job}")] == [None] * 5
