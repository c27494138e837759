"""Which servers a process refuses: former primaries, and those with another queue."""

from __future__ import annotations

import psycopg2
import pytest

from dataloader.app.db import connection as room
from dataloader.app.db.connection import Session
from dataloader.app.db.known_servers import Queues, Timelines
from dataloader.app.db.pool import Pool
from dataloader.app.errors import DatabaseUnavailable

_REPLACE_QUEUE = "UPDATE public.dl_schema SET applied_at = applied_at + interval '1 day'"


def test_lower_timeline_of_the_same_cluster_is_refused():
    met = Timelines()
    met.check("1", "0000000A")
    met.check("2", "00000001")
    met.check("1", None)  # a standby
    met.check("1", "0000000B")
    met.check("1", "0000000B")

    with pytest.raises(psycopg2.OperationalError, match="on timeline 10, and 11 has begun"):
        met.check("1", "0000000A")


def test_function_without_permission_leaves_timeline_unknown(queue_db, monkeypatch):
    denied = "DO $$ BEGIN RAISE EXCEPTION 'not permitted' USING ERRCODE = '42501'; END $$"
    monkeypatch.setattr(room, "TIMELINE_QUERY", denied)
    session = Session(queue_db.dsn, application_name="denied")

    assert session.execute("ping") == [(1,)]
    session.close()


def test_other_queue_of_the_same_dsn_is_refused():
    met = Queues()
    met.check(("host=a,b", "public"), None)  # no tables yet
    met.check(("host=a,b", "public"), "1")
    met.check(("host=a,b", "public"), "1")
    met.check(("host=a,b", "other"), "2")

    with pytest.raises(psycopg2.OperationalError, match="another queue"):
        met.check(("host=a,b", "public"), "2")


@pytest.mark.parametrize("kind", ["session", "pool"])
def test_server_set_up_again_is_refused_until_restart(kind, own_queue_db, monkeypatch):
    dsn = own_queue_db.dsn
    executor = Session(dsn, application_name="test") if kind == "session" else Pool(dsn, size=1, overflow=0)
    assert executor.execute("ping") == [(1,)]
    own_queue_db.session.execute_raw(_REPLACE_QUEUE)
    executor.close()

    with pytest.raises(DatabaseUnavailable, match="another queue"):
        executor.execute("ping")

    monkeypatch.setattr("dataloader.app.db.connection.KNOWN_QUEUES", Queues())  # as in a process that has started since
    restarted = Session(dsn, application_name="test")
    assert restarted.execute("ping") == [(1,)]
    restarted.close()
