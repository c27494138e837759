"""Which servers a process refuses as former primaries."""

from __future__ import annotations

import psycopg2
import pytest

from app.queue import session as room
from app.queue.session import Session
from app.queue.timeline import NOT_PERMITTED, Timelines


def test_lower_timeline_of_the_same_cluster_is_refused():
    met = Timelines()
    met.check("1", "0000000A")
    met.check("2", "00000001")
    met.check("1", None)  # a standby
    met.check("1", "0000000B")
    met.check("1", "0000000B")

    with pytest.raises(psycopg2.OperationalError, match="on timeline 10, and 11 has begun"):
        met.check("1", "0000000A")


def test_function_without_permission_leaves_timeline_unknown(desk, monkeypatch):
    denied = f"DO $$ BEGIN RAISE EXCEPTION 'not permitted' USING ERRCODE = '{NOT_PERMITTED}'; END $$"
    monkeypatch.setattr(room, "TIMELINE", denied)
    session = Session(desk.dsn, name="denied")

    assert session.ask("ping") == [(1,)]
    session.close()
