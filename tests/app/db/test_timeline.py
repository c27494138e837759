"""Which servers a process refuses as former primaries."""

from __future__ import annotations

import psycopg2
import pytest

from app.db import connection as room
from app.db.connection import INSUFFICIENT_PRIVILEGE, Session, Timelines


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
    denied = f"DO $$ BEGIN RAISE EXCEPTION 'not permitted' USING ERRCODE = '{INSUFFICIENT_PRIVILEGE}'; END $$"
    monkeypatch.setattr(room, "TIMELINE_QUERY", denied)
    session = Session(queue_db.dsn, application_name="denied")

    assert session.execute("ping") == [(1,)]
    session.close()
