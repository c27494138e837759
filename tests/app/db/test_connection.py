"""A connection of one's own: it answers or raises, in time, and opens itself again."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from dataloader.app.db import connection
from dataloader.app.db.connection import Session
from dataloader.app.db.statements import parse_statements, statements
from dataloader.app.errors import DatabaseUnavailable, InvalidJob
from dataloader.app.queue.claims import ClaimRequest
from dataloader.app.queue.job import SUCCEEDED, NewJob, Released, ReleaseReason, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.parameters import release_parameters
from tests.support import answer_of, eventually, free_port
from tests.support.claimed_jobs import claimed_job
from tests.support.proxy import SilentProxy
from tests.support.queue_fixture import BackgroundCall

GENEROUS = 15.0  # seconds in which something that gives up after less than one must have given up


def backend(session: Session) -> int:
    return int(session.execute_raw("SELECT pg_backend_pid()")[0][0])


@pytest.fixture
def session(queue_db):
    return queue_db.new_session()


def test_it_connects_when_it_is_asked_first(queue_db, session):
    assert (session.connected, session.generation, session.fileno()) == (False, 0, None)

    session.execute("ping")

    assert (session.connected, session.generation) == (True, 1)
    assert session.fileno() is not None


def test_server_is_to_notice_that_the_client_is_gone(session):
    """Else a session that was cut off keeps its locks for two hours. A Unix socket has no such values to show."""
    (row,) = session.execute_raw("SELECT array_agg(source) FROM pg_settings WHERE name LIKE 'tcp\\_%'")
    assert row == (["session"] * 4,)


def test_ended_connection_fails_once_and_reopens(queue_db, session):
    first = backend(session)
    queue_db.sql("SELECT pg_terminate_backend(%s)", first)
    eventually(lambda: not queue_db.sql("SELECT FROM pg_stat_activity WHERE pid = %s", first))

    with pytest.raises(DatabaseUnavailable):
        session.execute("ping")

    assert session.execute("ping") == [(1,)]
    assert session.generation == 2
    assert backend(session) != first


def test_command_on_broken_connection_raises_alike(queue_db, session):
    queue_db.sql("SELECT pg_terminate_backend(%s)", backend(session))

    with pytest.raises(DatabaseUnavailable):
        eventually(lambda: session.execute_raw("SELECT 1") and False)

    assert session.execute_raw("SELECT 1") == [(1,)]


def test_notifications_are_returned_and_lost_connection_raises(queue_db, session):
    with pytest.raises(DatabaseUnavailable, match="not connected"):
        session.read_notifications()
    session.execute_raw("LISTEN dl_jobs")
    queue_db.enqueue(queue="etl")

    assert eventually(session.read_notifications) == [("dl_jobs", "etl")]

    queue_db.sql("SELECT pg_terminate_backend(%s)", backend(session))
    with pytest.raises(DatabaseUnavailable):
        eventually(session.read_notifications)
    assert not session.connected


def test_statement_timeout_ends_slow_statement(queue_db):
    session = queue_db.new_session(command_timeout_sec=0.3)
    began = time.monotonic()

    with pytest.raises(DatabaseUnavailable):
        session.execute_raw("SELECT pg_sleep(60)")

    assert time.monotonic() - began < GENEROUS
    assert answer_of(lambda: session.execute("ping")) == [(1,)]


def test_a_server_that_falls_silent_is_given_up_in_time(queue_db):
    with SilentProxy(queue_db.dsn) as proxy:
        session = Session(proxy.dsn, application_name="silent", connect_timeout_sec=0.4, command_timeout_sec=0.4)
        assert answer_of(lambda: session.execute("ping")) == [(1,)]
        proxy.silence()

        for _ in range(2):  # during a statement, and while connecting
            began = time.monotonic()
            with pytest.raises(DatabaseUnavailable, match="did not answer in time"):
                session.execute("ping")
            assert time.monotonic() - began < GENEROUS
            assert not session.connected

        proxy.resume()
        assert answer_of(lambda: session.execute("ping")) == [(1,)]
        session.close()


def test_of_several_hosts_a_silent_one_is_passed_over(queue_db):
    given = parse_dsn(queue_db.dsn)
    with SilentProxy(queue_db.dsn) as proxy:
        proxy.silence()
        hosts = {
            "host": f"127.0.0.1,127.0.0.1,{given['host']}",
            "port": f"{proxy.port},{free_port()},{given.get('port', '5432')}",
        }
        dsn = make_dsn(**{**given, **hosts})
        session = Session(dsn, application_name="hosts", connect_timeout_sec=0.5)

        assert session.execute("ping") == [(1,)]
        session.close()


def test_database_without_server_is_unavailable():
    session = Session(f"host=127.0.0.1 port={free_port()} dbname=x", application_name="nobody")

    with pytest.raises(DatabaseUnavailable):
        session.execute("ping")
    assert not session.connected


def test_a_standby_is_refused_until_it_takes_writes(own_queue_db):
    queue_db = own_queue_db
    queue_db.session.execute("ping")
    name = queue_db.fetch_row("SELECT current_database()")
    queue_db.sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    fresh = queue_db.new_session()

    with pytest.raises(DatabaseUnavailable, match="takes no writes"):
        fresh.execute("ping")
    queue_db.session.execute_raw("SET default_transaction_read_only = on")
    with pytest.raises(DatabaseUnavailable, match="read-only"):
        queue_db.enqueue()
    with pytest.raises(DatabaseUnavailable, match="takes no writes"):  # it was dropped, to find the new primary
        queue_db.enqueue()

    queue_db.sql(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    assert fresh.execute("ping") == [(1,)]
    queue_db.enqueue()


@pytest.mark.parametrize("command", ["DEALLOCATE ALL", "ALTER TABLE dl_jobs ALTER COLUMN traceback TYPE varchar"])
def test_stale_prepared_statement_is_prepared_again(own_queue_db, command):
    job_id = own_queue_db.enqueue()
    own_queue_db.job(job_id)
    own_queue_db.session.execute_raw(command)

    assert own_queue_db.job(job_id).id == job_id


def test_statement_prepared_by_another_client_is_replaced(own_queue_db):
    job_id = own_queue_db.enqueue()
    own_queue_db.session.execute_raw(f"PREPARE {statements('public')['get_job'].parts[0].name} AS SELECT 2")

    assert own_queue_db.job(job_id).id == job_id


def test_a_refused_value_leaves_the_connection_as_it_was(queue_db):
    queue_db.queue.ping()
    generation = queue_db.session.generation

    for _ in range(3):
        with pytest.raises(InvalidJob):
            queue_db.enqueue(priority=-1)

    assert queue_db.session.generation == generation
    assert queue_db.session_count("state LIKE 'idle in transaction%'") == 0


def test_statement_of_several_parts_is_atomic(queue_db):
    run = queue_db.enqueue_and_claim("k")
    released = release_parameters([(run, Released(ReleaseReason.WAITS))], max_result_bytes=100)

    with pytest.raises(InvalidJob):
        queue_db.session.execute("release_for_offloads", released | {"offloads": "no array"})

    assert queue_db.status(run.id) == "running"
    queue_db.settle(run)


def test_threads_may_share_it_one_at_a_time(queue_db, session):
    queue = JobQueue(session)
    asking = [BackgroundCall(queue.enqueue, NewJob(queue="q", task="t", lock_key=str(n))) for n in range(12)]

    assert len({one.result().job_id for one in asking}) == 12


def test_statements_have_schema_and_ordered_parameters():
    found = statements('a "b')
    lock_keys = found["lock_keys"].parts[0]

    assert not [name for name, one in found.items() if re.search(r"\b(FROM|JOIN|INTO|UPDATE) dl_", one.text)]
    assert '"a ""b".dl_jobs' in lock_keys.text
    assert lock_keys.parameters == ("job_ids", "run_ids", "key_hashes")
    assert "$2" in lock_keys.prepare
    assert lock_keys.execute == f"EXECUTE {lock_keys.name}(%(job_ids)s, %(run_ids)s, %(key_hashes)s)"


def test_comments_and_notes_of_channels_are_left_alone():
    one = parse_statements("-- name: one\n-- about dl_jobs\nSELECT 'dl_jobs', a -- why\n  FROM dl_jobs;\n", "s")["one"]

    assert one.text == "SELECT 'dl_jobs', a\n  FROM \"s\".dl_jobs"
    assert one.execute == f"EXECUTE {one.parts[0].name}"


def test_statements_include_the_definitions_of_their_file():
    text = (
        "-- define: columns\n       a, b\n\n-- name: read\nSELECT\n       -- include: columns\n  FROM dl_jobs;\n\n"
        "-- name: make\nINSERT INTO dl_jobs (a) VALUES (1) RETURNING\n       -- include: columns;\n"
    )
    read, make = (" ".join(statement.text.split()) for statement in parse_statements(text, "s").values())

    assert read == 'SELECT a, b FROM "s".dl_jobs'
    assert make == 'INSERT INTO "s".dl_jobs (a) VALUES (1) RETURNING a, b'
    with pytest.raises(KeyError, match="unknown"):
        parse_statements("-- name: read\nSELECT\n       -- include: unknown\n", "s")


def test_statement_with_the_comment_below_its_name_is_prepared():
    text = (
        "-- name: a\n-- prepared\nSELECT 1;\n-- name: b\n-- not prepared\nSELECT 2;\n-- name: c = a + b\n-- prepared\n"
    )

    prepared = [name for name, statement in parse_statements(text, "s").items() if statement.is_prepared]
    assert prepared == ["a", "c"]
    assert statements("public")["prefetch"].is_prepared


def test_each_such_comment_prepares_a_statement():
    texts = [path.read_text(encoding="utf-8") for path in (Path(__file__).parents[3] / "app").rglob("*.sql")]
    comments = [
        line for text in texts for line in text.splitlines() if re.fullmatch(r"-- *prepared\W*", line, re.IGNORECASE)
    ]

    assert len(comments) == sum(statement.is_prepared for statement in statements("public").values()) > 20


def test_only_statements_of_every_job_are_prepared(own_queue_db):
    own_queue_db.enqueue("one")
    own_queue_db.enqueue("other")
    session = own_queue_db.new_session()
    session.execute("ping")

    for promote_due in (False, True):
        claimed, _ = JobQueue(session).claim("q", ["t"], new_run_ids(1), "w", ClaimRequest(promote_due=promote_due))
        assert len(claimed) == 1

    prepared = {row[0] for row in session.execute_raw("SELECT name FROM pg_prepared_statements")}
    assert prepared == {part.name for part in statements("public")["claim"].parts}
    assert session.execute_raw("SELECT DISTINCT generic_plans > 0 FROM pg_prepared_statements") == [(True,)]


def settle_all(session: Session, count: int) -> float:
    """Claim and settle so many jobs; return the seconds it took."""
    began, queue = time.monotonic(), JobQueue(session)
    claimed, _ = queue.claim("q", ["t"], new_run_ids(count), "w")
    assert len(claimed) == count
    queue.settle([(job, SUCCEEDED) for job in claimed])
    return time.monotonic() - began


@pytest.mark.parametrize("analyzed", [False, True])
def test_plan_of_empty_table_does_not_stay_slow(own_queue_db, monkeypatch, analyzed):
    own_queue_db.sql("ALTER TABLE dl_jobs SET (autovacuum_enabled = off)")
    if analyzed:
        own_queue_db.sql("VACUUM ANALYZE dl_jobs")  # the statistics say that there are no jobs, and stay
    session = own_queue_db.new_session()
    queue = JobQueue(session)
    queue.claim("q", ["t"], new_run_ids(1), "w")
    queue.settle([(claimed_job(), SUCCEEDED)])
    own_queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'q', 't', 'k' || n FROM generate_series(1, 20000) n"
    )
    fresh_sec = settle_all(own_queue_db.new_session(), 200)

    if analyzed:
        monkeypatch.setattr(connection, "_PLAN_LIFETIME_SEC", 0.0)  # a minute and many statements later
        monkeypatch.setattr(connection, "_FEW_EXECUTIONS", 0)
    settle_all(session, 1)

    assert settle_all(session, 200) < 3 * fresh_sec + 0.05
