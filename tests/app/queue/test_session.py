"""A connection of one's own: it answers or raises, in time, and opens itself again."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from app.errors import DatabaseUnavailable, InvalidJob
from app.queue.ids import draw_run_texts
from app.queue.job import NewJob
from app.queue.jobqueue import FRONT, JobQueue
from app.queue.session import Session, Wire
from app.queue.statements import read, statements
from tests.support import eventually, free_port
from tests.support.desk import Aside
from tests.support.proxy import SilentProxy

GENEROUS = 15.0  # seconds in which something that gives up after less than one must have given up


def backend(session: Session) -> int:
    return int(session.command("SELECT pg_backend_pid()")[0][0])


@pytest.fixture
def session(desk):
    return desk.another_session()


def test_it_connects_when_it_is_asked_first(desk, session):
    assert (session.connected, session.generation, session.fileno()) == (False, 0, None)
    session.cut()  # there is nothing to cut

    session.ask("ping")

    assert (session.connected, session.generation) == (True, 1)
    assert session.fileno() is not None


def test_a_connection_that_was_ended_is_told_once_and_opened_again(desk, session):
    first = backend(session)
    desk.sql("SELECT pg_terminate_backend(%s)", first)
    eventually(lambda: not desk.sql("SELECT FROM pg_stat_activity WHERE pid = %s", first))

    with pytest.raises(DatabaseUnavailable):
        session.ask("ping")

    assert session.ask("ping") == [(1,)]
    assert session.generation == 2
    assert backend(session) != first


def test_a_command_on_a_broken_connection_is_told_likewise(desk, session):
    desk.sql("SELECT pg_terminate_backend(%s)", backend(session))

    with pytest.raises(DatabaseUnavailable):
        eventually(lambda: session.command("SELECT 1") and False)

    assert session.command("SELECT 1") == [(1,)]


def test_what_listen_has_brought_is_told_and_a_lost_one_raises(desk, session):
    with pytest.raises(DatabaseUnavailable, match="not connected"):
        session.notifications()
    session.command("LISTEN dl_jobs")
    desk.enqueue(queue="etl")

    assert eventually(session.notifications) == [("dl_jobs", "etl")]

    desk.sql("SELECT pg_terminate_backend(%s)", backend(session))
    with pytest.raises(DatabaseUnavailable):
        eventually(session.notifications)
    assert not session.connected


def test_cutting_it_wakes_whoever_waits(desk, session):
    session.ask("ping")
    asking = Aside(session.command, "SELECT pg_sleep(60)")
    eventually(lambda: desk.sessions("wait_event = 'PgSleep'") == 1)

    session.cut()

    with pytest.raises(DatabaseUnavailable):
        asking.result(GENEROUS)
    assert session.ask("ping") == [(1,)]


def test_a_statement_that_takes_too_long_is_ended_by_the_server_or_by_us(desk):
    session = desk.another_session(command_timeout=0.3)
    began = time.monotonic()

    with pytest.raises(DatabaseUnavailable):
        session.command("SELECT pg_sleep(60)")

    assert time.monotonic() - began < GENEROUS
    assert session.ask("ping") == [(1,)]


def test_a_server_that_falls_silent_is_given_up_in_time(desk):
    with SilentProxy(desk.dsn) as proxy:
        session = Session(proxy.dsn, name="silent", connect_timeout=0.4, command_timeout=0.4)
        assert session.ask("ping") == [(1,)]
        proxy.silence()

        for _ in range(2):  # in the midst of a question, and while connecting
            began = time.monotonic()
            with pytest.raises(DatabaseUnavailable, match="did not answer in time"):
                session.ask("ping")
            assert time.monotonic() - began < GENEROUS
            assert not session.connected

        proxy.speak()
        assert session.ask("ping") == [(1,)]
        session.close()


def test_of_several_hosts_a_silent_one_is_passed_over(desk):
    given = parse_dsn(desk.dsn)
    with SilentProxy(desk.dsn) as proxy:
        proxy.silence()
        hosts = {
            "host": f"127.0.0.1,127.0.0.1,{given['host']}",
            "port": f"{proxy.port},{free_port()},{given.get('port', '5432')}",
        }
        dsn = make_dsn(**{**given, **hosts})
        session = Session(dsn, name="hosts", connect_timeout=0.5)

        assert session.ask("ping") == [(1,)]
        session.close()


def test_where_nobody_listens_the_database_is_unavailable():
    session = Session(f"host=127.0.0.1 port={free_port()} dbname=x", name="nobody")

    with pytest.raises(DatabaseUnavailable):
        session.ask("ping")
    assert not session.connected


def test_a_standby_is_refused_until_it_takes_writes(own_desk):
    desk = own_desk
    desk.session.ask("ping")
    name = desk.one("SELECT current_database()")
    desk.sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    fresh = desk.another_session()

    with pytest.raises(DatabaseUnavailable, match="takes no writes"):
        fresh.ask("ping")
    desk.session.command("SET default_transaction_read_only = on")
    with pytest.raises(DatabaseUnavailable, match="read-only"):
        desk.enqueue()
    with pytest.raises(DatabaseUnavailable, match="takes no writes"):  # it was dropped, to find the new primary
        desk.enqueue()

    desk.sql(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    assert fresh.ask("ping") == [(1,)]
    desk.enqueue()


@pytest.mark.parametrize(
    "spoil",
    [
        "DEALLOCATE ALL",
        "PREPARE dl_ping_0 AS SELECT 2",
        "ALTER TABLE dl_jobs ALTER COLUMN consumer_group TYPE varchar(100)",
    ],
)
def test_a_prepared_statement_that_is_out_of_date_is_made_anew_unnoticed(own_desk, spoil):
    desk = own_desk
    job_id = desk.enqueue()
    desk.job(job_id)
    desk.session.command(spoil)

    assert desk.job(job_id).id == job_id
    assert desk.queue.ping() > 0


def test_a_refused_value_leaves_the_connection_as_it_was(desk):
    desk.queue.ping()
    generation = desk.session.generation

    for _ in range(3):
        with pytest.raises(InvalidJob):
            desk.enqueue(priority=-1)

    assert desk.session.generation == generation
    assert desk.sessions("state LIKE 'idle in transaction%'") == 0


def test_a_statement_of_several_parts_takes_effect_whole_or_not_at_all(desk):
    desk.make_due(desk.insert("due", available_at="2999-01-01"))
    bad = {"queue": "q", "tasks": "{t}", "most": 1, "look": 1, "run_ids": "{not a uuid}", "worker": "w", "guard": False}
    bad |= {"after": FRONT, "min_lease_sec": 1, "worker_id": None}

    with pytest.raises(InvalidJob):
        desk.session.ask("claim_due", bad)

    assert desk.one("SELECT place FROM dl_jobs") == "timed"
    assert len(desk.claim()) == 1


def test_threads_may_share_it_one_at_a_time(desk, session):
    queue = JobQueue(session)
    asking = [Aside(queue.enqueue, NewJob(queue="q", task="t", lock_key=str(n))) for n in range(12)]

    assert len({one.result().job_id for one in asking}) == 12


def test_every_statement_names_its_tables_with_the_schema_and_its_parameters_in_order():
    found = statements('a "b')
    claim = found["claim"].parts[0]

    assert not [name for name, one in found.items() if re.search(r"\b(FROM|JOIN|INTO|UPDATE) dl_", one.text)]
    assert '"a ""b".dl_jobs' in claim.text
    assert claim.parameters == ("queue", "tasks", "after", "worker_id", "look")
    assert "$2" in claim.prepare("x")
    assert claim.execute("x") == "EXECUTE x(%(queue)s, %(tasks)s, %(after)s, %(worker_id)s, %(look)s)"


def test_comments_and_notes_of_channels_are_left_alone():
    one = read("-- name: one\n-- about dl_jobs\nSELECT 'dl_jobs', a -- why\n  FROM dl_jobs;\n", "s")["one"]

    assert one.text == "SELECT 'dl_jobs', a\n  FROM \"s\".dl_jobs"
    assert one.execute == "EXECUTE dl_one_0"


def prepared(session: Session) -> set[str]:
    return {row[0] for row in session.command("SELECT name FROM pg_prepared_statements")}


PARTS = {"dl_sort_in_0", "dl_claim_0", "dl_claim_1", "dl_settle_0", "dl_settle_1"}


@pytest.fixture
def forward(own_desk):
    return own_desk.another_session(plans_kept=True, ahead=("claim_due", "settle"), command_timeout=120.0)


def test_what_is_to_be_planned_ahead_is_planned_when_the_connection_is_there(own_desk, forward):
    forward.command("SELECT 1")

    assert prepared(forward) == PARTS
    assert forward.command("SELECT DISTINCT generic_plans > 0 FROM pg_prepared_statements") == [(True,)]
    assert forward.command("SHOW lock_timeout") == [("0",)]
    assert forward.command("SHOW statement_timeout") == [("2min",)]


def test_statements_have_their_parts_in_common(own_desk, forward):
    own_desk.enqueue("one")
    own_desk.enqueue("other")

    for due in (False, True):
        taken, _ = JobQueue(forward).claim("q", ["t"], draw_run_texts(1), "w", due=due)
        assert len(taken) == 1

    assert prepared(forward) == PARTS
    assert forward.generation == 1


def test_a_statement_that_cannot_be_planned_is_no_matter_to_the_others(own_desk, forward):
    own_desk.sql("ALTER TABLE dl_jobs RENAME COLUMN priority TO urgency")

    assert forward.ask("ping") == [(1,)]
    assert prepared(forward) == {"dl_ping_0"}

    own_desk.sql("ALTER TABLE dl_jobs RENAME COLUMN urgency TO priority")
    own_desk.enqueue()
    assert len(own_desk.look(by=JobQueue(forward))[0]) == 1
    assert forward.generation == 1


def test_plans_that_would_have_to_wait_for_a_lock_are_made_later(own_desk, forward):
    began = time.monotonic()
    with own_desk.connect() as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLE dl_jobs IN ACCESS EXCLUSIVE MODE")
        assert forward.ask("ping") == [(1,)]
    assert time.monotonic() - began < GENEROUS

    own_desk.enqueue()
    assert len(own_desk.look(by=JobQueue(forward))[0]) == 1
    assert forward.generation == 1


def test_a_server_that_falls_silent_at_the_plans_is_given_up_as_one_that_does_not_open(own_desk, monkeypatch):
    with SilentProxy(own_desk.dsn) as proxy:
        session = Session(
            proxy.dsn, name="x", plans_kept=True, ahead=("claim_due",), connect_timeout=0.5, command_timeout=120.0
        )
        really = Wire.ask

        def silent(wire: Wire, sql: str, *rest: Any) -> Any:
            if "EXPLAIN" in sql:
                proxy.silence()
            return really(wire, sql, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(Wire, "ask", silent)
            began = time.monotonic()
            with pytest.raises(DatabaseUnavailable):
                session.ask("ping")
            assert time.monotonic() - began < GENEROUS
            assert not session.connected

        proxy.speak()
        assert session.ask("ping") == [(1,)]
        session.close()
